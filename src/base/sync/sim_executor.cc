#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/sync/executor.h"
#include "base/sync/seeded_random.h"

namespace neve::sync {
namespace {

constexpr int64_t kWallSecondsAtStart = 1'700'000'000;  // an arbitrary date, the same in every simulation

// One thread: nothing here is locked.
class RealSimExecutor final : public SimExecutor {
 public:
  explicit RealSimExecutor(uint64_t seed) : random_(seed) {}
  ~RealSimExecutor() override { DropAll(); }

  void Post(Task task) override { PostAfter(0, std::move(task)); }

  void PostAfter(Nanos delay, Task task) override {
    if (dropping_) return;
    delay = std::clamp<Nanos>(delay, 0, std::numeric_limits<Nanos>::max() - now_);
    queue_[now_ + delay].push_back(std::move(task));
  }

  Nanos Now() const override { return now_; }
  int64_t WallSeconds() const override { return kWallSecondsAtStart + now_ / kSecond; }
  uint64_t Random() override { return random_.Next(); }
  bool IsCurrent() const override { return running_; }

  bool Step() override {
    if (queue_.empty()) return false;
    const auto earliest = queue_.begin();
    now_ = earliest->first;
    std::vector<Task>& ready = earliest->second;
    std::swap(ready[random_.Below(ready.size())], ready.back());
    const Task task = std::move(ready.back());
    ready.pop_back();
    if (ready.empty()) queue_.erase(earliest);
    running_ = true;
    task();
    running_ = false;
    return true;
  }

  void RunUntilIdle(uint64_t step_limit) override {
    for (uint64_t step = 0; step < step_limit && Step(); ++step) {
    }
  }

  void DropAll() override {
    // What a dropped task holds may post from its destructor: gone like all the rest.
    dropping_ = true;
    queue_.clear();
    dropping_ = false;
  }

 private:
  SeededRandom random_;
  Nanos now_ = 0;
  bool running_ = false;
  bool dropping_ = false;
  std::map<Nanos, std::vector<Task>> queue_;
};

}  // namespace

std::unique_ptr<SimExecutor> SimExecutor::Create(uint64_t seed) { return std::make_unique<RealSimExecutor>(seed); }

}  // namespace neve::sync
