// Retention: takes the saves that the rule does not keep out of one durable tier, whenever a newer one has become durable there.
//
// A state machine: its events are MadeDurable, NoteTags and completions of the tier (posted to the executor). All calls are made
// on the executor's thread but NoteTags.
//
// Invariants
//   - Nothing as new as the newest save that this life reported durable goes: a record that is seen may not be durable yet.
//   - Of several ranks each retires its own images (and those of ranks that the world has no more), once the tier shows newer saves
//     that are complete over all ranks and made durable. In a tier that does not show the images of all ranks (a disk of each host)
//     what the ranks tell each other counts instead: each said it when its own was durable. Without that nothing goes there.
//   - best= of several ranks goes by rank 0's records, so where these are not shown it counts on listings alone.
//   - What `held` names (an open image reads it), what is pinned, and the best by tag stay.
//   - At most one round at a time; what becomes durable during one begins another after it.
//   - A tier that cannot be listed, or an image that cannot be retired, is logged and tried again in the next round.
#ifndef NEVE_NODE_RETENTION_H_
#define NEVE_NODE_RETENTION_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/error/status.h"
#include "base/obs/metrics.h"
#include "base/sync/executor.h"
#include "base/sync/mutex.h"
#include "catalog/catalog.h"
#include "flush/inbox.h"
#include "neve/types.h"
#include "storage/tier.h"

namespace neve::node {

class Retention {
 public:
  // `held`, and `told` (what all ranks have said that they have here; none: nobody says), are asked on the executor.
  // Everything given outlives this object; the tier may answer later.
  Retention(storage::Tier& tier, sync::Executor& executor, obs::Metrics& metrics, catalog::RetentionRule rule, uint32_t rank,
            std::function<std::set<SaveId>()> held, uint32_t world = 1, std::function<std::set<SaveId>()> told = {});
  ~Retention();   // what the tier answers later is dropped

  // `save` is durable in the tier. Begins a round where the rule keeps a number only; `idle` runs when no round is left.
  void MadeDurable(const SaveId& save, std::function<void()> idle);
  // Tags of a save of this life, for best=; those of earlier lives are read from their records. Thread: any.
  void NoteTags(const SaveId& save, const Tags& tags);
  bool Idle() const { return !busy_; }
  const std::optional<SaveId>& newest_durable() const { return newest_durable_; }

 private:
  void Begin();
  void Listed(absl::StatusOr<storage::Listing> listing, bool settled = false);
  void Retire(const std::vector<ImageKey>& victims);
  void OneDone();

  storage::Tier& tier_;
  obs::Metrics& metrics_;
  const catalog::RetentionRule rule_;
  const uint32_t rank_, world_;
  const std::function<std::set<SaveId>()> held_, told_;
  std::optional<SaveId> newest_durable_;
  bool busy_ = false, again_ = false;
  bool warned_ = false;                             // that nothing here is complete
  size_t left_ = 0;                                 // retirements of this round that have not answered, and one for the round
  std::vector<std::function<void()>> idle_;
  sync::Mutex mutex_;
  std::map<SaveId, Tags> tags_ NEVE_GUARDED_BY(mutex_);
  const std::shared_ptr<flush::Inbox> inbox_;
};

}  // namespace neve::node

#endif  // NEVE_NODE_RETENTION_H_
