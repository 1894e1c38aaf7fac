#include "tensor/box.h"

#include <cstring>
#include <numeric>

namespace neve::tensor {
namespace {

template <size_t kBytes>
void CopyRuns(std::byte* target, int64_t target_stride, const std::byte* source, uint64_t source_stride, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(target, source, kBytes);
    target += target_stride;
    source += source_stride;
  }
}

void CopyRuns(uint64_t bytes, std::byte* target, int64_t target_stride, const std::byte* source, uint64_t source_stride,
              uint64_t count) {
  switch (bytes) {
    case 1: return CopyRuns<1>(target, target_stride, source, source_stride, count);
    case 2: return CopyRuns<2>(target, target_stride, source, source_stride, count);
    case 4: return CopyRuns<4>(target, target_stride, source, source_stride, count);
    case 8: return CopyRuns<8>(target, target_stride, source, source_stride, count);
    case 16: return CopyRuns<16>(target, target_stride, source, source_stride, count);
    default: break;
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(target, source, bytes);
    target += target_stride;
    source += source_stride;
  }
}

void AddLinear(std::span<const int64_t> shape, size_t dimension, uint64_t inner, uint64_t first, uint64_t count, LinearBox at,
               std::vector<LinearBox>* boxes) {
  // `at` says where the dimensions before `dimension` stand; elements [first, first + count) of the rest are wanted.
  if (count == 0) return;
  if (dimension == shape.size()) {
    boxes->push_back(std::move(at));
    return;
  }
  const uint64_t below = inner / static_cast<uint64_t>(shape[dimension]);   // elements of one step of this dimension
  const auto part = [&](uint64_t index, uint64_t begin, uint64_t elements) {
    LinearBox deeper = at;
    deeper.offset[dimension] = static_cast<int64_t>(index);
    deeper.extent[dimension] = 1;
    deeper.first += index * below;
    AddLinear(shape, dimension + 1, below, begin, elements, std::move(deeper), boxes);
  };
  uint64_t index = first / below;
  if (const uint64_t head = first % below; head != 0 || count < below) {
    const uint64_t taken = std::min(count, below - head);
    part(index++, head, taken);
    count -= taken;
  }
  if (const uint64_t whole = count / below; whole > 0) {
    LinearBox box = at;
    box.offset[dimension] = static_cast<int64_t>(index);
    box.extent[dimension] = static_cast<int64_t>(whole);
    box.first += index * below;
    boxes->push_back(std::move(box));
    index += whole;
    count -= whole * below;
  }
  if (count > 0) part(index, 0, count);
}

}  // namespace

bool IsEmptyBox(std::span<const int64_t> extent) { return std::find(extent.begin(), extent.end(), 0) != extent.end(); }

bool Intersect(std::span<const int64_t> a_offset, std::span<const int64_t> a_extent, std::span<const int64_t> b_offset,
               std::span<const int64_t> b_extent, Dims* offset, Dims* extent) {
  const size_t rank = a_offset.size();
  offset->resize(rank);
  extent->resize(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t begin = std::max(a_offset[i], b_offset[i]);
    const int64_t end = std::min(a_offset[i] + a_extent[i], b_offset[i] + b_extent[i]);
    if (begin >= end) return false;
    (*offset)[i] = begin;
    (*extent)[i] = end - begin;
  }
  return true;
}

void BoxIndex::Add(std::span<const int64_t> offset, std::span<const int64_t> extent) {
  coordinates_.insert(coordinates_.end(), offset.begin(), offset.end());
  coordinates_.insert(coordinates_.end(), extent.begin(), extent.end());
  ++count_;
}

void BoxIndex::Sort() {
  size_t most = 0;
  std::vector<int64_t> offsets;
  for (size_t dimension = 0; dimension < rank_ && count_ > 1; ++dimension) {
    offsets.clear();
    for (size_t box = 0; box < count_; ++box) offsets.push_back(offset(box)[dimension]);
    std::sort(offsets.begin(), offsets.end());
    const auto distinct = static_cast<size_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
    if (distinct <= most) continue;
    most = distinct;
    axis_ = dimension;
  }
  if (rank_ == 0) return;
  order_.clear();
  for (uint32_t box = 0; box < count_; ++box) {
    if (!IsEmptyBox(extent(box))) order_.push_back(box);
  }
  std::sort(order_.begin(), order_.end(), [this](uint32_t a, uint32_t b) {
    const int64_t at_a = offset(a)[axis_], at_b = offset(b)[axis_];
    return at_a != at_b ? at_a < at_b : a < b;
  });
  reach_.clear();
  for (const uint32_t box : order_) {
    const int64_t end = offset(box)[axis_] + extent(box)[axis_];
    reach_.push_back(reach_.empty() ? end : std::max(reach_.back(), end));
  }
}

bool BoxIndex::Meets(size_t box, std::span<const int64_t> offset, std::span<const int64_t> extent) const {
  const std::span<const int64_t> at = this->offset(box), size = this->extent(box);
  for (size_t i = 0; i < rank_; ++i) {
    if (at[i] >= offset[i] + extent[i] || offset[i] >= at[i] + size[i]) return false;
  }
  return true;
}

