// State: a structure, described once, with its sticky capacities and its current layout and capture plan.
#ifndef NEVE_ENGINE_STATE_H_
#define NEVE_ENGINE_STATE_H_

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sync/mutex.h"
#include "capture/capture.h"
#include "capture/device_plan.h"
#include "capture/host_plan.h"
#include "format/layout.h"
#include "neve/engine.h"

namespace neve {

// How a state of which some tensors lie on devices gets into its image: the host's part, and a plan for each device.
struct DevicePlans {
  std::shared_ptr<const format::Layout> layout;
  std::vector<uint8_t> fenced;
  capture::HostPlan host;
  std::vector<std::pair<int32_t, std::shared_ptr<const capture::DevicePlan>>> devices;
};

class State {
 public:
  // `devices`: one a tensor, < 0 for host memory; or empty.
  explicit State(std::shared_ptr<const format::Structure> structure, std::vector<int32_t> devices = {});
  const format::Structure& structure() const { return *structure_; }
  // The devices that some tensor lies on, ascending; empty: all in host memory.
  std::span<const int32_t> devices() const { return used_devices_; }
  int32_t device_of(size_t tensor) const { return tensor_devices_[tensor]; }
  // Of such a state: the last plans where layout and `fenced` are still the same, else new ones.
  absl::StatusOr<std::shared_ptr<const DevicePlans>> DevicePlansFor(const std::shared_ptr<const format::Layout>& layout,
                                                                    std::span<const uint8_t> fenced);

  // The plan for tensors at these addresses: the last one where aliases and capacities still hold, else a new one.
  absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> PlanFor(std::span<const void* const> addresses,
                                                                      uint64_t values_bytes,
                                                                      std::span<const uint64_t> blob_bytes);
  // The same for a single file, whose header has room for the digests of the file. Thread: any.
  absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> FilePlanFor(std::span<const void* const> addresses, uint64_t values_bytes,
                                                                          std::span<const uint64_t> blob_bytes);
  // Checks counts and text of what a call gave against the structure: Invalid, naming what is off.
  absl::Status Check(std::span<const void* const> addresses, std::string_view values,
                     std::span<const std::string_view> blobs) const;

 private:
  // `last`: where the plan is kept. with_digests: of a single file.
  absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> Plan(std::span<const void* const> addresses, uint64_t values_bytes,
                                                                   std::span<const uint64_t> blob_bytes, bool with_digests,
                                                                   std::shared_ptr<const capture::CapturePlan>* last)
      NEVE_REQUIRES(mutex_);

  const std::shared_ptr<const format::Structure> structure_;
  const std::vector<int32_t> tensor_devices_;
  std::vector<int32_t> used_devices_;
  sync::Mutex mutex_;
  format::Capacities capacities_ NEVE_GUARDED_BY(mutex_);
  std::shared_ptr<const capture::CapturePlan> plan_ NEVE_GUARDED_BY(mutex_);
  std::shared_ptr<const capture::CapturePlan> file_plan_ NEVE_GUARDED_BY(mutex_);
  std::shared_ptr<const DevicePlans> device_plans_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve

#endif  // NEVE_ENGINE_STATE_H_
