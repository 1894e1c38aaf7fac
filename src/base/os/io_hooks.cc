#include "base/os/io_hooks.h"

#include <atomic>
#include <thread>

namespace neve::os {
namespace {
std::atomic<IoHooks*> installed_hooks{nullptr};
std::atomic<int> in_use{0};
}  // namespace

void SetIoHooks(IoHooks* hooks) {
  installed_hooks.store(hooks);
  while (in_use.load() > 0) std::this_thread::yield();
}

// Counted before they are looked at again: whoever takes them away sees the count, or this sees them gone.
IoHooksInUse::IoHooksInUse() {
  if (installed_hooks.load(std::memory_order_acquire) == nullptr) return;
  in_use.fetch_add(1);
  hooks_ = installed_hooks.load();
  if (hooks_ == nullptr) in_use.fetch_sub(1);
}

IoHooksInUse::~IoHooksInUse() {
  if (hooks_ != nullptr) in_use.fetch_sub(1);
}

}  // namespace neve::os
