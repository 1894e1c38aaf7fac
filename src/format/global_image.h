// The global image of a save: what all ranks' images hold together, presented as one image in which each logical tensor stands once,
// whole, under its logical name. Pure: from the ranks' headers, from the caller's word which bytes are equal, and from blobs that it reads.
//
//   NEVE_ASSIGN_OR_RETURN(auto merge, GlobalMerge::Begin(images, options, read));
//   std::vector<bool> equal = ...;                       // for each of merge->comparisons()
//   NEVE_ASSIGN_OR_RETURN(GlobalImage global, merge->Finish(equal));
//
// Invariants
//   - header_text is a valid header of docs/format.md without pieces; LogicalTensors of it are `tensors`.
//   - Boxes of one logical tensor have one type and global shape, cover it without a gap and share no element; identical boxes of
//     several ranks are copies of one box, with equal bytes. Boxes without elements count for nothing.
//   - Plain tensors, blobs and values that several ranks hold in one place are equal on all of them, or are the lowest rank's where
//     a pattern of take_rank0 matches (of boxes that differ then the lowest rank's is read); where they differ the merge is refused, or
//     `place` becomes a dictionary `place.@0`, `place.@1` of what each rank has there (Differing). What one rank holds is taken.
//     Dictionaries and lists merge by key and index, in the order of the ranks, also (but not by rank) where one rank's holds values
//     alone. Where one rank holds a reference and another a tensor, the tensor stands. No pattern makes a tensor disappear.
//   - What `include` does not want is the lowest rank's, whatever the others hold.
// Errors: Damaged names tensor, ranks and boxes; Unsupported names what differs and the ranks.
#ifndef NEVE_FORMAT_GLOBAL_IMAGE_H_
#define NEVE_FORMAT_GLOBAL_IMAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/image_header.h"
#include "tensor/box.h"

namespace neve::format {

// What one rank's image says of itself. Borrowed until Finish.
struct RankImage {
  uint32_t rank;
  const ImageHeader* header;
  std::span<const LogicalTensor> tensors;   // LogicalTensors of it
};

// Where the elements of a box lie, row-major.
struct GlobalCopy {
  uint32_t image;           // into the images given
  uint64_t offset;          // in that image
  uint64_t expanded = 0;    // bit i: dimension i is there once, however long it is
};

// An entry of the header. Its bytes are the elements of `shape` in row-major order.
struct GlobalEntry {
  bool cut = false;                    // made of boxes; else it lies in each copy as it is, and `boxes` is the whole
  DType dtype = DType::kU8;
  tensor::Dims shape;                  // as the tensor counts it; of bytes for hidden entries
  tensor::BoxIndex boxes{0};
  std::vector<uint32_t> first_copy;    // of each box, and one past the last
  std::vector<GlobalCopy> copies;      // by rank within a box; at least one

  std::span<const GlobalCopy> CopiesOf(size_t box) const {
    return std::span(copies).subspan(first_copy[box], first_copy[box + 1] - first_copy[box]);
  }
};

struct GlobalImage {
  std::string header_text;             // 8 bytes of length and the JSON, padded
  ImageHeader header;                  // of it
  std::vector<LogicalTensor> tensors;
  std::vector<GlobalEntry> entries;    // of header.tensors
  std::vector<std::string> by_rank;    // places that the ranks keep differently, shown by rank
};

// Bytes that must be equal for the ranks to agree.
struct Comparison {
  struct Bytes {
    uint32_t image;
    uint64_t offset, bytes;
    uint64_t expanded = 0;             // of a box: as in GlobalCopy
  };
  std::string name;                    // of the tensor in the first image, or of the blob; of the logical tensor of a box
  bool blob = false;                   // 8 bytes of length come first; only they and the payload count
  bool box = false;                    // each copy can stand for the others: one that cannot be read is not compared
  DType dtype = DType::kU8;            // of a box
  tensor::Dims extent;                 // of a box
  std::vector<Bytes> copies;           // two or more
};

// What becomes of plain tensors, blobs and values that differ between ranks.
enum class Differing : uint8_t {
  kRefused,   // Unsupported: to restore another number of ranks one of them must be taken
  kByRank,    // shown by rank: for those who look. Copies of a box cannot be shown so: Damaged
};

// Glob patterns over dotted names; one also matches what lies below.
struct GlobalOptions {
  std::vector<std::string> take_rank0;                // what rank 0 speaks for where the ranks differ
  std::optional<std::vector<std::string>> include;    // all that is wanted; none: everything; empty: logical tensors alone
  Differing differing = Differing::kRefused;
};

class GlobalMerge {
 public:
  // Reads bytes of one image, for what cannot be told from headers.
  using Read = std::function<absl::Status(uint32_t image, uint64_t offset, std::span<std::byte> target)>;

  // images: by ascending rank. read: called before it returns.
  static absl::StatusOr<std::unique_ptr<GlobalMerge>> Begin(std::vector<RankImage> images, GlobalOptions options, const Read& read);
  virtual ~GlobalMerge() = default;
  virtual std::span<const Comparison> comparisons() const = 0;
  // equal: one for each comparison. Once.
  virtual absl::StatusOr<GlobalImage> Finish(const std::vector<bool>& equal) = 0;
};

// "rank 3", "ranks 0, 1 and 2".
std::string RanksText(std::span<const uint32_t> ranks);

// What of a tensor is there once: bit i for a dimension of stride 0.
uint64_t ExpandedDimensions(const LogicalTensor& tensor);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_IMAGE_H_
