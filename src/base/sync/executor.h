// Where the state machines of neve (flush, catalog, restore, group, node) run. They know no thread, clock or random number
// but these, so the same code runs in real threads and, hundreds of ranks at once, in one seeded simulation.
//
// Rules: tasks run one at a time, in the order of Post for equal times (the simulation alone shuffles those, so that code
// which leans on the order is found). A task may Post. Destroying an executor drops what has not run. A task never blocks:
// what may block belongs to a tier or to a thread of its owner.
#ifndef NEVE_BASE_SYNC_EXECUTOR_H_
#define NEVE_BASE_SYNC_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace neve::sync {

using Nanos = int64_t;  // duration or point of the executor's own clock, which only goes forward
inline constexpr Nanos kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

class Executor {
 public:
  using Task = std::function<void()>;
  virtual ~Executor() = default;
  // Thread: any. After Stop, tasks are dropped.
  virtual void Post(Task task) = 0;
  // Runs `task` at Now() + delay or later. Thread: any.
  virtual void PostAfter(Nanos delay, Task task) = 0;
  virtual Nanos Now() const = 0;             // monotonic
  virtual int64_t WallSeconds() const = 0;   // seconds since 1970, may jump; for records and ages only
  virtual uint64_t Random() = 0;             // thread: the executor's only
  virtual bool IsCurrent() const = 0;        // whether the caller runs in a task of this executor
};

// One thread, named for `ps`, at background priority (nice 19) when asked, all signals blocked. Stop() runs what was posted
// before it, drops timers, joins; the destructor stops. Not inherited by a fork: in a forked child tasks are dropped, and
// Stop and the destructor return at once.
class ThreadExecutor : public Executor {
 public:
  struct Options {
    std::string name = "neve";
    bool background = true;
  };
  // Null when the system refuses another thread.
  static std::unique_ptr<ThreadExecutor> Create(Options options);
  // Thread: any but the executor's own.
  virtual void Stop() = 0;
  // Runs the task there and waits for it; after Stop it returns without having run it. Never call it from a task of the
  // same executor.
  virtual void Run(Task task) = 0;
};

// Seeded: picks by its random source among the tasks that are ready at the earliest time, and jumps the clock. The clock
// begins at 0. Thread: all calls from one.
class SimExecutor : public Executor {
 public:
  static std::unique_ptr<SimExecutor> Create(uint64_t seed);
  // Runs one task; false when there is none.
  virtual bool Step() = 0;
  virtual void RunUntilIdle(uint64_t step_limit = ~uint64_t{0}) = 0;
  virtual void DropAll() = 0;   // a kill: everything queued is gone; the clock goes on
};

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_EXECUTOR_H_
