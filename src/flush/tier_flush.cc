#include "flush/tier_flush.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"

namespace neve::flush {
namespace {

std::string KeyText(const ImageKey& key) {
  return absl::StrFormat("step=%d save=%s rank=%d", key.step, key.save.ToString(), key.rank);
}

}  // namespace

struct TierFlush::Attempt {
  std::shared_ptr<storage::ImageWriter> writer;
  uint64_t next_offset = 0;
  uint64_t in_flight = 0;
  uint64_t written = 0;
  bool timer_armed = false;
  bool failed = false;
  bool committing = false;
  absl::Status error;
};

TierFlush::TierFlush(storage::Tier& tier, sync::Executor& executor, obs::Metrics& metrics, const Policy& policy,
                     std::function<void(std::function<void(absl::Status)>)> may_commit,
                     std::function<void(const absl::Status&)> failing)
    : tier_(tier), executor_(executor), metrics_(metrics), policy_(policy), may_commit_(std::move(may_commit)),
      failing_(std::move(failing)), inbox_(std::make_shared<Inbox>(executor)) {}

TierFlush::~TierFlush() { inbox_->Close(); }

std::string TierFlush::Describe() const {
  if (!active_ && queue_.empty()) return "";
  const ImageKey& key = active_ ? job_.record->key : queue_.front().record->key;
  return absl::StrFormat("%s of %s", tier_.info().place, KeyText(key));
}

std::string TierFlush::DescribeWait() const {
  if (Idle()) return "";
  if (!active_ || first_failure_ < 0) return Describe();
  return absl::StrFormat("%s, which fails since %.0f s and is tried again: %s", Describe(),
                         static_cast<double>(executor_.Now() - first_failure_) / sync::kSecond, std::string(last_error_.message()));
}

void TierFlush::Enqueue(Job job) {
  if (degraded_) {
    // Only the newest keeps its claim on a tier that failed.
    while (!queue_.empty()) {
      Job lapsed = std::move(queue_.front());
      queue_.pop_front();
      lapsed.done(Annotate(last_error_, "lapsed for a newer save"));
    }
  }
  queue_.push_back(std::move(job));
  if (!active_) {
    StartNext();
  } else {
    MakeWay();
  }
}

void TierFlush::MakeWay() {
  // A try that is under way, or the next one, looks for itself when it fails.
  if (attempt_ != nullptr || first_failure_ < 0 || !absl::IsResourceExhausted(last_error_)) return;
  const sync::Nanos left = std::max<sync::Nanos>(0, first_failure_ + policy_.patience - executor_.Now());
  executor_.PostAfter(left, [this, inbox = inbox_, key = job_.record->key] {
    if (!inbox->open() || !active_ || !(job_.record->key == key) || queue_.empty()) return;
    if (absl::IsResourceExhausted(last_error_)) GiveUp();
  });
}

bool TierFlush::Cancel(const ImageKey& key, absl::Status status) {
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if (it->record->key == key) {
      Job job = std::move(*it);
      queue_.erase(it);
      job.done(std::move(status));
      return true;
    }
  }
  return false;
}

void TierFlush::StartNext() {
  if (queue_.empty()) return;
  job_ = std::move(queue_.front());
  queue_.pop_front();
  active_ = true;
  first_failure_ = -1;
  pause_ = policy_.retry_first;
  commit_sent_ = false;
  Begin();
}

void TierFlush::Begin() {
  attempt_ = std::make_shared<Attempt>();
  auto attempt = attempt_;
  tier_.BeginImage(job_.record->key, job_.record->image_bytes,
                   [this, inbox = inbox_, attempt](absl::StatusOr<std::shared_ptr<storage::ImageWriter>> writer) {
                     inbox->Post([this, inbox, attempt, writer = std::move(writer)]() mutable {
                       if (!inbox->open() || attempt != attempt_) return;
                       if (!writer.ok() && absl::IsInvalidArgument(writer.status()) && commit_sent_) {
                         Withdraw(attempt);
                         return;
                       }
                       if (!writer.ok()) {
                         AttemptFailed(writer.status(), !absl::IsInvalidArgument(writer.status()));
                         return;
                       }
                       attempt->writer = *std::move(writer);
                       Pump(attempt);
                     });
                   });
}

