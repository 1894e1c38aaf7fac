// TierFlush: carries captured images into one durable tier, one after another, oldest first.
//
// A state machine: its events are Enqueue, Cancel, GiveUp and completions of the tier (posted to the executor), its only clock
// is the executor's. All calls are made on the executor's thread.
//
// Invariants
//   - `done` of every job runs exactly once, on the executor, and the image's bytes are borrowed until then. Destruction drops
//     what is left without calling it; the bytes are then borrowed until the tier has answered.
//   - At most `depth` pieces are in flight; a piece is never larger than `piece_bytes`.
//   - A commit that failed but left its record is taken back before the image is written again: OK means durable.
//   - The record is committed only after every piece completed with OK, and only if `may_commit` says so.
//   - A failing image is tried again with growing pauses until `timeout` has passed since its first failure, or only `patience`
//     where nothing but a hand can help (NeedsAHand: no permission, read-only, no folder). Then the tier is degraded: that job
//     fails, queued ones but the newest lapse with the same error, and the newest is tried at once, like any later one: once each.
//     A success ends the degradation. No job waits for another event: each is answered.
//   - An image there is no room for (ResourceExhausted) does not keep a newer one waiting, which may fit: once one is queued the tier
//     is degraded as above, at the latest `patience` after the first failure. Alone it is tried until `timeout`, since room may be made.
//   - A failed attempt's writer, and with it the room of its bytes, is gone before anything else is begun.
#ifndef NEVE_FLUSH_TIER_FLUSH_H_
#define NEVE_FLUSH_TIER_FLUSH_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/error/status.h"
#include "base/obs/metrics.h"
#include "base/sync/executor.h"
#include "flush/inbox.h"
#include "format/commit_record.h"
#include "storage/tier.h"

namespace neve::flush {

struct Policy {
  int depth = 4;
  uint64_t piece_bytes = kDefaultChunkBytes;
  uint64_t rate_bytes_per_s = 0;                 // 0: no cap
  sync::Nanos timeout = 600 * sync::kSecond;
  sync::Nanos patience = 2 * sync::kSecond;      // how long a failing image may keep a save waiting, or hope for a hand
  sync::Nanos retry_first = 100 * sync::kMillisecond;
  sync::Nanos retry_max = 10 * sync::kSecond;
};

struct Job {
  std::shared_ptr<const format::CommitRecord> record;
  std::span<const std::byte> image;              // padded: readable up to the next multiple of 4096
  std::function<void(absl::Status)> done;
};

class TierFlush {
 public:
  // `may_commit` is asked right before each commit; not OK: the image is abandoned with that status, without retries.
  // `failing` is told of each attempt that failed, on the executor, while Describe() still names its image. It must not call back
  // anything but the const members.
  TierFlush(storage::Tier& tier, sync::Executor& executor, obs::Metrics& metrics, const Policy& policy,
            std::function<void(std::function<void(absl::Status)>)> may_commit,
            std::function<void(const absl::Status&)> failing = nullptr);
  ~TierFlush();

  void Enqueue(Job job);
  // Drops a job that has not begun; its done gets `status`. False when it is in flight, or not here.
  bool Cancel(const ImageKey& key, absl::Status status);
  // A save waits for the room that a failing image holds: after `patience` since its first failure the tier is degraded now,
  // whatever is left of `timeout`. False when nothing has failed: a tier that is only slow is waited for.
  bool GiveUp();
  bool Idle() const { return !active_ && queue_.empty(); }
  bool degraded() const { return degraded_; }
  const absl::Status& last_error() const { return last_error_; }
  size_t queued() const { return queue_.size() + (active_ ? 1 : 0); }
  // The key in flight or next, for messages of waits; empty string when idle.
  std::string Describe() const;
  // What a wait for this tier waits for: Describe(), and the error since whose first sight it tries again. Empty when idle.
  std::string DescribeWait() const;

 private:
  struct Attempt;   // one try at one image: dropped as a whole when it fails
  void StartNext();
  void Begin();
  void Withdraw(const std::shared_ptr<Attempt>& attempt);
  void Pump(const std::shared_ptr<Attempt>& attempt);
  void PieceDone(const std::shared_ptr<Attempt>& attempt, uint64_t bytes, absl::Status status);
  void Commit(const std::shared_ptr<Attempt>& attempt);
  void AttemptFailed(absl::Status status, bool retryable);
  void MakeWay();                                // for what is queued, if the active image finds no room
  void Degrade(absl::Status status);
  void FinishActive(absl::Status status);

  storage::Tier& tier_;
  sync::Executor& executor_;
  obs::Metrics& metrics_;
  const Policy policy_;
  std::function<void(std::function<void(absl::Status)>)> may_commit_;
  std::function<void(const absl::Status&)> failing_;
  std::deque<Job> queue_;
  bool active_ = false;
  Job job_;                                      // valid while active_
  std::shared_ptr<Attempt> attempt_;
  sync::Nanos first_failure_ = -1;
  sync::Nanos pause_ = 0;
  bool commit_sent_ = false;                     // this job may have left a record
  sync::Nanos rate_free_at_ = 0;                 // when the rate cap lets the next piece go
  bool degraded_ = false;
  absl::Status last_error_;
  const std::shared_ptr<Inbox> inbox_;           // closed by the destructor: what the tier answers later is dropped
};

}  // namespace neve::flush

#endif  // NEVE_FLUSH_TIER_FLUSH_H_
