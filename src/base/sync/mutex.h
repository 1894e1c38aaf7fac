// std::mutex with clang's thread-safety annotations. (Debian's absl::Mutex is not built for ThreadSanitizer.)
#ifndef NEVE_BASE_SYNC_MUTEX_H_
#define NEVE_BASE_SYNC_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define NEVE_ANNOTATE(x) __attribute__((x))
#else
#define NEVE_ANNOTATE(x)
#endif
#define NEVE_GUARDED_BY(m) NEVE_ANNOTATE(guarded_by(m))
#define NEVE_REQUIRES(m) NEVE_ANNOTATE(requires_capability(m))
#define NEVE_EXCLUDES(m) NEVE_ANNOTATE(locks_excluded(m))

namespace neve::sync {

class NEVE_ANNOTATE(capability("mutex")) Mutex {
 public:
  void Lock() NEVE_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void Unlock() NEVE_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

class NEVE_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) NEVE_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() NEVE_ANNOTATE(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits with the mutex held; always re-check the predicate in a loop or use the predicate forms.
class Condition {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }
  template <typename Predicate>
  void Wait(Mutex& mutex, Predicate predicate) NEVE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock, predicate);
    lock.release();
  }
  // False when the deadline passed and the predicate is still false.
  // The same by seconds from now; < 0: no deadline.
  template <typename Predicate>
  bool WaitFor(Mutex& mutex, double seconds, Predicate predicate) NEVE_REQUIRES(mutex) {
    constexpr double kLongest = 1e9;   // beyond this a deadline overflows the clock
    if (seconds < 0 || seconds > kLongest) {
      Wait(mutex, predicate);
      return true;
    }
    return WaitUntil(mutex, std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)), predicate);
  }
  template <typename Predicate>
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline, Predicate predicate) NEVE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool held = condition_.wait_until(lock, deadline, predicate);
    lock.release();
    return held;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_MUTEX_H_
