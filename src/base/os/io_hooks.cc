#include "base/os/io_hooks.h"

#include <atomic>

namespace neve::os {
namespace {
std::atomic<IoHooks*> installed_hooks{nullptr};
}  // namespace

void SetIoHooks(IoHooks* hooks) { installed_hooks.store(hooks, std::memory_order_release); }
IoHooks* GetIoHooks() { return installed_hooks.load(std::memory_order_acquire); }

}  // namespace neve::os
