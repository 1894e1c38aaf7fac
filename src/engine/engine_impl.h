// EngineImpl: puts the modules together for one rank.
//
// Threads: Save runs on the caller's thread under save_mutex_; flush, guards and retention run on executor_; tiers have threads
// of their own. Bytes move one way: tensors -> entry of the pool -> tier; only status travels back.
//
// Destruction order is the reverse of the members': flushes and executor first, then the pool, then the tiers.
#ifndef NEVE_ENGINE_ENGINE_IMPL_H_
#define NEVE_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/obs/metrics.h"
#include "base/os/process.h"
#include "base/sync/crew.h"
#include "base/sync/executor.h"
#include "base/sync/mutex.h"
#include "base/sync/termination.h"
#include "capture/device_save.h"
#include "catalog/catalog.h"
#include "device/registrations.h"
#include "engine/find_refusals.h"
#include "engine/opened_image.h"
#include "engine/save_opener.h"
#include "engine/state.h"
#include "engine/ticket.h"
#include "engine/tier_standing.h"
#include "engine/watermark.h"
#include "flush/tier_flush.h"
#include "format/names.h"
#include "group/group.h"
#include "neve/engine.h"
#include "node/retention.h"
#include "node/slot_pool.h"
#include "restore/chunk_reader.h"
#include "storage/tier.h"

namespace neve {

class EngineImpl : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<EngineImpl>> Create(EngineOptions options);
  ~EngineImpl() override;

  absl::Status Prepare(const std::shared_ptr<State>& state, std::span<const void* const> addresses, uint64_t values_bytes,
                       std::span<const uint64_t> blob_bytes) override;
  absl::StatusOr<std::shared_ptr<Ticket>> Save(const SaveRequest& request) override;
  void CountSave() override;
  absl::StatusOr<std::vector<SaveInfo>> Steps() override;
  absl::StatusOr<std::unique_ptr<Image>> Find(const FindRequest& request) override;
  absl::Status Agree(const absl::Status& mine) override;
  void Leave(const std::string& why) override;
  absl::Status SetPinned(uint64_t step, bool pinned) override;
  absl::Status Drain(double deadline_s) override;
  absl::Status Close(bool final, double deadline_s) override;
  std::string HealthJson() const override;

 private:
  struct DurableTier {
    TierConfig config;
    std::string name;                              // "file"
    std::shared_ptr<storage::Tier> tier;      // images that are open keep it too
    std::unique_ptr<flush::TierFlush> flush;       // used on executor_ only
    std::unique_ptr<node::Retention> retention;    // used on executor_ only
    std::optional<SaveId> told_newest;             // that all ranks have here, when retention looked last; executor_ only
    bool claimed = false;                          // job.json and the life are there; executor_ and init only
  };
  // Tiers that this rank brings the save to, and, with replicated=, those that another does.
  struct Due {
    std::vector<std::string> own, others;
    bool empty() const { return own.empty() && others.empty(); }
  };
  explicit EngineImpl(EngineOptions options);

  // What makes the first save different: uid, life, dead slots.
  absl::Status BeginLife() NEVE_REQUIRES(save_mutex_);
  // With many ranks, at open: who the job is, which life this is.
  absl::Status MakeGroup();
  absl::Status MeetRanks();
  absl::StatusOr<std::unique_ptr<Image>> FindTogether(const FindRequest& request);
  // How the opening of one save went on all ranks: the first error, whether it is the save's own fault, and whose image is whose.
  struct Opened {
    absl::Status first;
    bool lost = false, alike = true;
    std::string mine, rank0;   // fingerprints of replicated state; else ""
  };
  absl::StatusOr<Opened> TellOpened(const std::string& what, const absl::Status& status, bool lost, const std::string& fingerprint);
  std::string FingerprintOf(const absl::StatusOr<std::unique_ptr<Image>>& image, const catalog::Save& save) const;
  absl::StatusOr<group::Messages> Gather(std::string_view what, std::string_view mine);
  // Looks for saves that every rank has committed, for tickets whose owners may wait for that. On slot_executor_, which may block.
  void WatchCompletion(const std::shared_ptr<TicketImpl>& ticket, const Due& due);
  void LookForCompletion();
  bool LookOnce();                                    // false: nobody waits any more
  void EndCompletion();                               // at the end of close
  // The newest save, `newest` or older, that all ranks have in every durable tier; waits for `newest` as closing_wait.h says.
  // rank: this one, of a world of `world`.
  std::optional<SaveId> WaitUntilWhole(const SaveId& newest, uint32_t rank, uint32_t world, double deadline_s);
  // Takes a port for control connections; `other`: the address of a rank on another host.
  absl::Status ListenForControl(const std::string& other);
  void WatermarkMoved();                              // on a thread that must not wait
  bool TellTicket(TicketImpl& ticket) const;          // of what is told; true: it waits for more
  bool ToldWhole(const SaveId& save) const;           // all ranks have said that they have it in every durable tier
  // A call that may be in a gather: close ends it, and waits for it.
  class GroupCall {
   public:
    explicit GroupCall(EngineImpl* engine) : engine_(engine) {
      sync::MutexLock lock(engine_->mutex_);
      ++engine_->group_calls_;
    }
    ~GroupCall() {
      sync::MutexLock lock(engine_->mutex_);
      --engine_->group_calls_;
      engine_->idle_.NotifyAll();
    }
    GroupCall(const GroupCall&) = delete;

