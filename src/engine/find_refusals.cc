#include "engine/find_refusals.h"

#include "absl/strings/str_format.h"
#include "base/obs/log.h"

namespace neve::engine {

std::string SaveText(const SaveId& save, uint64_t step) { return absl::StrFormat("step %d (save %s)", step, save.ToString()); }

absl::Status FindRefusals::Refuse(const SaveId& save, uint64_t step, const std::string& reason) {
  obs::Log(obs::Level::kWarning,
           absl::StrFormat("event=save_skipped step=%d save=%s reason=\"%s\"", step, save.ToString(), reason));
  constexpr size_t kReasonsMax = 4000;
  if (reasons_.size() < kReasonsMax) reasons_ += "\n  " + SaveText(save, step) + ": " + reason;
  if (by_step_ && request_.fallback) {
    by_step_ = false;   // from here on any older save will do
    return absl::OkStatus();
  }
  if (by_step_) {
    const std::string message = absl::StrFormat("%s is not complete: %s", SaveText(save, step), reason);
    return IsDamaged(first_error_) ? Damaged(message) : DataLoss(message);
  }
  return absl::OkStatus();
}

absl::Status FindRefusals::Nothing(const std::string& job, const std::string& places) const {
  if (request_.step.has_value() && !seen_) {
    return NotFound(absl::StrFormat("no save of step %d of job %s in %s", *request_.step, job, places));
  }
  if (any_record_) return DataLoss(absl::StrFormat("job %s has commit records but no complete save:%s", job, reasons_));
  return NotFound(absl::StrFormat("no checkpoint of job %s in %s%s", job, places,
                                  request_.before.has_value() ? " older than the one that failed" : ""));
}

}  // namespace neve::engine
