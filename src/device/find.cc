#include "absl/strings/str_format.h"
#include "base/sync/mutex.h"
#include "device/device.h"

namespace neve::device {
namespace {

sync::Mutex mutex;
std::shared_ptr<Device> used NEVE_GUARDED_BY(mutex);

}  // namespace

void Use(std::shared_ptr<Device> device) {
  sync::MutexLock lock(mutex);
  used = std::move(device);
}

absl::StatusOr<std::shared_ptr<Device>> Find(int ordinal) {
  sync::MutexLock lock(mutex);
  if (used != nullptr) return used;
  return Unsupported(absl::StrFormat("device %d: this build cannot use CUDA", ordinal));
}

std::string Describe() { return "this build cannot use CUDA"; }

}  // namespace neve::device