   private:
    EngineImpl* const engine_;
  };
  void EndGroupCalls();
  absl::Status CheckUsable() const;
  absl::Status EnsureUid() NEVE_EXCLUDES(uid_mutex_);
  std::vector<storage::Tier*> DurableTiers() const;
  std::shared_ptr<storage::Tier> RamTier();          // null: none configured, or the uid is unknown
  // The greatest number of a life that may have been taken: a new life's is greater, or an older save would look newer than its own.
  // Fails where a tier cannot be listed; tried again at the next save. Not for a RAM folder beside a durable tier: a life is claimed
  // there too, unless every durable tier refused it, and of such lives kUnseenLives are allowed for.
  static constexpr uint32_t kUnseenLives = 1000;
  absl::StatusOr<uint32_t> GreatestLife(std::span<const catalog::TierListing> listings, std::span<const std::string> names);
  std::vector<catalog::TierListing> ListAll(std::vector<std::string>* names);
  absl::Status CheckListed(const std::vector<catalog::TierListing>& listings, const std::vector<std::string>& names,
                           const FindRequest& request) const;
  // The save in the tiers that hold it.
  std::shared_ptr<const engine::SaveOpener> OpenerOf(const catalog::Save& save, const std::vector<catalog::TierListing>& listings,
                                                     const std::vector<std::string>& names);
  // What this rank restores from: its own image, or of another number of ranks the global one. NotFound: no usable copy of an image,
  // `reason` says why; other errors: what was opened cannot be read or merged, `header_lost`.
  // wanted: the fingerprint (engine::FingerprintOf) of the image that rank 0 opened, when this rank's was another.
  absl::StatusOr<std::unique_ptr<Image>> OpenSave(const std::shared_ptr<const engine::SaveOpener>& opener, const FindRequest& request,
                                                  engine::FindRefusals& refusals, std::string* reason, bool* header_lost,
                                                  const std::string& wanted = {});
  // Whether the ranks of this job restore the one image of `save`.
  bool IsReplica(const catalog::Save& save) const { return replicated() && save.world == 1; }
  static std::string Places(const std::vector<catalog::TierListing>& listings);

