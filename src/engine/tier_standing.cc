#include "engine/tier_standing.h"

#include "absl/strings/str_format.h"

namespace neve::engine {

void TierStanding::Fails(const std::string& tier, const std::string& error, const std::string& doing) {
  sync::MutexLock lock(mutex_);
  failures_[tier] = {error, doing};
}

void TierStanding::Works(const std::string& tier) {
  sync::MutexLock lock(mutex_);
  failures_.erase(tier);
}

void TierStanding::Forget() {
  sync::MutexLock lock(mutex_);
  failures_.clear();
}

std::string TierStanding::Error(const std::string& tier) const {
  sync::MutexLock lock(mutex_);
  const auto failure = failures_.find(tier);
  return failure == failures_.end() ? "" : failure->second.error;
}

std::string TierStanding::Story(const std::string& tier) const {
  sync::MutexLock lock(mutex_);
  const auto failure = failures_.find(tier);
  if (failure == failures_.end()) return "";
  if (failure->second.doing.empty()) return absl::StrFormat("tier %s fails: %s", tier, failure->second.error);
  return absl::StrFormat("tier %s fails (%s): %s", tier, failure->second.doing, failure->second.error);
}

}  // namespace neve::engine
