// Capture: the copy of a state into a slot's image, with the digest of each chunk made in the same loop.
//
// A CapturePlan is compiled once per layout: for each chunk of the image, which ranges of which tensors, blobs and header
// fill it. Run hands chunks to the crew by an atomic counter. Contiguous ranges go through codec::CaptureHasher (load once,
// accumulate, stream the same register out); strided ones are gathered into the slot and hashed from there.
//
// Run allocates nothing and takes no lock but the crew's. When it returns, every byte of the image is in the slot and
// digests[] holds every chunk's digest; the caller may change the tensors.
#ifndef NEVE_CAPTURE_CAPTURE_H_
#define NEVE_CAPTURE_CAPTURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "base/sync/crew.h"
#include "format/layout.h"
#include "tensor/view.h"

namespace neve::capture {

struct CaptureInput {
  std::span<const void* const> addresses;             // one per tensor of the structure
  std::string_view values;                            // fits the layout's capacity
  std::span<const std::string_view> blobs;            // each fits its capacity
};

// Invalid when the input does not fit the layout: counts, the values, a blob, a tensor without an address.
absl::Status CheckInput(const format::Layout& layout, const CaptureInput& input);

class CapturePlan {
 public:
  CapturePlan(std::shared_ptr<const format::Layout> layout, uint64_t chunk_bytes);
  const format::Layout& layout() const { return *layout_; }
  const std::shared_ptr<const format::Layout>& shared_layout() const { return layout_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t chunk_count() const;

  // image: layout().image_bytes() writable bytes, 4096-aligned. digests: chunk_count() entries.
  // Invalid when a blob or the values do not fit, before any byte is written.
  absl::Status Run(const CaptureInput& input, std::span<std::byte> image, std::span<codec::Digest> digests,
                   sync::Crew& crew) const;

  // One range of the image only, for states larger than the budget: fills target[0, end - begin) with image bytes
  // [begin, end), where begin is a multiple of chunk_bytes, and the digests of its chunks.
  absl::Status RunRange(const CaptureInput& input, uint64_t begin, uint64_t end, std::span<std::byte> target,
                        std::span<codec::Digest> digests, sync::Crew& crew) const;

 private:
  void CaptureChunk(const CaptureInput& input, uint64_t chunk, std::byte* target, codec::Digest* digest) const;
  std::shared_ptr<const format::Layout> layout_;
  uint64_t chunk_bytes_;
  std::vector<uint32_t> first_stored_;                // per chunk: first stored tensor that reaches into it
  std::vector<tensor::StridedCopy> strided_;          // of the non-contiguous stored tensors
  std::vector<int32_t> strided_index_;                // per stored tensor, -1: contiguous
};

}  // namespace neve::capture

#endif  // NEVE_CAPTURE_CAPTURE_H_
