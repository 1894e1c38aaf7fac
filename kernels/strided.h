// Logical row-major bytes of a strided view, gathered on the device.
#ifndef NEVE_KERNELS_STRIDED_H_
#define NEVE_KERNELS_STRIDED_H_

#include "kernels/gather.h"

namespace neve::kernels {

inline constexpr int kStridedRankMax = 16;

// Passed by value: what the device reads. Strides in bytes; rank dimensions count, slowest first.
struct StridedView {
  uint64_t address;
  uint32_t rank;
  uint32_t item_bytes;  // 1 to 16
  int64_t extents[kStridedRankMax];
  int64_t strides[kStridedRankMax];
};

// The address of the element that stands at `index` in row-major order.
NEVE_ANYWHERE const uint8_t* ElementOf(const StridedView& view, uint64_t index) {
  const uint8_t* at = reinterpret_cast<const uint8_t*>(view.address);
  for (int dimension = static_cast<int>(view.rank) - 1; dimension >= 0; --dimension) {
    const uint64_t extent = static_cast<uint64_t>(view.extents[dimension]);
    at += static_cast<int64_t>(index % extent) * view.strides[dimension];
    index /= extent;
  }
  return at;
}

// This lane's share of the elements [first, first + count), packed at `target`.
NEVE_ANYWHERE void GatherStridedShare(const StridedView& view, uint64_t first, uint64_t count, uint8_t* target, uint64_t lane,
                                      uint64_t lanes) {
  for (uint64_t i = lane; i < count; i += lanes) {
    CopyShare(target + i * view.item_bytes, ElementOf(view, first + i), view.item_bytes, 0, 1);
  }
}

}  // namespace neve::kernels

#endif  // NEVE_KERNELS_STRIDED_H_
