// Why the saves that were looked at are not the one that is restored: gathered on the way, said at the end.
#ifndef NEVE_ENGINE_FIND_REFUSALS_H_
#define NEVE_ENGINE_FIND_REFUSALS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/error/status.h"
#include "neve/engine.h"

namespace neve::engine {

class FindRefusals {
 public:
  explicit FindRefusals(const FindRequest& request) : request_(request), by_step_(request.step.has_value()) {}

  // Whether a save of that step is of interest: with a step asked for only that one's, until fallback lets any older one do.
  bool Wants(const SaveId& save, uint64_t step) const {
    return (!request_.before.has_value() || save < *request_.before) && (!by_step_ || step == *request_.step);
  }
  void Saw(bool any_record) {
    seen_ = true;
    any_record_ |= any_record;
  }
  // One copy could not be used.
  void CopyFailed(const absl::Status& status) {
    if (first_error_.ok()) first_error_ = status;
  }
  const absl::Status& first_error() const { return first_error_; }
  // The save is passed over, with one log line. Not OK: that ends the search.
  absl::Status Refuse(const SaveId& save, uint64_t step, const std::string& reason);
  // Nothing is left to look at.
  absl::Status Nothing(const std::string& job, const std::string& places) const;

 private:
  const FindRequest& request_;
  bool by_step_, seen_ = false, any_record_ = false;
  std::string reasons_;
  absl::Status first_error_;
};

std::string SaveText(const SaveId& save, uint64_t step);   // "step 5 (save i0001.s000005)"

}  // namespace neve::engine

#endif  // NEVE_ENGINE_FIND_REFUSALS_H_
