// TicketImpl: the stages of one save, set by the engine, waited for by anybody.
#ifndef NEVE_ENGINE_TICKET_H_
#define NEVE_ENGINE_TICKET_H_

#include <map>
#include <string>
#include <vector>

#include "base/os/unique_handle.h"
#include "base/sync/mutex.h"
#include "capture/device_save.h"
#include "engine/tier_standing.h"
#include "neve/engine.h"

namespace neve {

class TicketImpl : public Ticket {
 public:
  // `due`: tier names in order, nearest first. `ranks`: with more than one, "complete" and "complete:<tier>" are told by Completed;
  // alone they follow from the other stages. `others`: tiers that only another rank brings the save to, which is no stage here but that
  // it is complete there.
  TicketImpl(uint64_t step, SaveId save, std::vector<std::string> due, uint32_t ranks = 1, const std::vector<std::string>& others = {});

  uint64_t step() const override { return step_; }
  SaveId save_id() const override { return save_; }
  absl::Status Wait(std::string_view stage, double timeout_s) const override;
  std::vector<std::pair<std::string, StageState>> Stages() const override;
  absl::Status Error() const override;
  int Descriptor() const override { return event_.get(); }
  absl::Status Fence(std::span<const DeviceStream> streams, double timeout_s) override;
  std::map<std::string, std::string> Places() const override;
  // What a wait that ends too early says of its tiers; before the ticket is given out.
  void TellsOf(std::shared_ptr<const engine::TierStanding> standing);
  void CopiesFrom(std::shared_ptr<capture::DeviceSave> save);   // what Fence waits for; before the ticket is given out

  // Each stage is set once; "done" and "complete" follow from the others.
  void Reached(const std::string& stage, const std::string& place = "");
  void Failed(const std::string& stage, absl::Status status);
  void Skipped(const std::string& stage, absl::Status status);   // no failure of the save: `wait` for it gives `status`
  void FailRest(absl::Status status);    // every stage still pending
  void SkipAll(absl::Status status);     // the save never happened: `wait` gives `status`
  // Every rank has committed it: in the tier of that name, or "" in one tier or another.
  void Completed(const std::string& tier);
  void MissingIs(const std::string& who);      // for the message of a wait that ends before that
  void NeverCompleted(absl::Status status);    // nobody looks any more: `wait` for what is still pending of it gives `status`
  void NeverCompletedIn(const std::string& tier, absl::Status status);   // the same for one tier, or "" for all together
  bool CompletionPending() const;
  bool CompletionPendingIn(const std::string& tier) const;

 private:
  struct StageEntry {
    std::string name;
    StageState state = StageState::kPending;
    absl::Status status;
  };
  StageEntry* FindLocked(std::string_view stage) const NEVE_REQUIRES(mutex_);
  StageEntry* FindCompleteLocked(std::string_view tier) const NEVE_REQUIRES(mutex_);
  std::string PendingLocked(std::string_view stage) const NEVE_REQUIRES(mutex_);   // why it has not come, as far as is known
  void DeriveLocked() NEVE_REQUIRES(mutex_);
  void Announce() const;

  const uint64_t step_;
  const SaveId save_;
  os::UniqueFd event_;
  mutable sync::Mutex mutex_;
  mutable sync::Condition changed_;
  const bool many_;                                                           // ranks
  const bool others_;                                                         // bring it to a tier that this one does not
  mutable std::vector<StageEntry> stages_ NEVE_GUARDED_BY(mutex_);
  mutable std::vector<StageEntry> complete_in_ NEVE_GUARDED_BY(mutex_);       // of many ranks, by tier
  std::string missing_ NEVE_GUARDED_BY(mutex_);
  std::shared_ptr<const engine::TierStanding> standing_ NEVE_GUARDED_BY(mutex_);   // null: nothing is known
  absl::Status error_ NEVE_GUARDED_BY(mutex_);
  std::map<std::string, std::string> places_ NEVE_GUARDED_BY(mutex_);
  std::shared_ptr<capture::DeviceSave> device_save_ NEVE_GUARDED_BY(mutex_);   // null: a state in host memory
};

}  // namespace neve

#endif  // NEVE_ENGINE_TICKET_H_
