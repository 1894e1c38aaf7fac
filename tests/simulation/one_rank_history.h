// One history of one rank: saves, kills, losses of power and restarts, drawn from a seed, over a few RAM slots and a
// faulty file tier, all in one thread and simulated time.
//
// Real: flush::TierFlush, node::Retention, node::DebtOf (adoption), node::SlotToReuse, the catalog, the names, the records.
// Modelled: the memory of the RAM slots, and the process that saves.
#ifndef NEVE_TESTS_SIMULATION_ONE_RANK_HISTORY_H_
#define NEVE_TESTS_SIMULATION_ONE_RANK_HISTORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/obs/metrics.h"
#include "base/sync/executor.h"
#include "catalog/catalog.h"
#include "flush/tier_flush.h"
#include "node/retention.h"
#include "support/sim_tier.h"

namespace neve::simulation {

// What happened, over all histories: a simulation that never met a fault proves nothing.
struct Tally {
  std::map<std::string, uint64_t> counts;
  void Add(const std::string& what, uint64_t count = 1) { counts[what] += count; }
};

class OneRankHistory {
 public:
  OneRankHistory(uint64_t seed, Tally* tally);
  ~OneRankHistory();
  // Empty when every invariant held, else the first that did not.
  std::string Run();

 private:
  enum class State { kFree, kFilling, kCaptured, kSealed };
  struct Slot {
    State state = State::kFree;
    std::shared_ptr<format::CommitRecord> record;
    std::vector<std::byte> image;
    int holds = 0;  // of this life
  };
  enum class Stop { kNone, kFilling, kCaptured };  // where the process dies inside of a save

  uint64_t Below(uint64_t limit) { return executor_->Random() % limit; }
  bool Chance(uint64_t percent) { return Below(100) < percent; }
  void Fail(const std::string& what);
  void RunTasks(uint64_t count);
  template <typename T>
  absl::StatusOr<T> Wait(const std::function<void(storage::DoneWith<T>)>& start);

  void StartProcess();
  void KillProcess(bool lose_power);
  void Restart();
  void CheckRestored(const std::vector<catalog::Save>& saves);
  void CheckImageInFile(const ImageKey& key);
  std::string Bytes(const ImageKey& key) const;  // what was captured under this key, from the history's seed

  void BeginLife();
  Slot* PickSlot();
  void Save(Stop stop);
  void Flush(Slot& slot);
  void Quiesce();

  const uint64_t seed_;
  Tally& tally_;
  std::string failure_;
  std::unique_ptr<sync::SimExecutor> executor_;
  obs::Metrics metrics_;
  testing::SimFaults faults_;

  // What outlives the process.
  testing::SimDisk disk_;
  std::vector<Slot> slots_;  // three, in some histories four: never resized again

  // The configuration of this history.
  uint64_t every_ = 1;
  catalog::RetentionRule retention_;
  flush::Policy policy_;

  // The process.
  std::unique_ptr<testing::SimTier> tier_;
  std::unique_ptr<flush::TierFlush> flush_;
  std::vector<int> done_;  // how often the callback of each job of this life ran
  std::unique_ptr<node::Retention> retention_machine_;
  int rounds_ = 0;         // of retention that have not come to an end
  bool life_begun_ = false;
  SaveId next_;
  uint64_t step_ = 0;

  // What the test knows.
  std::map<SaveId, ImageKey> captured_;    // every save whose bytes were all in
  std::optional<SaveId> newest_captured_;  // since the last loss of power
  std::optional<SaveId> newest_durable_;   // whose ticket said so
};

}  // namespace neve::simulation

#endif  // NEVE_TESTS_SIMULATION_ONE_RANK_HISTORY_H_
