#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <cerrno>

#include "absl/strings/str_format.h"

namespace neve::device::cuda {
namespace {

using GetProcAddress = Result (*)(const char* symbol, void** function, int version, uint64_t flags, int* found);

constexpr int kOldestDriver = 11040;  // cuThreadExchangeStreamCaptureMode and all else that is called are older

// The driver's functions by the names under which it exports their present forms.
template <typename F>
void Resolve(void* library, const char* name, F* function, std::string* missing) {
  *function = reinterpret_cast<F>(::dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

void ResolveBatch(void* library, Driver* driver) {
  const auto get = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return;
  // By version, since one name stands for two forms with different arguments.
  void* function = nullptr;
  int found = 0;
  if (driver->version >= 13000 && get("cuMemcpyBatchAsync", &function, 13000, 0, &found) == kSuccess && found == 0 &&
      function != nullptr) {
    driver->batch_13000 = reinterpret_cast<BatchCopy13000>(function);
    return;
  }
  function = nullptr;
  if (driver->version >= 12080 && get("cuMemcpyBatchAsync", &function, 12080, 0, &found) == kSuccess && found == 0 &&
      function != nullptr) {
    driver->batch_12080 = reinterpret_cast<BatchCopy12080>(function);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Driver>> LoadDriver(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Unavailable(absl::StrFormat("no CUDA driver: %s", why == nullptr ? library : std::string(why)));
  }
  auto driver = std::make_shared<Driver>();
  driver->library = library;
  std::string missing;
  const auto resolve = [&](const char* name, auto* function) { Resolve(handle, name, function, &missing); };
  resolve("cuInit", &driver->Init);
  resolve("cuDriverGetVersion", &driver->DriverGetVersion);
  resolve("cuGetErrorName", &driver->GetErrorName);
  resolve("cuGetErrorString", &driver->GetErrorString);
  resolve("cuDeviceGetCount", &driver->DeviceGetCount);
  resolve("cuDeviceGet", &driver->DeviceGet);
  resolve("cuDeviceGetName", &driver->DeviceGetName);
  resolve("cuDevicePrimaryCtxRetain", &driver->DevicePrimaryCtxRetain);
  resolve("cuDevicePrimaryCtxRelease_v2", &driver->DevicePrimaryCtxRelease);
  resolve("cuCtxPushCurrent_v2", &driver->CtxPushCurrent);
  resolve("cuCtxPopCurrent_v2", &driver->CtxPopCurrent);
  resolve("cuThreadExchangeStreamCaptureMode", &driver->ThreadExchangeStreamCaptureMode);
  resolve("cuPointerGetAttribute", &driver->PointerGetAttribute);
  resolve("cuMemAlloc_v2", &driver->MemAlloc);
  resolve("cuMemFree_v2", &driver->MemFree);
  resolve("cuMemHostAlloc", &driver->MemHostAlloc);
  resolve("cuMemFreeHost", &driver->MemFreeHost);
  resolve("cuMemHostRegister_v2", &driver->MemHostRegister);
  resolve("cuMemHostUnregister", &driver->MemHostUnregister);
  resolve("cuStreamCreate", &driver->StreamCreate);
  resolve("cuStreamDestroy_v2", &driver->StreamDestroy);
  resolve("cuStreamIsCapturing", &driver->StreamIsCapturing);
  resolve("cuStreamWaitEvent", &driver->StreamWaitEvent);
  resolve("cuEventCreate", &driver->EventCreate);
  resolve("cuEventDestroy_v2", &driver->EventDestroy);
  resolve("cuEventRecord", &driver->EventRecord);
  resolve("cuEventQuery", &driver->EventQuery);
  resolve("cuEventSynchronize", &driver->EventSynchronize);
  resolve("cuMemcpyAsync", &driver->MemcpyAsync);
  resolve("cuModuleLoadData", &driver->ModuleLoadData);
  resolve("cuModuleGetFunction", &driver->ModuleGetFunction);
  resolve("cuLaunchKernel", &driver->LaunchKernel);
  if (!missing.empty()) {
    return Unavailable(absl::StrFormat("the CUDA driver %s lacks %s: it is older than %d.%d", library, missing,
                                       kOldestDriver / 1000, kOldestDriver % 1000 / 10));
  }
  if (const Result result = driver->Init(0); result != kSuccess) return ToStatus(*driver, result, library, "cuInit");
  if (const Result result = driver->DriverGetVersion(&driver->version); result != kSuccess) {
    return ToStatus(*driver, result, library, "cuDriverGetVersion");
  }
  if (const Result result = driver->DeviceGetCount(&driver->device_count); result != kSuccess) {
    return ToStatus(*driver, result, library, "cuDeviceGetCount");
  }
  ResolveBatch(handle, driver.get());
  return driver;
}

absl::Status ToStatus(const Driver& driver, Result result, const std::string& device, const char* call) {
  if (result == kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.GetErrorName(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (driver.GetErrorString(result, &text) != kSuccess || text == nullptr) text = "no description";
  std::string message = absl::StrFormat("%s: %s: %s (%d): %s", device, call, name, result, text);
  switch (result) {
    case kOutOfMemory:
      return Exhausted(std::move(message), ENOMEM);
    case kAlreadyRegistered:
      return absl::AlreadyExistsError(message);
    case kNotRegistered:
      return Invalid(std::move(message));
    default:
      return Unavailable(std::move(message));
  }
}

}  // namespace neve::device::cuda
