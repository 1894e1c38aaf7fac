// The CUDA driver, found at run time: the functions that neve calls, declared here so that a build needs no CUDA. A test compares
// them with cuda.h where that is installed.
//
// Nothing of CUDA is linked. A CUDA runtime linked in would refuse an older driver under which the program's torch works; the
// driver itself is as old as it is, and what it lacks (batched copies) is done without.
#ifndef NEVE_DEVICE_CUDA_DRIVER_H_
#define NEVE_DEVICE_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error/status.h"

namespace neve::device::cuda {

using Result = int;                  // CUresult
using Pointer = unsigned long long;  // CUdeviceptr
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600, kAlreadyRegistered = 712,
                        kNotRegistered = 713;
inline constexpr unsigned kStreamNonBlocking = 1, kEventBlockingSync = 1, kEventDisableTiming = 2, kHostPortable = 1;
inline constexpr int kAttributeMemoryType = 2, kMemoryTypeHost = 1;
inline constexpr int kCaptureNone = 0, kCaptureModeRelaxed = 2;
inline constexpr int kAccessOrderStream = 1;
inline constexpr unsigned kPreferOverlap = 1;

struct MemoryLocation {  // CUmemLocation
  int type = 0, id = 0;
};
struct CopyAttributes {  // CUmemcpyAttributes
  int source_order = 0;
  MemoryLocation source, target;
  unsigned flags = 0;
};

using BatchCopy13000 = Result (*)(Pointer* targets, Pointer* sources, size_t* bytes, size_t count, CopyAttributes* attributes,
                                  size_t* attribute_first, size_t attribute_count, Stream stream);
using BatchCopy12080 = Result (*)(Pointer* targets, Pointer* sources, size_t* bytes, size_t count, CopyAttributes* attributes,
                                  size_t* attribute_first, size_t attribute_count, size_t* failed, Stream stream);

// Never unloaded: the program may use the same driver until it ends.
struct Driver {
  std::string library;
  int version = 0;  // 13000 for 13.0
  int device_count = 0;

  Result (*Init)(unsigned) = nullptr;
  Result (*DriverGetVersion)(int*) = nullptr;
  Result (*GetErrorName)(Result, const char**) = nullptr;
  Result (*GetErrorString)(Result, const char**) = nullptr;
  Result (*DeviceGetCount)(int*) = nullptr;
  Result (*DeviceGet)(int*, int) = nullptr;
  Result (*DeviceGetName)(char*, int, int) = nullptr;
  Result (*DevicePrimaryCtxRetain)(Context*, int) = nullptr;
  Result (*DevicePrimaryCtxRelease)(int) = nullptr;
  Result (*CtxPushCurrent)(Context) = nullptr;
  Result (*CtxPopCurrent)(Context*) = nullptr;
  Result (*ThreadExchangeStreamCaptureMode)(int*) = nullptr;
  Result (*PointerGetAttribute)(void*, int, Pointer) = nullptr;
  Result (*MemAlloc)(Pointer*, size_t) = nullptr;
  Result (*MemFree)(Pointer) = nullptr;
  Result (*MemHostAlloc)(void**, size_t, unsigned) = nullptr;
  Result (*MemFreeHost)(void*) = nullptr;
  Result (*MemHostRegister)(void*, size_t, unsigned) = nullptr;
  Result (*MemHostUnregister)(void*) = nullptr;
  Result (*StreamCreate)(Stream*, unsigned) = nullptr;
  Result (*StreamDestroy)(Stream) = nullptr;
  Result (*StreamIsCapturing)(Stream, int*) = nullptr;
  Result (*StreamWaitEvent)(Stream, Event, unsigned) = nullptr;
  Result (*EventCreate)(Event*, unsigned) = nullptr;
  Result (*EventDestroy)(Event) = nullptr;
  Result (*EventRecord)(Event, Stream) = nullptr;
  Result (*EventQuery)(Event) = nullptr;
  Result (*EventSynchronize)(Event) = nullptr;
  Result (*MemcpyAsync)(Pointer, Pointer, size_t, Stream) = nullptr;
  Result (*ModuleLoadData)(Module*, const void*) = nullptr;
  Result (*ModuleGetFunction)(Function*, Module, const char*) = nullptr;
  Result (*LaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                         void**) = nullptr;
  // At most one of them: the newest form that the driver has.
  BatchCopy13000 batch_13000 = nullptr;
  BatchCopy12080 batch_12080 = nullptr;
};

// Opens the library and begins with it. Unavailable says what was looked for and what is missing; nothing is left behind then.
absl::StatusOr<std::shared_ptr<const Driver>> LoadDriver(const std::string& library = "libcuda.so.1");

// "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" as Exhausted; 712 as AlreadyExists, 713 as Invalid, else Unavailable.
absl::Status ToStatus(const Driver& driver, Result result, const std::string& device, const char* call);

}  // namespace neve::device::cuda

#endif  // NEVE_DEVICE_CUDA_DRIVER_H_
