// Byte planes: byte p of every item together, which compresses better than items do.
#ifndef NEVE_KERNELS_PLANES_H_
#define NEVE_KERNELS_PLANES_H_

#include "kernels/portable.h"

namespace neve::kernels {

// This lane's share: planes[p * items + i] = bytes[i * width + p].
NEVE_ANYWHERE void SplitPlanesShare(const uint8_t* bytes, uint64_t items, uint32_t width, uint8_t* planes, uint64_t lane,
                                    uint64_t lanes) {
  for (uint64_t i = lane; i < items; i += lanes) {
    for (uint32_t p = 0; p < width; ++p) planes[p * items + i] = bytes[i * width + p];
  }
}
// The inverse.
NEVE_ANYWHERE void JoinPlanesShare(const uint8_t* planes, uint64_t items, uint32_t width, uint8_t* bytes, uint64_t lane,
                                   uint64_t lanes) {
  for (uint64_t i = lane; i < items; i += lanes) {
    for (uint32_t p = 0; p < width; ++p) bytes[i * width + p] = planes[p * items + i];
  }
}

}  // namespace neve::kernels

#endif  // NEVE_KERNELS_PLANES_H_