std::vector<LinearBox> LinearBoxes(std::span<const int64_t> shape, uint64_t first, uint64_t count) {
  std::vector<LinearBox> boxes;
  const LinearBox whole{Dims(shape.size(), 0), Dims(shape.begin(), shape.end()), 0};
  const uint64_t all = ElementCount(shape).value_or(0);
  if (count > 0 && first + count <= all) AddLinear(shape, 0, all, first, count, whole, &boxes);
  return boxes;
}

BoxCopy::BoxCopy(std::span<const int64_t> extents, std::span<const int64_t> source_strides, std::span<const int64_t> target_strides,
                 uint64_t item_bytes)
    : run_bytes_(item_bytes), span_bytes_(item_bytes) {
  // Innermost first: what is contiguous on both sides becomes the run, what goes on at one stride becomes one axis.
  std::vector<Axis> axes;
  for (size_t i = extents.size(); i-- > 0;) {
    if (extents[i] == 1) continue;
    const Axis axis{static_cast<uint64_t>(extents[i]), static_cast<uint64_t>(source_strides[i]), 0, target_strides[i]};
    if (axes.empty() && axis.source_stride == run_bytes_ && axis.target_stride == static_cast<int64_t>(run_bytes_)) {
      run_bytes_ *= axis.count;
    } else if (!axes.empty() && axis.source_stride == axes.back().source_stride * axes.back().count &&
               axis.target_stride == axes.back().target_stride * static_cast<int64_t>(axes.back().count)) {
      axes.back().count *= axis.count;
    } else {
      axes.push_back(axis);
    }
  }
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return (a.source_stride != 0) != (b.source_stride != 0) ? a.source_stride != 0 : a.source_stride < b.source_stride;
  });
  uint64_t span = run_bytes_;
  for (Axis& axis : axes) {
    axis.span = span;
    span += (axis.count - 1) * axis.source_stride;
  }
  span_bytes_ = span;
  axes_.assign(axes.rbegin(), axes.rend());
}

uint64_t BoxCopy::BytesIn(uint64_t begin, uint64_t end) const { return BytesIn(0, begin, std::min(end, span_bytes_)); }

uint64_t BoxCopy::BytesIn(size_t axis, uint64_t begin, uint64_t end) const {
  if (begin >= end) return 0;
  if (axis == axes_.size()) return std::min(end, run_bytes_) - std::min(begin, run_bytes_);
  const Axis& a = axes_[axis];
  if (a.source_stride == 0) return BytesIn(axis + 1, begin, end);   // the same bytes again
  const auto before = [&](uint64_t position) {   // bytes of the box before that position of the span
    const uint64_t step = std::min(position / a.source_stride, a.count - 1);
    return step * BytesIn(axis + 1, 0, a.span) + BytesIn(axis + 1, 0, std::min(position - step * a.source_stride, a.span));
  };
  return before(end) - before(begin);
}

void BoxCopy::Scatter(std::byte* target, uint64_t begin, uint64_t end, const std::byte* source) const {
  if (begin < end) Walk(0, 0, target, begin, end, source);
}

// `at`: where in the span the part of the axes from `axis` on begins, whose target is `target`.
void BoxCopy::Walk(size_t axis, uint64_t at, std::byte* target, uint64_t begin, uint64_t end, const std::byte* source) const {
  if (axis == axes_.size()) {
    const uint64_t first = std::max(at, begin), last = std::min(at + run_bytes_, end);
    if (first < last) std::memcpy(target + (first - at), source + (first - begin), last - first);
    return;
  }
  const Axis& a = axes_[axis];
  uint64_t step = 0, steps = a.count;
  if (a.source_stride != 0) {
    if (end <= at) return;
    if (begin >= at + a.span) step = (begin - at - a.span) / a.source_stride + 1;
    steps = std::min(a.count, (end - at - 1) / a.source_stride + 1);
  }
  if (axis + 1 < axes_.size() || a.source_stride == 0) {
    for (; step < steps; ++step) {
      Walk(axis + 1, at + step * a.source_stride, target + static_cast<int64_t>(step) * a.target_stride, begin, end, source);
    }
    return;
  }
  // The runs of the last axis: one that is cut at each end, whole ones between.
  const auto run = [&](uint64_t i) {
    Walk(axis + 1, at + i * a.source_stride, target + static_cast<int64_t>(i) * a.target_stride, begin, end, source);
  };
  if (step < steps && at + step * a.source_stride < begin) run(step++);
  if (step < steps && at + (steps - 1) * a.source_stride + run_bytes_ > end) run(--steps);
  if (step >= steps) return;
  CopyRuns(run_bytes_, target + static_cast<int64_t>(step) * a.target_stride, a.target_stride,
           source + (at + step * a.source_stride - begin), a.source_stride, steps - step);
}

}  // namespace neve::tensor
