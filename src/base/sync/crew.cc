#include "base/sync/crew.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/os/thread.h"

namespace neve::sync {
namespace {

// Plain futexes rather than std::atomic::wait: one call wakes exactly as many helpers as there is work for.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>& word, int count) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// A lock that a fork cannot leave held for ever: one that was taken in an ancestor process counts as free.
class GenerationLock {
 public:
  void Lock(uint32_t generation) {
    const uint32_t held = generation * 2 + 1;  // odd: taken; tells by whom's process
    while (true) {
      uint32_t seen = word_.load(std::memory_order_relaxed);
      if (seen == held) {
        FutexWait(word_, held);
      } else if (word_.compare_exchange_weak(seen, held, std::memory_order_acquire)) {
        return;
      }
    }
  }
  void Unlock() {
    word_.store(0, std::memory_order_release);
    FutexWake(word_, 1);
  }

 private:
  std::atomic<uint32_t> word_{0};
};

// Protocol of one run:
//   caller   puts the work in place, opens the gate, moves the epoch on, wakes helpers, works, shuts the gate, waits until
//            no helper is inside
//   helper   sleeps on the epoch; on a new one enters through the gate if it is open, works, leaves
// A helper that wakes late finds the gate shut: the caller never waits for one that has not begun.
class ThreadCrew final : public Crew {
 public:
  ThreadCrew(int helpers, bool background) : background_(background), generation_(os::ForkGeneration()) {
    helpers_.reserve(static_cast<size_t>(std::max(helpers, 0)));
    for (int i = 0; i < helpers; ++i) helpers_.push_back({this, i + 1, pthread_t{}});
    size_t started = 0;
    while (started < helpers_.size() && os::StartThread(&HelperMain, &helpers_[started], &helpers_[started].thread)) {
      ++started;
    }
    helpers_.resize(started, {});  // fewer when the system refuses threads
  }

  ~ThreadCrew() override {
    if (Forked()) return;  // the helpers live in the parent only
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    FutexWake(epoch_, static_cast<int>(helpers_.size()));
    for (const Helper& helper : helpers_) ::pthread_join(helper.thread, nullptr);
  }

  int threads() const override { return static_cast<int>(helpers_.size()) + 1; }

  void Run(uint64_t parts, PartFn fn) override {
    if (parts == 0) return;
    run_lock_.Lock(static_cast<uint32_t>(os::ForkGeneration()));
    if (parts == 1 || helpers_.empty() || Forked()) {
      for (uint64_t part = 0; part < parts; ++part) fn(part, 0);
      run_lock_.Unlock();
      return;
    }
    fn_ = &fn;
    parts_ = parts;
    next_part_.store(0, std::memory_order_relaxed);
    gate_.fetch_or(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
    FutexWake(epoch_, static_cast<int>(std::min<uint64_t>(parts - 1, helpers_.size())));
    Work(0);
    uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (gate != 0) {
      FutexWait(gate_, gate);
      gate = gate_.load(std::memory_order_acquire);
    }
    run_lock_.Unlock();
  }

 private:
  struct Helper {
    ThreadCrew* crew;
    int worker;
    pthread_t thread;
  };
  static constexpr uint32_t kOpen = 1u << 31;  // of gate_; the rest counts the helpers inside

  static void* HelperMain(void* argument) {
    const auto* const helper = static_cast<const Helper*>(argument);
    os::NameThisThread("neve-crew-" + std::to_string(helper->worker));
    helper->crew->HelpUntilStopped(helper->worker);
    return nullptr;
  }

  void HelpUntilStopped(int worker) {
    if (background_) os::MakeThisThreadBackground();
    uint32_t seen = 0;
    while (true) {
      const uint32_t epoch = epoch_.load(std::memory_order_acquire);
      if (epoch == seen) {
        FutexWait(epoch_, seen);
        continue;
      }
      seen = epoch;
      if (stop_.load(std::memory_order_relaxed)) return;
      if (!Enter()) continue;
      Work(worker);
      // The last one out of a shut gate wakes the caller.
      if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) FutexWake(gate_, 1);
    }
  }

  bool Enter() {
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0) {
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }

  void Work(int worker) {
    while (true) {
      const uint64_t part = next_part_.fetch_add(1, std::memory_order_relaxed);
      if (part >= parts_) return;
      (*fn_)(part, worker);
    }
  }

  bool Forked() const { return os::ForkGeneration() != generation_; }

  const bool background_;
  const uint64_t generation_;
  std::vector<Helper> helpers_;  // fixed once the constructor is done

  GenerationLock run_lock_;  // one Run at a time
  // Of the present run: written by its caller while the gate is shut and nobody is inside.
  const PartFn* fn_ = nullptr;
  uint64_t parts_ = 0;
  // Apart from what is read only: the counters are written by all.
  alignas(64) std::atomic<uint64_t> next_part_{0};
  alignas(64) std::atomic<uint32_t> gate_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace

std::unique_ptr<Crew> Crew::Create(int helpers, bool background) {
  return std::make_unique<ThreadCrew>(helpers, background);
}

}  // namespace neve::sync
