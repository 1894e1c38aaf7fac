#include "engine/ticket.h"

#include <sys/eventfd.h>

#include "absl/strings/str_format.h"
#include "base/error/status.h"

namespace neve {

TicketImpl::TicketImpl(uint64_t step, SaveId save, std::vector<std::string> due)
    : step_(step), save_(save), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  stages_.push_back({"captured"});
  for (std::string& name : due) stages_.push_back({std::move(name)});
  stages_.push_back({"done"});
  stages_.push_back({"complete"});
}

TicketImpl::StageEntry* TicketImpl::FindLocked(std::string_view stage) const {
  constexpr std::string_view kComplete = "complete:";
  // One rank: complete in a tier is what the tier's own stage says.
  if (stage.starts_with(kComplete)) stage.remove_prefix(kComplete.size());
  for (StageEntry& entry : stages_) {
    if (entry.name == stage) return &entry;
  }
  return nullptr;
}

absl::Status TicketImpl::Wait(std::string_view stage, double timeout_s) const {
  sync::MutexLock lock(mutex_);
  const StageEntry* entry = FindLocked(stage);
  if (entry == nullptr) {
    std::string due;
    for (const StageEntry& known : stages_) due += (due.empty() ? "" : ", ") + known.name;
    return Invalid(absl::StrFormat("stage \"%s\" is not due for step %d; due are %s", stage, step_, due));
  }
  if (!changed_.WaitFor(mutex_, timeout_s, [entry] { return entry->state != StageState::kPending; })) {
    return Timeout(
        absl::StrFormat("step %d (save %s) has not reached \"%s\" after %.3g s", step_, save_.ToString(), stage, timeout_s));
  }
  return entry->status;
}

std::vector<std::pair<std::string, StageState>> TicketImpl::Stages() const {
  sync::MutexLock lock(mutex_);
  std::vector<std::pair<std::string, StageState>> stages;
  for (const StageEntry& entry : stages_) stages.emplace_back(entry.name, entry.state);
  return stages;
}

absl::Status TicketImpl::Error() const {
  sync::MutexLock lock(mutex_);
  return error_;
}

std::map<std::string, std::string> TicketImpl::Places() const {
  sync::MutexLock lock(mutex_);
  return places_;
}

void TicketImpl::Announce() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));   // full counter: readable already
}

void TicketImpl::DeriveLocked() {
  StageEntry& complete = stages_.back();
  StageEntry& done = stages_[stages_.size() - 2];
  bool all_ended = true, any_reached = false;
  const StageEntry* failed = nullptr;
  for (size_t i = 0; i + 2 < stages_.size(); ++i) {
    all_ended &= stages_[i].state != StageState::kPending;
    if (i > 0) any_reached |= stages_[i].state == StageState::kReached;
    if (stages_[i].state == StageState::kFailed && failed == nullptr) failed = &stages_[i];
  }
  if (complete.state == StageState::kPending && any_reached) complete.state = StageState::kReached;
  if (!all_ended) return;
  if (done.state == StageState::kPending) {
    done.state = failed == nullptr ? StageState::kReached : StageState::kFailed;
    if (failed != nullptr) done.status = failed->status;
  }
  if (complete.state == StageState::kPending) {
    complete.state = failed != nullptr ? StageState::kFailed : StageState::kSkipped;
    complete.status = failed != nullptr ? failed->status : Unavailable(absl::StrFormat("step %d was due in no tier", step_));
  }
}

void TicketImpl::Reached(const std::string& stage, const std::string& place) {
  {
    sync::MutexLock lock(mutex_);
    StageEntry* entry = FindLocked(stage);
    if (entry == nullptr || entry->state != StageState::kPending) return;
    entry->state = StageState::kReached;
    if (!place.empty()) places_[stage] = place;
    DeriveLocked();
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::Failed(const std::string& stage, absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    StageEntry* entry = FindLocked(stage);
    if (entry == nullptr || entry->state != StageState::kPending) return;
    entry->state = StageState::kFailed;
    entry->status = status;
    if (error_.ok()) error_ = std::move(status);
    DeriveLocked();
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::Skipped(const std::string& stage, absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    StageEntry* entry = FindLocked(stage);
    if (entry == nullptr || entry->state != StageState::kPending) return;
    entry->state = StageState::kSkipped;
    entry->status = std::move(status);
    DeriveLocked();
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::FailRest(absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    for (StageEntry& entry : stages_) {
      if (entry.state != StageState::kPending) continue;
      entry.state = StageState::kFailed;
      entry.status = status;
      if (error_.ok()) error_ = status;
    }
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::SkipAll(absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    for (StageEntry& entry : stages_) {
      entry.state = StageState::kSkipped;
      entry.status = status;
    }
    error_ = std::move(status);
    changed_.NotifyAll();
  }
  Announce();
}

}  // namespace neve
