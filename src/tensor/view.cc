#include "tensor/view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace neve::tensor {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 62;   // keeps every offset and sum below within int64_t

// The dimensions that matter (extent > 1) by ascending stride.
struct Extent {
  int64_t count;
  int64_t stride;
};

std::vector<Extent> SortedExtents(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  std::vector<Extent> extents;
  extents.reserve(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1) extents.push_back({shape[i], strides[i]});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.stride < b.stride; });
  return extents;
}

bool IsContiguous(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

absl::StatusOr<uint64_t> ElementCount(std::span<const int64_t> shape) {
  // Zeros are looked for first: [2^62, 2^62, 0] is an empty tensor, not an overflow.
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) return Invalid(absl::StrFormat("extent %d of dimension %d is negative", shape[i], i));
    empty = empty || shape[i] == 0;
  }
  if (empty) return 0;
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(extent), &count) || count > kBytesMax) {
      return Invalid("the number of elements overflows");
    }
  }
  return count;
}

Dims ContiguousStrides(std::span<const int64_t> shape) {
  Dims strides(shape.size());
  // As torch does it: an extent of 0 counts as 1, so that empty tensors have usable strides. Unsigned, because the extents
  // of an empty tensor may be anything.
  uint64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape[i], 1));
  }
  return strides;
}

absl::StatusOr<Density> Classify(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (shape.size() != strides.size()) {
    return Invalid(absl::StrFormat("%d extents but %d strides", shape.size(), strides.size()));
  }
  NEVE_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(shape));
  if (count == 0) return Density::kContiguous;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && strides[i] < 0) {
      return Invalid(absl::StrFormat("stride %d of dimension %d is negative", strides[i], i));
    }
  }
  if (IsContiguous(shape, strides)) return Density::kContiguous;

  const std::vector<Extent> extents = SortedExtents(shape, strides);
  bool expanded = false, dense = true, overlapping = false;
  uint64_t reach = 0;   // offset of the last element of the dimensions seen so far
  for (const Extent& extent : extents) {
    if (extent.stride == 0) {
      expanded = true;
      continue;
    }
    // A stride that does not step over everything the smaller dimensions reach may land on it. (A few exotic views that pass
    // between elements are called overlapping too; they are stored right all the same.)
    const uint64_t stride = static_cast<uint64_t>(extent.stride);
    overlapping = overlapping || stride <= reach;
    dense = dense && stride == reach + 1;
    uint64_t more = 0;
    if (__builtin_mul_overflow(stride, static_cast<uint64_t>(extent.count - 1), &more) || more > kBytesMax - reach) {
      return Invalid("the strides reach past any memory");
    }
    reach += more;
  }
  if (overlapping) return Density::kOverlapping;
  if (expanded) return Density::kExpanded;
  return dense ? Density::kPermuted : Density::kGapped;
}

uint64_t SpanBytes(std::span<const int64_t> shape, std::span<const int64_t> strides, uint64_t item_bytes) {
  uint64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    last += static_cast<uint64_t>(shape[i] - 1) * static_cast<uint64_t>(strides[i]);
  }
  return (last + 1) * item_bytes;
}

}  // namespace neve::tensor
