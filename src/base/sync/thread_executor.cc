#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <ctime>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error/check.h"
#include "base/os/random.h"
#include "base/os/thread.h"
#include "base/sync/executor.h"
#include "base/sync/mutex.h"
#include "base/sync/notification.h"
#include "base/sync/seeded_random.h"

namespace neve::sync {
namespace {

thread_local const void* running_core = nullptr;  // the executor whose thread this is

Nanos SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Nanos AddSaturating(Nanos time, Nanos delay) {
  constexpr Nanos kEnd = std::numeric_limits<Nanos>::max();
  return delay > kEnd - time ? kEnd : time + delay;
}

struct Entry {
  Nanos due;
  uint64_t order;  // of posting
  bool timer;
  Executor::Task task;
};

// For std::push_heap and pop_heap: the earliest comes out first.
bool Later(const Entry& a, const Entry& b) { return a.due != b.due ? a.due > b.due : a.order > b.order; }

// What the thread works on. In a forked child it is abandoned as it is: its lock may be held, its condition has waiters
// that do not exist there, and its tasks belong to the parent.
class Core {
 public:
  Core* next_abandoned = nullptr;

  explicit Core(ThreadExecutor::Options options) : options_(std::move(options)), random_(Seed()) {}

  bool Start() {
    MutexLock lock(stop_mutex_);
    joined_ = !os::StartThread(&Core::Main, this, &thread_);
    return !joined_;
  }

  bool Push(Nanos delay, Executor::Task task) {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    entries_.push_back({AddSaturating(SteadyNow(), std::max<Nanos>(delay, 0)), next_order_++, delay > 0, std::move(task)});
    std::push_heap(entries_.begin(), entries_.end(), &Later);
    changed_.NotifyOne();
    return true;
  }

  void Stop() {
    std::vector<Entry> dropped;  // their destructors run after the lock is released
    {
      MutexLock stop_lock(stop_mutex_);
      if (joined_) return;
      {
        MutexLock lock(mutex_);
        stopping_ = true;
        const auto timers = std::stable_partition(entries_.begin(), entries_.end(), [](const Entry& e) { return !e.timer; });
        std::move(timers, entries_.end(), std::back_inserter(dropped));
        entries_.erase(timers, entries_.end());
        std::make_heap(entries_.begin(), entries_.end(), &Later);
        changed_.NotifyOne();
      }
      ::pthread_join(thread_, nullptr);
      joined_ = true;
    }
  }

  uint64_t Random() { return random_.Next(); }

 private:
  static uint64_t Seed() {
    std::array<uint8_t, sizeof(uint64_t)> bytes;
    os::FillRandom(bytes);
    return std::bit_cast<uint64_t>(bytes);
  }

  static void* Main(void* core) {
    static_cast<Core*>(core)->Loop();
    return nullptr;
  }

  void Loop() {
    os::NameThisThread(options_.name);
    if (options_.background) os::MakeThisThreadBackground();
    running_core = this;
    while (std::optional<Executor::Task> task = Next()) (*task)();
    running_core = nullptr;
  }

  // Waits for a task that is due; nothing once stopped and empty.
  std::optional<Executor::Task> Next() {
    MutexLock lock(mutex_);
    while (true) {
      if (entries_.empty()) {
        if (stopping_) return std::nullopt;
        changed_.Wait(mutex_, [this] { return stopping_ || !entries_.empty(); });
        continue;
      }
      const Nanos due = entries_.front().due;
      if (due > SteadyNow()) {
        const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(due)};
        changed_.WaitUntil(mutex_, deadline, [&] { return stopping_ || entries_.empty() || entries_.front().due != due; });
        continue;
      }
      std::pop_heap(entries_.begin(), entries_.end(), &Later);
      Executor::Task task = std::move(entries_.back().task);
      entries_.pop_back();
      return task;
    }
  }

  const ThreadExecutor::Options options_;
  pthread_t thread_{};
  SeededRandom random_;  // the thread's own

  Mutex mutex_;
  Condition changed_;
  std::vector<Entry> entries_ NEVE_GUARDED_BY(mutex_);  // a heap
  uint64_t next_order_ NEVE_GUARDED_BY(mutex_) = 0;
  bool stopping_ NEVE_GUARDED_BY(mutex_) = false;

  Mutex stop_mutex_;  // one Stop at a time; a second one waits for the first
  bool joined_ NEVE_GUARDED_BY(stop_mutex_) = false;
};

// Cores of the parent that a forked child let go of; listed only so that leak checkers see who still points to them.
std::atomic<Core*> abandoned_cores{nullptr};

class RealThreadExecutor final : public ThreadExecutor {
 public:
  explicit RealThreadExecutor(std::unique_ptr<Core> core) : core_(std::move(core)), generation_(os::ForkGeneration()) {}

  ~RealThreadExecutor() override {
    if (Forked()) {
      Core* const core = core_.release();
      core->next_abandoned = abandoned_cores.exchange(core);
      return;
    }
    Stop();
  }

  void Post(Task task) override { Push(0, std::move(task)); }
  void PostAfter(Nanos delay, Task task) override { Push(delay, std::move(task)); }
  Nanos Now() const override { return SteadyNow(); }
  int64_t WallSeconds() const override { return static_cast<int64_t>(std::time(nullptr)); }
  uint64_t Random() override { return core_->Random(); }
  bool IsCurrent() const override { return running_core == core_.get(); }

  void Stop() override {
    if (Forked()) return;
    NEVE_CHECK(!IsCurrent());  // it would wait for itself
    core_->Stop();
  }

  void Run(Task task) override {
    NEVE_CHECK(!IsCurrent());
    Result<bool> done;
    const bool pushed = Push(0, [&] {
      task();
      done.Set(true);
    });
    if (pushed) done.Take();
  }

 private:
  bool Push(Nanos delay, Task task) { return !Forked() && core_->Push(delay, std::move(task)); }
  bool Forked() const { return os::ForkGeneration() != generation_; }

  std::unique_ptr<Core> core_;
  const uint64_t generation_;
};

}  // namespace

std::unique_ptr<ThreadExecutor> ThreadExecutor::Create(Options options) {
  auto core = std::make_unique<Core>(std::move(options));
  if (!core->Start()) return nullptr;
  return std::make_unique<RealThreadExecutor>(std::move(core));
}

}  // namespace neve::sync
