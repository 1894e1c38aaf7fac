// ReadPlan: which chunks to read, and where each byte of them goes.
//
// Pure: built from ranges, no I/O. A range is a run of image bytes and its target, contiguous or strided. The plan lists, per
// chunk that any range touches, the segments in ascending order; a segment never leaves its chunk.
//
// Invariants
//   - Every byte of every range is in exactly one segment. Ranges may be given in any order; they must not overlap in the
//     image (Invalid).
//   - Strided segments begin and end at element borders; where chunk borders would cut an element (files of other writers),
//     the range is staged contiguously and scattered at the end.
#ifndef NEVE_RESTORE_READ_PLAN_H_
#define NEVE_RESTORE_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "neve/types.h"
#include "tensor/box.h"
#include "tensor/view.h"

namespace neve::restore {

struct Range {
  uint64_t offset = 0;                            // in the image
  uint64_t bytes = 0;                             // logical bytes
  std::byte* target = nullptr;
  std::shared_ptr<const tensor::StridedCopy> strided;   // null: contiguous
  uint64_t item_bytes = 1;
  // Not null: `bytes` are its span, of which its elements go to the target. Only such ranges may meet others in the image.
  std::shared_ptr<const tensor::BoxCopy> box = nullptr;
  bool shared = false;                            // other readers of this host are likely to want the same
};

struct Segment {
  uint64_t offset = 0;                            // in the image
  uint64_t bytes = 0;
  uint32_t range = 0;                             // index into the ranges given
  uint64_t range_offset = 0;                      // logical bytes of the range before this segment
};

struct ChunkPlan {
  uint64_t chunk = 0;
  uint32_t first = 0, count = 0;                  // segments
};

class ReadPlan {
 public:
  // image_bytes and chunk_bytes of the record; a range that leaves the image is Damaged.
  static absl::StatusOr<ReadPlan> Build(std::span<const Range> ranges, uint64_t image_bytes, uint64_t chunk_bytes);

  std::span<const ChunkPlan> chunks() const { return chunks_; }    // ascending
  // Ascending and apart, but for those of boxes, which come last.
  std::span<const Segment> SegmentsOf(const ChunkPlan& chunk) const {
    return std::span<const Segment>(segments_).subspan(chunk.first, chunk.count);
  }
  const Range& range(uint32_t index) const { return ranges_[index]; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t ChunkSize(uint64_t chunk) const {
    const uint64_t begin = chunk * chunk_bytes_;
    return image_bytes_ - begin < chunk_bytes_ ? image_bytes_ - begin : chunk_bytes_;
  }
  // Scatters the staged ranges; after all chunks have been read.
  void FinishStaged() const;

 private:
  absl::Status AddBoxes();

  uint64_t image_bytes_ = 0, chunk_bytes_ = 0;
  std::vector<Range> ranges_;                     // staged ones point at their staging memory
  std::vector<Segment> segments_;
  std::vector<ChunkPlan> chunks_;
  struct Staged {
    Range original;
    std::unique_ptr<std::byte[]> bytes;
  };
  std::vector<Staged> staged_;
};

}  // namespace neve::restore

#endif  // NEVE_RESTORE_READ_PLAN_H_
