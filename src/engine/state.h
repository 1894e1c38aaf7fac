// State: a structure, described once, with its sticky capacities and its current layout and capture plan.
#ifndef NEVE_ENGINE_STATE_H_
#define NEVE_ENGINE_STATE_H_

#include <memory>
#include <span>
#include <string_view>

#include "base/sync/mutex.h"
#include "capture/capture.h"
#include "format/layout.h"
#include "neve/engine.h"

namespace neve {

class State {
 public:
  explicit State(std::shared_ptr<const format::Structure> structure) : structure_(std::move(structure)) {}
  const format::Structure& structure() const { return *structure_; }

  // The plan for tensors at these addresses: the last one where aliases and capacities still hold, else a new one.
  absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> PlanFor(std::span<const void* const> addresses,
                                                                      uint64_t values_bytes,
                                                                      std::span<const uint64_t> blob_bytes);
  // Checks counts and text of what a call gave against the structure: Invalid, naming what is off.
  absl::Status Check(std::span<const void* const> addresses, std::string_view values,
                     std::span<const std::string_view> blobs) const;

 private:
  const std::shared_ptr<const format::Structure> structure_;
  sync::Mutex mutex_;
  format::Capacities capacities_ NEVE_GUARDED_BY(mutex_);
  std::shared_ptr<const capture::CapturePlan> plan_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve

#endif  // NEVE_ENGINE_STATE_H_