// A commit of ours failed and left its record all the same. Whether that record is durable nobody knows, so it is taken out
// and the image written anew: "done" must mean durable.
void TierFlush::Withdraw(const std::shared_ptr<Attempt>& attempt) {
  tier_.Retire(job_.record->key, [this, inbox = inbox_, attempt](absl::Status status) {
    inbox->Post([this, inbox, attempt, status = std::move(status)]() mutable {
      if (!inbox->open() || attempt != attempt_) return;
      if (!status.ok()) {
        AttemptFailed(std::move(status), true);
        return;
      }
      commit_sent_ = false;
      Begin();
    });
  });
}

void TierFlush::Pump(const std::shared_ptr<Attempt>& attempt) {
  const uint64_t total = job_.record->image_bytes;
  while (!attempt->failed && attempt->in_flight < static_cast<uint64_t>(policy_.depth) && attempt->next_offset < total) {
    if (policy_.rate_bytes_per_s > 0) {
      const sync::Nanos now = executor_.Now();
      if (rate_free_at_ > now) {
        if (!attempt->timer_armed) {
          attempt->timer_armed = true;
          executor_.PostAfter(rate_free_at_ - now, [this, inbox = inbox_, attempt] {
            if (!inbox->open() || attempt != attempt_) return;
            attempt->timer_armed = false;
            Pump(attempt);
          });
        }
        return;
      }
    }
    const uint64_t offset = attempt->next_offset;
    const uint64_t bytes = std::min(policy_.piece_bytes, total - offset);
    attempt->next_offset += bytes;
    ++attempt->in_flight;
    if (policy_.rate_bytes_per_s > 0) {
      rate_free_at_ = std::max(rate_free_at_, executor_.Now()) +
                      static_cast<sync::Nanos>(static_cast<double>(bytes) * 1e9 / static_cast<double>(policy_.rate_bytes_per_s));
    }
    attempt->writer->Write(offset, job_.image.subspan(offset, bytes),
                           [this, inbox = inbox_, attempt, bytes](absl::Status status) {
                             inbox->Post([this, inbox, attempt, bytes, status = std::move(status)]() mutable {
                               if (inbox->open()) PieceDone(attempt, bytes, std::move(status));
                             });
                           });
  }
  if (attempt->in_flight == 0 && !attempt->committing) {
    if (attempt->failed) {
      AttemptFailed(attempt->error, true);
    } else if (attempt->next_offset == total) {
      attempt->committing = true;
      Commit(attempt);
    }
  }
}

void TierFlush::PieceDone(const std::shared_ptr<Attempt>& attempt, uint64_t bytes, absl::Status status) {
  if (attempt != attempt_) return;
  --attempt->in_flight;
  if (status.ok()) {
    attempt->written += bytes;
    metrics_.Add(obs::Metric::kFileWriteBytes, bytes);
  } else if (!attempt->failed) {
    attempt->failed = true;
    attempt->error = std::move(status);
  }
  Pump(attempt);
}

void TierFlush::Commit(const std::shared_ptr<Attempt>& attempt) {
  auto committed = [this, inbox = inbox_, attempt](absl::Status status) {
    inbox->Post([this, inbox, attempt, status = std::move(status)]() mutable {
      if (!inbox->open() || attempt != attempt_) return;
      if (!status.ok()) {
        AttemptFailed(std::move(status), true);
      } else {
        metrics_.Add(obs::Metric::kFileCommits);
        FinishActive(absl::OkStatus());
      }
    });
  };
  may_commit_([this, inbox = inbox_, attempt, committed](absl::Status allowed) {
    inbox->Post([this, inbox, attempt, committed, allowed = std::move(allowed)]() mutable {
      if (!inbox->open() || attempt != attempt_) return;
      if (!allowed.ok()) {
        AttemptFailed(std::move(allowed), false);
      } else {
        commit_sent_ = true;
        attempt->writer->Commit(*job_.record, std::move(committed));
      }
    });
  });
}

