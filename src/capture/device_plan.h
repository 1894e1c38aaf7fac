// How the tensors of one device get into an image, compiled once per layout.
//
//   direct    contiguous ranges, from 1 MiB on: one copy each, in pieces of at most `piece_bytes`
//   batch     smaller ones: one batched copy for many
//   gather    the smallest: packed by a kernel into scratch, a window of them at a time, which crosses in a few copies
//   strided   what is not contiguous: row-major elements packed into scratch, window by window
//
// Where there are no kernels or no scratch, gather and strided pieces are copied range by range: slower, and the same image.
//
// Pieces stand in two phases: first the tensors that a fence does not protect, then the rest.
//
// Invariants: the pieces of all devices and the host's part cover the image, each byte once. No piece is longer than a window or
// `piece_bytes`. Memory of the device is never asked for by the size of the state.
#ifndef NEVE_CAPTURE_DEVICE_PLAN_H_
#define NEVE_CAPTURE_DEVICE_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "device/device.h"
#include "format/layout.h"

namespace neve::capture {

struct DevicePlanOptions {
  uint64_t piece_bytes = uint64_t{16} << 20;
  uint64_t direct_bytes_min = uint64_t{1} << 20;
  uint64_t gather_bytes_max = uint64_t{64} << 10;
  uint64_t batch_count_max = 1024;
  uint64_t window_bytes = (uint64_t{31} << 20) - 4096;  // of packed bytes: with its list at most 32 MiB
  uint32_t window_items_max = 65536;                    // whose list takes 1 MiB
};

class DevicePlan {
 public:
  enum class Kind : uint8_t { kDirect, kBatch, kGather, kStrided };
  struct Part {
    uint32_t stored;
    uint64_t from, to;  // bytes of the stored tensor
    uint32_t packed;    // kGather: where in the window
  };
  struct Run {
    uint64_t packed, image, bytes;
  };
  struct Piece {
    Kind kind;
    uint64_t bytes = 0;
    uint32_t first = 0, count = 0;          // parts
    uint32_t first_run = 0, run_count = 0;  // kGather
    int32_t view = -1;                      // kStrided
  };

  // `devices`: one a tensor; `fenced`: one a tensor, 0 where the fence does not protect it, or empty for all protected.
  // Unsupported for a strided tensor of more than 16 dimensions.
  static absl::StatusOr<std::shared_ptr<const DevicePlan>> Build(std::shared_ptr<const format::Layout> layout, int32_t device,
                                                                 std::span<const int32_t> devices,
                                                                 std::span<const uint8_t> fenced,
                                                                 const DevicePlanOptions& options = {});

  const format::Layout& layout() const { return *layout_; }
  const DevicePlanOptions& options() const { return options_; }
  std::span<const Piece> first() const { return phases_[0]; }
  std::span<const Piece> rest() const { return phases_[1]; }
  std::span<const Part> parts(const Piece& piece) const { return std::span(parts_).subspan(piece.first, piece.count); }
  std::span<const Run> runs(const Piece& piece) const { return std::span(runs_).subspan(piece.first_run, piece.run_count); }
  // The strided view of such a piece, whose tensor lies at `address`.
  kernels::StridedView view(const Piece& piece, const void* address) const;
  bool packs() const { return scratch_bytes_ != 0; }         // some piece wants scratch
  uint64_t scratch_bytes() const { return scratch_bytes_; }  // the longest packed window
  uint64_t list_items() const { return list_items_; }        // of all windows together
  uint64_t bytes() const { return bytes_; }

  // Where the bytes of a part begin.
  const std::byte* AddressOf(const Part& part, std::span<const void* const> addresses) const;

 private:
  friend class DevicePlanBuilder;
  std::shared_ptr<const format::Layout> layout_;
  DevicePlanOptions options_;
  std::array<std::vector<Piece>, 2> phases_;
  std::vector<Part> parts_;
  std::vector<Run> runs_;
  std::vector<kernels::StridedView> views_;
  uint64_t scratch_bytes_ = 0, list_items_ = 0, bytes_ = 0;
};

}  // namespace neve::capture

#endif  // NEVE_CAPTURE_DEVICE_PLAN_H_
