// One history of a few ranks, each on a host with a disk of its own: saves, kills of one or all, losses of power, faults of the disks
// and of the network, drawn from a seed, all in one thread and simulated time.
//
// Real: group::Control on every rank, flush::TierFlush, node::Retention by what is told, the catalog, restore::FindCommon, the names,
// the records. Modelled: the processes that save, and the network between them.
#ifndef NEVE_TESTS_SIMULATION_MANY_HOSTS_HISTORY_H_
#define NEVE_TESTS_SIMULATION_MANY_HOSTS_HISTORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/obs/metrics.h"
#include "base/sync/executor.h"
#include "catalog/catalog.h"
#include "flush/tier_flush.h"
#include "node/retention.h"
#include "simulation/one_rank_history.h"
#include "support/sim_control.h"
#include "support/sim_tier.h"

namespace neve::simulation {

class ManyHostsHistory {
 public:
  ManyHostsHistory(uint64_t seed, Tally* tally);
  ~ManyHostsHistory();
  // Empty when every invariant held, else the first that did not.
  std::string Run();

 private:
  struct Host {
    explicit Host(uint64_t seed) : disk(seed) {}
    testing::SimDisk disk;
    testing::SimFaults faults;
    std::unique_ptr<testing::SimTier> tier;
    std::unique_ptr<flush::TierFlush> flush;
    std::unique_ptr<node::Retention> retention;
    bool lives = false;
  };
  uint64_t Below(uint64_t limit) { return executor_->Random() % limit; }
  bool Chance(uint64_t percent) { return Below(100) < percent; }
  void Fail(const std::string& what);
  void RunFor(sync::Nanos time);
  template <typename T>
  absl::StatusOr<T> Wait(const std::function<void(storage::DoneWith<T>)>& start);
  void SetFaults(bool on);

  void StartLife();
  void Kill(uint32_t rank);
  void KillAll(bool lose_power);
  void CheckRestored();
  void CheckImage(uint32_t rank, const ImageKey& key);
  std::string Bytes(const ImageKey& key) const;
  void Step();                                   // a save of all that live
  void Save(uint32_t rank);
  void Told(uint32_t rank);
  void Quiesce();
  bool All(const SaveId& save) const;            // all ranks' callbacks said durable

  const uint64_t seed_;
  Tally& tally_;
  std::string failure_;
  std::unique_ptr<sync::SimExecutor> executor_;
  obs::Metrics metrics_;
  uint32_t world_ = 2, fan_out_ = 2;
  catalog::RetentionRule rule_;
  flush::Policy policy_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<testing::SimTier>> graves_;   // of killed processes, until nothing refers to them
  std::unique_ptr<testing::SimControl> net_;
  uint32_t life_ = 0;
  std::vector<uint64_t> next_;                   // sequence, by rank
  uint64_t step_ = 0;                            // of this life
  std::map<SaveId, std::set<uint32_t>> durable_; // what the test knows: who was told that its own is durable
  std::optional<SaveId> whole_;                  // the newest of which all were
};

}  // namespace neve::simulation

#endif  // NEVE_TESTS_SIMULATION_MANY_HOSTS_HISTORY_H_
