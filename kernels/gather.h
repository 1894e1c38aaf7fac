// Gathering many small ranges of a device's memory into one, and scattering them back, so that they cross to the host in one
// copy. Sixteen bytes at a time where both ends allow it; any length and alignment.
//
// Invariants
//   - An item's bytes [offset, offset + bytes) of the packed side belong to no other item; between items nothing is touched.
//   - No byte outside an item's two ranges is read or written, not even to fill a vector.
#ifndef NEVE_KERNELS_GATHER_H_
#define NEVE_KERNELS_GATHER_H_

#include "kernels/portable.h"

namespace neve::kernels {

// One range. The layout is what the device reads: 16 bytes.
struct GatherItem {
  uint64_t address;  // of the range outside
  uint32_t bytes;
  uint32_t offset;  // in the packed side
};

struct Vector16 {
  uint64_t low, high;
};

// Copies [begin, begin + units * sizeof(T)) of both, which are aligned for T.
template <typename T>
NEVE_ANYWHERE void CopyUnits(uint8_t* target, const uint8_t* source, uint64_t units, uint32_t lane, uint32_t lanes) {
  T* const to = reinterpret_cast<T*>(target);
  const T* const from = reinterpret_cast<const T*>(source);
  for (uint64_t i = lane; i < units; i += lanes) to[i] = from[i];
}

// This lane's share of a copy of any alignment.
NEVE_ANYWHERE void CopyShare(uint8_t* target, const uint8_t* source, uint64_t bytes, uint32_t lane, uint32_t lanes) {
  const uint64_t to = reinterpret_cast<uint64_t>(target), from = reinterpret_cast<uint64_t>(source);
  // Bytes before the target is aligned; then the source is aligned as far as the two agree.
  const uint64_t gap = (16 - to % 16) % 16;
  const uint64_t head = gap < bytes ? gap : bytes;
  CopyUnits<uint8_t>(target, source, head, lane, lanes);
  const uint64_t body = bytes - head;
  const uint64_t skew = (from + head) % 16;
  uint64_t done;
  if (skew == 0) {
    done = body / 16 * 16;
    CopyUnits<Vector16>(target + head, source + head, body / 16, lane, lanes);
  } else if (skew % 8 == 0) {
    done = body / 8 * 8;
    CopyUnits<uint64_t>(target + head, source + head, body / 8, lane, lanes);
  } else if (skew % 4 == 0) {
    done = body / 4 * 4;
    CopyUnits<uint32_t>(target + head, source + head, body / 4, lane, lanes);
  } else if (skew % 2 == 0) {
    done = body / 2 * 2;
    CopyUnits<uint16_t>(target + head, source + head, body / 2, lane, lanes);
  } else {
    done = 0;
  }
  CopyUnits<uint8_t>(target + head + done, source + head + done, body - done, lane, lanes);
}

// This lane's share of one item.
NEVE_ANYWHERE void GatherShare(const GatherItem& item, uint8_t* packed, uint32_t lane, uint32_t lanes) {
  CopyShare(packed + item.offset, reinterpret_cast<const uint8_t*>(item.address), item.bytes, lane, lanes);
}
NEVE_ANYWHERE void ScatterShare(const GatherItem& item, const uint8_t* packed, uint32_t lane, uint32_t lanes) {
  CopyShare(reinterpret_cast<uint8_t*>(item.address), packed + item.offset, item.bytes, lane, lanes);
}

}  // namespace neve::kernels

#endif  // NEVE_KERNELS_GATHER_H_
