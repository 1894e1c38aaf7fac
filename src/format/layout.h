// Layout: everything about an image but its bytes. Computed once per state structure, reused while the structure holds.
// The file it describes is a safetensors file; docs/format.md is the format's own page and a test reads its example.
//
// Invariants
//   - Two saves of one Layout differ in the header only inside the `neve.values` string, and never move data.
//   - Data begins at a multiple of 4096; the tensors cover the data without hole or overlap.
//   - Order of data: sizes that are multiples of 4096 first; then by descending alignment (item size), then by name.
//   - Header entries stand in the order of the structure (tree order).
//   - A header is at most 100,000,000 bytes, refused by number otherwise.
//
// What is stored of a tensor (DESIGN of docs/format.md):
//   contiguous      its bytes
//   permuted/gapped logical row-major bytes; strides in `neve.tree`
//   expanded        only the touched elements: header shape has 1 in the expanded dimensions; shape and strides in the tree
//   overlapping     a hidden base `neve.base.<n>` (U8) over the span; the tensor is an alias of it
//   alias group     (members whose memory overlaps) whose union is one dense member: that member, the others as aliases
//                   (base, byte offset, dtype, shape, strides); otherwise all are aliases of a hidden base over the union
//   piece           as above, but on its own whatever memory it shares: no alias or base is a piece
#ifndef NEVE_FORMAT_LAYOUT_H_
#define NEVE_FORMAT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/piece.h"
#include "neve/dtype.h"
#include "neve/types.h"
#include "tensor/view.h"

namespace neve::format {

// Number of elements of a shape that a file states; Damaged where there is none: an extent below 0, or more than any memory.
absl::StatusOr<uint64_t> StatedElementCount(std::span<const int64_t> shape);

inline constexpr uint64_t kHeaderBytesMax = 100'000'000;
inline constexpr uint64_t kValuesBytesMin = 4096;
inline constexpr std::string_view kValuesKey = "neve.values", kTreeKey = "neve.tree", kFormatKey = "neve.format";

struct TensorSpec {
  std::string name;      // header name, already escaped, unique, not "__metadata__"; valid UTF-8
  DType dtype;
  tensor::Dims shape;    // in elements (pairs for kF4E2M1x2)
  tensor::Dims strides;  // in elements
  std::shared_ptr<const Piece> piece = nullptr;   // null: the whole tensor is here
};

// What the caller knows of a state, without its bytes. Immutable once built.
struct Structure {
  std::vector<TensorSpec> tensors;   // in tree order
  std::string tree;                  // a JSON value: the root node (docs/format.md, "tree"); empty: flat, no tree
  uint32_t blob_count = 0;           // leaves over 4 KiB: `neve.blob.<n>`, n < blob_count
  std::vector<std::pair<std::string, std::string>> metadata;  // further string metadata, keys not beginning with "neve."
};

// Sticky capacities, which only grow.
struct Capacities {
  uint64_t values_bytes = 0;             // of the neve.values string
  std::vector<uint64_t> blob_bytes;      // payload capacity of each blob
};
// max(4 KiB, 2 x needed) where `now` is too small or absent; unchanged otherwise.
Capacities GrowCapacities(const Capacities& now, uint64_t values_bytes, std::span<const uint64_t> blob_bytes);

// A blob tensor holds 8 bytes little-endian payload length, then the payload, then zeros to its capacity.
inline constexpr uint64_t kBlobPrefixBytes = 8;

// Names of entries that are no tensors of the user: these, followed by a number and nothing else. "neve.blob.0~#2" is the user's.
inline constexpr std::string_view kBlobPrefix = "neve.blob.", kBasePrefix = "neve.base.";
bool IsBlobName(std::string_view name);
bool IsBaseName(std::string_view name);
inline bool IsHiddenName(std::string_view name) { return IsBlobName(name) || IsBaseName(name); }

// Where one stored range of the image comes from.
struct StoredTensor {
  enum class Source : uint8_t { kTensor, kBlob, kBase };
  Source source;
  uint32_t index;          // into Structure::tensors (kTensor; kBase: the group's lowest member), or the blob number
  int64_t address_delta;   // kBase: bytes from that member's data pointer to the start of the union (<= 0)
  uint64_t offset;         // in the image, header included
  uint64_t bytes;
  bool contiguous;         // bytes are copied as they lie; else through StridedCopy of (shape, strides)
  tensor::Dims shape, strides;   // of what is gathered when not contiguous (expanded dimensions removed)
};

class Layout {
 public:
  // `addresses`: data pointer of each tensor (ignored for empty ones), from which the alias groups are found.
  // Errors: Invalid (bad shape, name repeated or reserved, negative stride), Exhausted (header over the limit, by number).
  static absl::StatusOr<std::shared_ptr<const Layout>> Build(std::shared_ptr<const Structure> structure,
                                                             std::span<const void* const> addresses,
                                                             const Capacities& capacities);

  const Structure& structure() const { return *structure_; }
  uint64_t id() const { return id_; }                  // low half of the digest of the static header bytes
  uint64_t header_bytes() const { return data_offset_; }  // 8 + JSON + padding; where data begins
  uint64_t image_bytes() const { return image_bytes_; }
  std::span<const StoredTensor> stored() const { return stored_; }   // by ascending offset
  const Capacities& capacities() const { return capacities_; }

  // Writes the whole header into target[0, header_bytes()). `values` must fit and hold no byte that JSON would escape.
  absl::Status WriteHeader(std::string_view values, std::span<std::byte> target) const;

  // Whether tensors at these addresses have the same alias groups as this layout. Cheap (memcmp) when `addresses` equals
  // the last call's; else O(n log n).
  bool SameAliases(std::span<const void* const> addresses) const;

 private:
  friend class LayoutBuilder;
  std::shared_ptr<const Structure> structure_;
  Capacities capacities_;
  std::string header_;             // template with an empty (all spaces) values string
  uint64_t values_offset_ = 0;     // of the string's first byte
  uint64_t data_offset_ = 0, image_bytes_ = 0, id_ = 0;
  std::vector<StoredTensor> stored_;
  std::string alias_signature_;
  mutable std::vector<const void*> last_addresses_;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_LAYOUT_H_
