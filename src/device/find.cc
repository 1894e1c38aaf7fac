#include <cstdlib>
#include <map>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/sync/mutex.h"
#include "device/cuda_device.h"
#include "device/device.h"
#include "device/simulated.h"
#include "kernels/fatbin.h"

namespace neve::device {
namespace {

struct Known {
  sync::Mutex mutex;
  std::shared_ptr<Device> used NEVE_GUARDED_BY(mutex);
  std::optional<absl::StatusOr<std::shared_ptr<const cuda::Driver>>> driver NEVE_GUARDED_BY(mutex);
  std::map<int, std::shared_ptr<Device>> devices NEVE_GUARDED_BY(mutex);
};

// Never destroyed: at the end of a process the driver may be gone before us, and releases the contexts itself.
Known& TheKnown() {
  static auto* const known = new Known;
  return *known;
}

// NEVE_DEVICE=simulated, or simulated:RATE with the bandwidth in bytes a second: for programs without a GPU that try their
// fences.
std::shared_ptr<Device> OfEnvironment() {
  const char* const text = std::getenv("NEVE_DEVICE");
  if (text == nullptr || std::string_view(text).substr(0, 9) != "simulated") return nullptr;
  SimulatedOptions options;
  options.memory_bytes = uint64_t{4} << 30;  // taken only as it is used
  options.default_pace = Pace::kEager;
  options.paces = {Pace::kEager, Pace::kEager};
  options.slice_bytes = 1 << 20;
  options.adopts_host = true;
  if (text[9] == ':') options.bytes_per_s = std::strtod(text + 10, nullptr);
  return Simulated::Create(options);
}

absl::StatusOr<std::shared_ptr<const cuda::Driver>> DriverLocked(Known& known) NEVE_REQUIRES(known.mutex) {
  if (!known.driver.has_value()) known.driver = cuda::LoadDriver();
  return *known.driver;
}

}  // namespace

void Use(std::shared_ptr<Device> device) {
  Known& known = TheKnown();
  sync::MutexLock lock(known.mutex);
  known.used = std::move(device);
}

absl::StatusOr<std::shared_ptr<Device>> Find(int ordinal) {
  Known& known = TheKnown();
  sync::MutexLock lock(known.mutex);
  if (known.used == nullptr) known.used = OfEnvironment();
  if (known.used != nullptr) return known.used;
  if (const auto found = known.devices.find(ordinal); found != known.devices.end()) return found->second;
  NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<const cuda::Driver> driver, DriverLocked(known));
  NEVE_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, MakeCudaDevice(driver, ordinal));
  known.devices[ordinal] = device;
  return device;
}

absl::StatusOr<std::string> Describe() {
  Known& known = TheKnown();
  sync::MutexLock lock(known.mutex);
  if (known.used == nullptr) known.used = OfEnvironment();
  if (known.used != nullptr) return known.used->name();
  NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<const cuda::Driver> driver, DriverLocked(known));
  std::string text = absl::StrFormat("driver %d.%d", driver->version / 1000, driver->version % 1000 / 10);
  for (int i = 0; i < driver->device_count; ++i) {
    int handle = 0;
    char name[256] = "unknown";
    if (driver->DeviceGet(&handle, i) == cuda::kSuccess) driver->DeviceGetName(name, sizeof name - 1, handle);
    text += absl::StrFormat(", cuda:%d %s", i, name);
  }
  if (driver->device_count == 0) return Unavailable(text + " shows no device");
  text += driver->batch_13000 != nullptr   ? ", batched copies (13.0)"
          : driver->batch_12080 != nullptr ? ", batched copies (12.8)"
                                           : ", no batched copies";
  text +=
      kernels::Fatbin().empty() ? ", built without kernels" : absl::StrFormat(", kernels of %d bytes", kernels::Fatbin().size());
  return text;
}

}  // namespace neve::device
