// A one-shot event: waits for an asynchronous call from a thread that may block.
#ifndef NEVE_BASE_SYNC_NOTIFICATION_H_
#define NEVE_BASE_SYNC_NOTIFICATION_H_

#include <chrono>
#include <utility>

#include "base/sync/mutex.h"

namespace neve::sync {

// Holds the result of an asynchronous call. Set() once; Take() waits for it.
template <typename T>
class Result {
 public:
  void Set(T value) {
    MutexLock lock(mutex_);
    value_ = std::move(value);
    set_ = true;
    condition_.NotifyAll();
  }
  T Take() {
    MutexLock lock(mutex_);
    condition_.Wait(mutex_, [this] { return set_; });
    return std::move(value_);
  }

 private:
  Mutex mutex_;
  Condition condition_;
  bool set_ = false;
  T value_{};
};

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_NOTIFICATION_H_