  absl::StatusOr<std::shared_ptr<Ticket>> SaveNow(const SaveRequest& request);
  // A save that nothing could be done for, through no fault of the call: counted, logged, and told by its ticket.
  std::shared_ptr<Ticket> FailedSave(const SaveRequest& request, const Due& due, absl::Status why)
      NEVE_REQUIRES(save_mutex_);
  void CountFailed(uint64_t step, const absl::Status& why);
  absl::StatusOr<Due> DueTiers(const SaveRequest& request) const;
  std::shared_ptr<TicketImpl> NewTicket(uint64_t step, const SaveId& save, const Due& due) const;
  // ---- Replicated state (replicas.cc): which rank keeps what ----
  bool replicated() const { return options_.replicated && options_.world > 1; }
  bool KeepsRam() const { return ram_.has_value() && (!replicated() || keeps_ram_); }
  bool WritesDurable() const { return !replicated() || options_.rank == 0; }
  bool KeepsImage() const { return KeepsRam() || (WritesDurable() && !durable_.empty()); }
  // As which rank of how many its images are saved.
  uint32_t image_rank() const { return replicated() ? 0 : options_.rank; }
  uint32_t image_world() const { return replicated() ? 1 : options_.world; }
  // What a rank has no part in must not hold the watermark up: it counts as done by it.
  void CommitOthers(const SaveId& save, const Due& due);
  void AbandonSave(const SaveId& save);              // this rank will have nothing of it
  absl::Status CheckReplicable(const std::shared_ptr<State>& state) NEVE_REQUIRES(save_mutex_);
  // Compares this rank's first image with those of others, in the background, and tells once what that shows: ranks of one host that save
  // the same without replicated=, or hosts that do not hold the same with it.
  void CompareFirstImage(const std::shared_ptr<const format::CommitRecord>& record);
  void LookForOthers(const std::shared_ptr<const format::CommitRecord>& record, int looks_left);
  // At close, a rank that keeps RAM and does not write: the newest save that every durable tier has.
  std::optional<SaveId> NewestWritten(double deadline_s) NEVE_REQUIRES(save_mutex_);
  absl::StatusOr<node::Entry*> AcquireEntry(const SaveRequest& request, uint64_t image_bytes, std::shared_ptr<Ticket>* skipped,
                                            const Due& due);
  absl::Status StreamToTiers(const SaveRequest& request, const capture::CapturePlan& plan, format::CommitRecord record,
                             const std::vector<std::string>& due, TicketImpl& ticket);
  format::CommitRecord RecordOf(const SaveRequest& request, const format::Layout& layout, SaveId save) const;
  void EnqueueFlush(node::Entry* entry, std::shared_ptr<const format::CommitRecord> record, const std::vector<std::string>& due,
                    std::shared_ptr<TicketImpl> ticket);
  void FlushOne(DurableTier& tier, node::Entry* entry, std::shared_ptr<const format::CommitRecord> record,
                std::shared_ptr<TicketImpl> ticket);
  void EnqueueAdopted();
  // ---- Tensors on devices (device_capture.cc) ----
  struct DeviceFlight {
    std::shared_ptr<capture::DeviceSave> copies;
    node::Entry* entry = nullptr;
    std::shared_ptr<format::CommitRecord> record;
    std::vector<std::string> due;
    std::shared_ptr<TicketImpl> ticket;
    sync::Nanos begin = 0;
  };
  absl::Status OpenLanes(std::span<const int32_t> devices) NEVE_REQUIRES(save_mutex_);
  // Invalid: misuse by this very call; any other error is the ticket's.
  absl::StatusOr<std::shared_ptr<capture::DeviceSave>> BeginDeviceSave(const DevicePlans& plans, const SaveRequest& request)
      NEVE_REQUIRES(save_mutex_);
  absl::Status CheckAddresses(const State& state, std::span<const void* const> addresses) const NEVE_REQUIRES(save_mutex_);
  // The host's part is in. Hands the rest to copier_ and fences as the request says.
  void FlyDeviceSave(DeviceFlight flight, const SaveRequest& request) NEVE_REQUIRES(save_mutex_);
  void FinishDeviceSave(const DeviceFlight& flight);   // on copier_
  // What is left to do with an entry whose image and digests are whole.
  void HandOn(node::Entry* entry, std::shared_ptr<format::CommitRecord> record, const std::vector<std::string>& due,
              const std::shared_ptr<TicketImpl>& ticket, sync::Nanos begin);
  bool ReplaceOldest();
  void MayCommit(DurableTier& tier, storage::Done done);
  void MadeDurable(DurableTier& tier, const SaveId& save);   // on executor_; the retention it begins is a flight of its own
  void NoteError(const absl::Status& status);
  void FlightEnded();
  absl::Status WaitIdle(double deadline_s);
  absl::Status WaitIdleAtEnd(double deadline_s);   // the same, and says in the log what a longer wait waits for
  // Writes the newest save in RAM to each durable tier that lacks it, whatever the cadence. For close and SIGTERM.
  void PersistNewest(double deadline_s);