void TierFlush::AttemptFailed(absl::Status status, bool retryable) {
  const sync::Nanos now = executor_.Now();
  attempt_->writer.reset();   // removes its bytes; whoever else holds the attempt
  attempt_.reset();
  if (first_failure_ < 0) {
    first_failure_ = now;
    obs::Log(obs::Level::kWarning, absl::StrFormat("event=flush_failed %s place=\"%s\" error=\"%s\"", KeyText(job_.record->key),
                                                   tier_.info().place, std::string(status.message())));
  }
  last_error_ = status;
  if (failing_) failing_(status);
  const bool in_the_way = absl::IsResourceExhausted(status) && !queue_.empty();
  const sync::Nanos limit = NeedsAHand(status) || in_the_way ? std::min(policy_.patience, policy_.timeout) : policy_.timeout;
  if (retryable && now - first_failure_ + pause_ <= limit && !degraded_) {
    metrics_.Add(obs::Metric::kFileRetries);
    const sync::Nanos pause = pause_ + static_cast<sync::Nanos>(executor_.Random() % static_cast<uint64_t>(pause_ / 4 + 1));
    pause_ = std::min(pause_ * 2, policy_.retry_max);
    executor_.PostAfter(pause, [this, inbox = inbox_, key = job_.record->key] {
      if (inbox->open() && active_ && !attempt_ && job_.record->key == key) Begin();
    });
    return;
  }
  if (!retryable) {
    FinishActive(std::move(status));
    return;
  }
  Degrade(std::move(status));
}

bool TierFlush::GiveUp() {
  if (!active_ || attempt_ != nullptr || first_failure_ < 0) return false;   // nothing failing, or a try is under way
  if (executor_.Now() - first_failure_ < policy_.patience) return false;
  Degrade(last_error_);
  return true;
}

void TierFlush::Degrade(absl::Status status) {
  degraded_ = true;
  // The newest captured save keeps its claim and is tried once more, at once; older ones lapse. None is left waiting for an event
  // that may never come: every ticket is answered.
  Job failed = std::move(job_);
  job_ = Job{};
  active_ = false;
  if (queue_.empty()) {
    obs::Log(obs::Level::kError, absl::StrFormat("event=tier_degraded place=\"%s\" error=\"%s\"", tier_.info().place,
                                                 std::string(status.message())));
  }
  Job newest = queue_.empty() ? Job{} : std::move(queue_.back());
  if (!queue_.empty()) queue_.pop_back();
  std::deque<Job> lapsed;
  lapsed.swap(queue_);
  if (newest.record != nullptr) queue_.push_back(std::move(newest));
  const auto inbox = inbox_;
  failed.done(status);
  for (Job& job : lapsed) job.done(Annotate(status, "lapsed for a newer save"));
  if (!inbox->open()) return;   // a done may have destroyed this
  if (!active_ && !queue_.empty()) StartNext();
}

void TierFlush::FinishActive(absl::Status status) {
  Job job = std::move(job_);
  job_ = Job{};
  active_ = false;
  attempt_.reset();
  if (status.ok() && (degraded_ || first_failure_ >= 0)) {
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=flush_recovered %s place=\"%s\"", KeyText(job.record->key), tier_.info().place));
    degraded_ = false;
    last_error_ = absl::OkStatus();
  }
  const auto inbox = inbox_;
  job.done(std::move(status));
  if (!inbox->open()) return;   // done may have destroyed this
  if (!active_ && !queue_.empty()) StartNext();
}

}  // namespace neve::flush
