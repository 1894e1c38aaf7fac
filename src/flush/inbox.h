// Inbox: where a tier's answers arrive for a state machine that lives on an executor. They may come after the machine, and even its
// executor, are gone; then they are dropped.
#ifndef NEVE_FLUSH_INBOX_H_
#define NEVE_FLUSH_INBOX_H_

#include "base/sync/executor.h"
#include "base/sync/mutex.h"

namespace neve::flush {

class Inbox {
 public:
  explicit Inbox(sync::Executor& executor) : executor_(&executor) {}
  // Thread: any. Once closed, tasks are dropped.
  void Post(const sync::Executor::Task& task) {
    sync::MutexLock lock(mutex_);
    if (executor_ != nullptr) executor_->Post(task);   // a copy, so that a dropped task dies outside of the lock
  }
  void Close() {
    sync::MutexLock lock(mutex_);
    executor_ = nullptr;
  }
  bool open() {
    sync::MutexLock lock(mutex_);
    return executor_ != nullptr;
  }

 private:
  sync::Mutex mutex_;
  sync::Executor* executor_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve::flush

#endif  // NEVE_FLUSH_INBOX_H_