  const EngineOptions options_;
  const int64_t pid_;                              // a forked child must not use the engine
  const std::shared_ptr<obs::Metrics> metrics_;
  const std::shared_ptr<sync::Crew> crew_;
  const std::shared_ptr<HeldSaves> held_;
  const std::shared_ptr<engine::TierStanding> standing_ = std::make_shared<engine::TierStanding>();
  std::vector<std::unique_ptr<DurableTier>> durable_;
  std::optional<TierConfig> ram_;
  format::LifeClaim claim_;                        // of this life; with many ranks they share its nonce
  std::optional<uint32_t> agreed_incarnation_;     // with many ranks: what they agreed on at open
  bool one_host_ = true;                           // all ranks run on this host and see each other's RAM
  bool first_of_host_ = true;
  bool keeps_ram_ = true;                          // with replicated=: the first rank of those that see one RAM folder
  std::atomic<bool> compared_{false};              // the first image
  std::map<uint32_t, os::ProcessId> host_ranks_;   // the ranks of this host; with many ranks only

  std::string own_place_;                          // this rank's, of a group with a list of places
  std::atomic<bool> stop_group_{false};            // a gather in progress gives up
  sync::Mutex group_mutex_;                        // one gather at a time
  std::unique_ptr<group::Group> group_ NEVE_GUARDED_BY(group_mutex_);

  sync::Mutex uid_mutex_;
  Uid uid_ NEVE_GUARDED_BY(uid_mutex_);
  std::shared_ptr<storage::Tier> ram_tier_ NEVE_GUARDED_BY(uid_mutex_);

  sync::Mutex save_mutex_;                         // one Save, Prepare or Close at a time
  bool life_begun_ NEVE_GUARDED_BY(save_mutex_) = false;
  std::shared_ptr<State> replicable_ NEVE_GUARDED_BY(save_mutex_);   // the last state that CheckReplicable passed
  std::atomic<uint32_t> incarnation_{0};           // set once, by BeginLife
  uint64_t sequence_ NEVE_GUARDED_BY(save_mutex_) = 0;
  bool last_skipped_ NEVE_GUARDED_BY(save_mutex_) = false;
  absl::StatusCode streaming_told_ NEVE_GUARDED_BY(save_mutex_) = absl::StatusCode::kOk;   // the reason last logged

  mutable sync::Mutex mutex_;
  sync::Condition idle_;
  bool closed_ NEVE_GUARDED_BY(mutex_) = false;
  int in_flight_ NEVE_GUARDED_BY(mutex_) = 0;      // flush jobs and retentions
  int group_calls_ NEVE_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ NEVE_GUARDED_BY(mutex_);
  std::map<SaveId, std::set<std::string>> committed_ NEVE_GUARDED_BY(mutex_);   // of saves still in the pool
  std::string streaming_ NEVE_GUARDED_BY(mutex_);   // why the newest save lay in no slot, for health
  std::vector<std::weak_ptr<TicketImpl>> watched_ NEVE_GUARDED_BY(mutex_);      // not known to be complete yet
  bool watching_ NEVE_GUARDED_BY(mutex_) = false;
  bool told_look_ NEVE_GUARDED_BY(mutex_) = false;   // a look at what was told is on its way
  sync::Nanos watch_pause_ NEVE_GUARDED_BY(mutex_) = 0;

  const std::shared_ptr<device::Registrations> registrations_ = std::make_shared<device::Registrations>();
  std::map<int32_t, std::shared_ptr<capture::DeviceLane>> lanes_ NEVE_GUARDED_BY(save_mutex_);
  const DevicePlans* checked_plans_ NEVE_GUARDED_BY(save_mutex_) = nullptr;   // whose addresses were looked at; never read through
  std::shared_ptr<sync::Crew> digest_crew_;        // with lanes_: digests of what copier_ has brought
  std::shared_ptr<node::SlotPool> pool_;           // made by BeginLife; images that read its slots keep it
  std::atomic<node::SlotPool*> ready_pool_{nullptr};   // the same, for threads that do not hold save_mutex_
  std::unique_ptr<sync::TerminationWatch> termination_;
  std::unique_ptr<sync::ThreadExecutor> slot_executor_;   // makes and prefaults slots
  std::unique_ptr<sync::ThreadExecutor> executor_;
  std::unique_ptr<sync::ThreadExecutor> copier_;   // waits for devices; made with the first lane, stopped before all others
  engine::Watermark watermark_;                    // its thread posts to the executors
};

}  // namespace neve

#endif  // NEVE_ENGINE_ENGINE_IMPL_H_
