#include "support/sim_store.h"

namespace neve::testing {

bool SimStoreState::Fails() {
  ++calls_;
  return faults_.gone || (faults_.failing_percent != 0 && executor_.Random() % 100 < faults_.failing_percent);
}

absl::Status SimStore::Set(const std::string& name, std::string_view value) {
  if (state_->Fails()) return Unavailable("the simulated store did not answer");
  const sync::Nanos delay =
      state_->faults_.visible_after_max == 0
          ? 0
          : static_cast<sync::Nanos>(state_->executor_.Random() % static_cast<uint64_t>(state_->faults_.visible_after_max));
  state_->values_[name][++state_->sets_] = {state_->executor_.Now() + delay, process_, std::string(value)};
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> SimStore::Get(const std::string& name) {
  if (state_->Fails()) return Unavailable("the simulated store did not answer");
  const auto found = state_->values_.find(name);
  if (found == state_->values_.end()) return std::optional<std::string>();
  const sync::Nanos now = state_->executor_.Now();
  for (auto version = found->second.rbegin(); version != found->second.rend(); ++version) {
    if (version->second.visible <= now || version->second.writer == process_) return std::optional(version->second.value);
  }
  return std::optional<std::string>();
}

void SimStore::Forget(const std::string& prefix) {
  std::erase_if(state_->values_, [&](const auto& entry) { return entry.first.starts_with(prefix + "/"); });
}

}  // namespace neve::testing
