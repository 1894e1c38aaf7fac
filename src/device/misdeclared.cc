#include "device/misdeclared.h"

#include <dlfcn.h>

#include <memory>

#include "base/sync/mutex.h"
#include "device/cuda_driver.h"

namespace neve::device {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr int kAttributeIsManaged = 8, kMemoryTypeDevice = 2;

// The driver, once the program has loaded it; null before. Never destroyed, as the driver is not.
const cuda::Driver* LoadedDriver() {
  struct Known {
    sync::Mutex mutex;
    bool looked NEVE_GUARDED_BY(mutex) = false;
    std::shared_ptr<const cuda::Driver> driver NEVE_GUARDED_BY(mutex);
  };
  static auto* const known = new Known;
  sync::MutexLock lock(known->mutex);
  if (known->looked) return known->driver.get();
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  ::dlclose(handle);
  known->looked = true;
  if (auto driver = cuda::LoadDriver(kLibrary); driver.ok()) known->driver = *std::move(driver);
  return known->driver.get();
}

}  // namespace

bool HostCannotRead(const void* address) {
  const cuda::Driver* const driver = LoadedDriver();
  if (driver == nullptr || address == nullptr) return false;
  const auto pointer = static_cast<cuda::Pointer>(reinterpret_cast<uintptr_t>(address));
  int type = 0, managed = 0;
  if (driver->PointerGetAttribute(&type, cuda::kAttributeMemoryType, pointer) != cuda::kSuccess || type != kMemoryTypeDevice) return false;
  return driver->PointerGetAttribute(&managed, kAttributeIsManaged, pointer) != cuda::kSuccess || managed == 0;
}

}  // namespace neve::device
