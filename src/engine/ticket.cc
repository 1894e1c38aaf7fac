#include "engine/ticket.h"

#include <sys/eventfd.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/error/status.h"

namespace neve {

TicketImpl::TicketImpl(uint64_t step, SaveId save, std::vector<std::string> due, uint32_t ranks, const std::vector<std::string>& others)
    : step_(step), save_(save), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), many_(ranks > 1), others_(!others.empty()) {
  stages_.reserve(due.size() + 3);
  stages_.push_back({"captured"});
  for (std::string& name : due) {
    if (many_) complete_in_.push_back({name});
    stages_.push_back({std::move(name)});
  }
  for (const std::string& name : others) complete_in_.push_back({name});
  stages_.push_back({"done"});
  stages_.push_back({"complete"});
}

TicketImpl::StageEntry* TicketImpl::FindLocked(std::string_view stage) const {
  constexpr std::string_view kComplete = "complete:";
  // One rank: complete in a tier is what the tier's own stage says.
  if (stage.starts_with(kComplete)) {
    stage.remove_prefix(kComplete.size());
    if (many_) return FindCompleteLocked(stage);
  }
  for (StageEntry& entry : stages_) {
    if (entry.name == stage) return &entry;
  }
  return nullptr;
}

TicketImpl::StageEntry* TicketImpl::FindCompleteLocked(std::string_view tier) const {
  if (tier.empty()) return &stages_.back();
  for (StageEntry& entry : complete_in_) {
    if (entry.name == tier) return &entry;
  }
  return nullptr;
}

absl::Status TicketImpl::Wait(std::string_view stage, double timeout_s) const {
  sync::MutexLock lock(mutex_);
  const StageEntry* entry = FindLocked(stage);
  if (entry == nullptr) {
    std::string due;
    for (const StageEntry& known : stages_) due += (due.empty() ? "" : ", ") + known.name;
    if (!stage.empty() && FindCompleteLocked(stage) != nullptr) {
      return Invalid(absl::StrFormat("stage \"%s\" of step %d is another rank's (replicated=): due here are %s; wait for \"complete:%s\"",
                                     stage, step_, due, stage));
    }
    return Invalid(absl::StrFormat("stage \"%s\" is not due for step %d; due are %s", stage, step_, due));
  }
  if (!changed_.WaitFor(mutex_, timeout_s, [entry] { return entry->state != StageState::kPending; })) {
    return Timeout(absl::StrFormat("step %d (save %s) has not reached \"%s\" after %.3g s%s", step_, save_.ToString(), stage,
                                   timeout_s, PendingLocked(stage)));
  }
  return entry->status;
}

std::string TicketImpl::PendingLocked(std::string_view stage) const {
  std::string why;
  if (stage.starts_with("complete") && !missing_.empty()) why = ": " + missing_;
  if (standing_ == nullptr) return why;
  for (const StageEntry& entry : stages_) {
    const bool concerns = entry.name == stage || stage == "done" || stage == "complete" || stage == "complete:" + entry.name;
    if (!concerns || entry.state != StageState::kPending) continue;
    if (const std::string story = standing_->Story(entry.name); !story.empty()) why += (why.empty() ? ": " : "; ") + story;
  }
  return why;
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

void TicketImpl::TellsOf(std::shared_ptr<const engine::TierStanding> standing) {
  sync::MutexLock lock(mutex_);
  standing_ = std::move(standing);
}

void TicketImpl::CopiesFrom(std::shared_ptr<capture::DeviceSave> save) {
  sync::MutexLock lock(mutex_);
  device_save_ = std::move(save);
}

absl::Status TicketImpl::Fence(std::span<const DeviceStream> streams, double timeout_s) {
  std::shared_ptr<capture::DeviceSave> save;
  {
    sync::MutexLock lock(mutex_);
    save = device_save_;
  }
  return save == nullptr ? absl::OkStatus() : save->Fence(streams, timeout_s);
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
  // Of many ranks this one's part is in the tier: whether theirs are too is found by looking.
  if (complete.state == StageState::kPending && any_reached && !many_) complete.state = StageState::kReached;
  for (StageEntry& in_tier : complete_in_) {
    const StageEntry* own = FindLocked(in_tier.name);
    if (own == nullptr) continue;   // another rank's
    if (in_tier.state != StageState::kPending || own->state == StageState::kPending || own->state == StageState::kReached) continue;
    in_tier.state = own->state;
    in_tier.status = own->status;
  }
  if (!all_ended) return;
  if (done.state == StageState::kPending) {
    done.state = failed == nullptr ? StageState::kReached : StageState::kFailed;
    if (failed != nullptr) done.status = failed->status;
  }
  if (complete.state == StageState::kPending && !(many_ && (any_reached || others_))) {
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
    for (std::vector<StageEntry>* stages : {&stages_, &complete_in_}) {
      for (StageEntry& entry : *stages) {
        if (entry.state != StageState::kPending) continue;
        entry.state = StageState::kFailed;
        entry.status = status;
        if (error_.ok()) error_ = status;
      }
    }
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::SkipAll(absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    for (std::vector<StageEntry>* stages : {&stages_, &complete_in_}) {
      for (StageEntry& entry : *stages) {
        entry.state = StageState::kSkipped;
        entry.status = status;
      }
    }
    error_ = std::move(status);
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::Completed(const std::string& tier) {
  {
    sync::MutexLock lock(mutex_);
    StageEntry* entry = FindCompleteLocked(tier);
    if (entry == nullptr || entry->state != StageState::kPending) return;
    entry->state = StageState::kReached;
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::MissingIs(const std::string& who) {
  sync::MutexLock lock(mutex_);
  missing_ = who;
}

void TicketImpl::NeverCompleted(absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    const auto give_up = [&](StageEntry& entry) {
      if (entry.state != StageState::kPending) return;
      entry.state = StageState::kSkipped;
      entry.status = status;
    };
    give_up(stages_.back());
    for (StageEntry& entry : complete_in_) give_up(entry);
    changed_.NotifyAll();
  }
  Announce();
}

void TicketImpl::NeverCompletedIn(const std::string& tier, absl::Status status) {
  {
    sync::MutexLock lock(mutex_);
    StageEntry* entry = FindCompleteLocked(tier);
    if (entry == nullptr || entry->state != StageState::kPending) return;
    entry->state = StageState::kSkipped;
    entry->status = std::move(status);
    changed_.NotifyAll();
  }
  Announce();
}

bool TicketImpl::CompletionPendingIn(const std::string& tier) const {
  sync::MutexLock lock(mutex_);
  const StageEntry* entry = FindCompleteLocked(tier);
  return entry != nullptr && entry->state == StageState::kPending;
}

bool TicketImpl::CompletionPending() const {
  sync::MutexLock lock(mutex_);
  const auto pending = [](const StageEntry& entry) { return entry.state == StageState::kPending; };
  return pending(stages_.back()) || std::any_of(complete_in_.begin(), complete_in_.end(), pending);
}

}  // namespace neve
