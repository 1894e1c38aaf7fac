// Boxes of an n-d tensor: which of many meet a given one, and the copy of a box out of row-major bytes.
//
// A box is [offset, offset + extent) in each dimension, in elements. Boxes without elements meet none.
#ifndef NEVE_TENSOR_BOX_H_
#define NEVE_TENSOR_BOX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace neve::tensor {

bool IsEmptyBox(std::span<const int64_t> extent);

// What two boxes share; false: nothing. Requires: all of one rank; offset + extent does not overflow.
bool Intersect(std::span<const int64_t> a_offset, std::span<const int64_t> a_extent, std::span<const int64_t> b_offset,
               std::span<const int64_t> b_extent, Dims* offset, Dims* extent);

// Boxes of one tensor, found by what they meet: sorted along the dimension that is cut most, so that a query looks at those alone
// that it may meet there.
class BoxIndex {
 public:
  explicit BoxIndex(size_t rank) : rank_(rank) {}
  // Boxes are numbered as they are added.
  void Add(std::span<const int64_t> offset, std::span<const int64_t> extent);
  void Sort();   // after the last Add, before the first ForEachMeeting

  size_t size() const { return rank_ == 0 ? count_ : coordinates_.size() / (2 * rank_); }
  std::span<const int64_t> offset(size_t box) const { return std::span(coordinates_).subspan(2 * rank_ * box, rank_); }
  std::span<const int64_t> extent(size_t box) const { return std::span(coordinates_).subspan(2 * rank_ * box + rank_, rank_); }

  // visit(box) of each that shares an element with this one; it may return false to end the search.
  template <typename Visit>
  void ForEachMeeting(std::span<const int64_t> offset, std::span<const int64_t> extent, Visit visit) const {
    if (IsEmptyBox(extent)) return;
    if (rank_ == 0) {
      for (size_t box = 0; box < count_; ++box) {
        if (!visit(box)) return;
      }
      return;
    }
    const int64_t begin = offset[axis_], end = begin + extent[axis_];
    size_t at = static_cast<size_t>(std::upper_bound(reach_.begin(), reach_.end(), begin) - reach_.begin());
    for (; at < order_.size() && this->offset(order_[at])[axis_] < end; ++at) {
      if (Meets(order_[at], offset, extent) && !visit(size_t{order_[at]})) return;
    }
  }

 private:
  bool Meets(size_t box, std::span<const int64_t> offset, std::span<const int64_t> extent) const;

  size_t rank_, count_ = 0;
  std::vector<int64_t> coordinates_;   // of each box its offset, then its extent
  size_t axis_ = 0;                    // the dimension sorted by
  std::vector<uint32_t> order_;        // boxes by their offset there
  std::vector<int64_t> reach_;         // the greatest end of order_[0..i]
};

// Elements [first, first + count) of a shape in row-major order as boxes, in that order.
struct LinearBox {
  Dims offset, extent;
  uint64_t first;                  // its first element's number
};
std::vector<LinearBox> LinearBoxes(std::span<const int64_t> shape, uint64_t first, uint64_t count);

// The elements of a box that lie at strides in a stretch of bytes (the span), copied to where they lie at others.
// Invariant: both strides are multiples of bytes, not of elements, so that a stretch may begin and end within one.
class BoxCopy {
 public:
  // Strides in bytes; of the source row-major ones, 0 where one element stands for all (not negative). Extents are not 0.
  BoxCopy(std::span<const int64_t> extents, std::span<const int64_t> source_strides, std::span<const int64_t> target_strides,
          uint64_t item_bytes);
  uint64_t span_bytes() const { return span_bytes_; }         // from the first to the last byte of the source, holes included
  bool contiguous() const { return axes_.empty(); }           // one run, the same on both sides
  // Bytes of the box that lie in bytes [begin, end) of the span.
  uint64_t BytesIn(uint64_t begin, uint64_t end) const;
  // source[0, end - begin) are bytes [begin, end) of the span; writes those of the box. Thread safe.
  void Scatter(std::byte* target, uint64_t begin, uint64_t end, const std::byte* source) const;

 private:
  struct Axis {
    uint64_t count, source_stride, span;   // span: of one step, from its first to its last byte
    int64_t target_stride;
  };
  uint64_t BytesIn(size_t axis, uint64_t begin, uint64_t end) const;
  void Walk(size_t axis, uint64_t at, std::byte* target, uint64_t begin, uint64_t end, const std::byte* source) const;

  std::vector<Axis> axes_;   // outermost first: the repeated ones, then by descending stride
  uint64_t run_bytes_;       // contiguous on both sides
  uint64_t span_bytes_;
};

}  // namespace neve::tensor

#endif  // NEVE_TENSOR_BOX_H_
