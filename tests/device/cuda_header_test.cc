// Our declarations of the driver against those of CUDA, where a build has them.
#include <gtest/gtest.h>

#include "device/cuda_driver.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define NEVE_HAVE_CUDA_HEADER 1
#endif
#if defined(NEVE_HAVE_CUDA_HEADER) && CUDA_VERSION >= 13000
#include <cudaTypedefs.h>
#endif

namespace neve::device::cuda {
namespace {

TEST(CudaHeader, OursSaysTheSame) {
#ifdef NEVE_HAVE_CUDA_HEADER
  EXPECT_EQ(kSuccess, CUDA_SUCCESS);
  EXPECT_EQ(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(kNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC);
  EXPECT_EQ(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(kHostPortable, CU_MEMHOSTREGISTER_PORTABLE);
  EXPECT_EQ(kHostPortable, CU_MEMHOSTALLOC_PORTABLE);
  EXPECT_EQ(kAttributeMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  EXPECT_EQ(kMemoryTypeHost, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(sizeof(Pointer), sizeof(CUdeviceptr));
#else
  GTEST_SKIP() << "this build has no cuda.h";
#endif
#if defined(NEVE_HAVE_CUDA_HEADER) && CUDA_VERSION >= 13000
  EXPECT_EQ(sizeof(CopyAttributes), sizeof(CUmemcpyAttributes));
  EXPECT_EQ(offsetof(CopyAttributes, source), offsetof(CUmemcpyAttributes, srcLocHint));
  EXPECT_EQ(offsetof(CopyAttributes, target), offsetof(CUmemcpyAttributes, dstLocHint));
  EXPECT_EQ(offsetof(CopyAttributes, flags), offsetof(CUmemcpyAttributes, flags));
  EXPECT_EQ(kAccessOrderStream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  EXPECT_EQ(kPreferOverlap, static_cast<unsigned>(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE));
#endif
}

}  // namespace
}  // namespace neve::device::cuda
