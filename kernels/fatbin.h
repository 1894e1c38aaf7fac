// The kernels as nvcc built them for sm_80, sm_90, sm_100 and as PTX; empty where the build had no nvcc.
#ifndef NEVE_KERNELS_FATBIN_H_
#define NEVE_KERNELS_FATBIN_H_

#include <cstddef>
#include <span>

namespace neve::kernels {

std::span<const std::byte> Fatbin();

}  // namespace neve::kernels

#endif  // NEVE_KERNELS_FATBIN_H_
