// What lets a body be compiled by nvcc for a device and by any C++ compiler for the tests.
//
// Bodies are plain functions of plain values. A team of `lanes` threads calls a body with `lane` in [0, lanes); on the CPU one
// thread calls it for each lane in turn. No body needs its team to meet: what must meet is two launches.
#ifndef NEVE_KERNELS_PORTABLE_H_
#define NEVE_KERNELS_PORTABLE_H_

#include <stdint.h>

#if defined(__CUDACC__)
#define NEVE_ANYWHERE __host__ __device__ inline
#else
#define NEVE_ANYWHERE inline
#endif

#endif  // NEVE_KERNELS_PORTABLE_H_
