// Capture of a state's device tensors into an image, while training goes on.
//
//   caller's stream    ... work | mark ......................................................| wait end | update ...
//   packing stream              | wait mark | list, gather window 0 | list, gather window 1 | ...
//   copies' stream              | wait mark | copies | wait packed | window 0 -> image | ... | end
//
// Three threads of the host take part. The caller's, in save(), begins (Begin) and later fences (Fence). A helper hands all
// copies over (Run) and waits for their end (Await). Whoever fences waits, on the host, until the helper has recorded the end,
// since waiting on an event that was never recorded waits for nothing; then its stream waits for the end on the device, and the
// host goes on.
//
// Every one of these waits, records and orders has a name in orders.h, and a test that fails without it.
//
// Invariants
//   - The image is whole once Await has returned OK, and not before.
//   - The tensors' memory must stay until Await has returned, whatever it returned: it does not return while copies may still
//   run.
//   - One save at a time uses a lane. Its scratch is at most 2 x 32 MiB, less or none where the device has no room.
#ifndef NEVE_CAPTURE_DEVICE_SAVE_H_
#define NEVE_CAPTURE_DEVICE_SAVE_H_

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "base/sync/mutex.h"
#include "capture/device_plan.h"
#include "device/device.h"
#include "neve/types.h"

namespace neve::capture {

// What one device needs for captures: two streams, scratch, events. Made once.
class DeviceLane {
 public:
  static absl::StatusOr<std::shared_ptr<DeviceLane>> Create(std::shared_ptr<device::Device> device);
  const std::shared_ptr<device::Device>& device() const { return device_; }

 private:
  friend class DeviceSave;
  explicit DeviceLane(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}
  void MakeScratch(const DevicePlan& plan);

  std::shared_ptr<device::Device> device_;
  device::OwnedStream copies_, packing_;
  std::array<device::OwnedEvent, 2> packed_, left_;  // of each scratch: packed, and copied out
  std::array<device::OwnedMemory, 2> scratch_;       // the window's list, then the window
  device::OwnedMemory lists_;                        // on the host: the lists of all windows of a save
  const DevicePlan* refused_ = nullptr;              // the plan for which there was no room: not tried again for it
};

class DeviceSave {
 public:
  struct Part {
    std::shared_ptr<DeviceLane> lane;
    std::shared_ptr<const DevicePlan> plan;
  };
  struct Options {
    uint64_t rate_bytes_per_s = 0;  // 0: no limit. Lifted once somebody fences
  };

  // Marks the callers' streams: what they were given before this call is in the image. A device without a stream in `streams`:
  // its default stream. Invalid while one of them is captured into a graph. Thread: the caller's.
  static absl::StatusOr<std::shared_ptr<DeviceSave>> Begin(std::vector<Part> parts, std::span<const void* const> addresses,
                                                           std::span<const DeviceStream> streams, const Options& options);

  // Hands every copy over. `registered`: the image is registered host memory. An error: some copies were not handed over; Await
  // is due all the same. Thread: the helper's.
  absl::Status Run(std::span<std::byte> image, bool registered);
  // Waits until no copy runs any more. OK: the image has all bytes. Thread: the helper's.
  absl::Status Await();

  // Has the streams wait until the tensors may be changed: all of them, or those of the first phase only. The host waits only
  // until the copies were handed over; Timeout when that takes longer, and then the save is given up (Await says so), so that
  // nobody needs to wait again. OK at once when the copies have ended, or failed. Thread: any.
  absl::Status Fence(std::span<const DeviceStream> streams, double timeout_s);
  absl::Status FenceFirst(std::span<const DeviceStream> streams, double timeout_s);
  bool has_first() const;

 private:
  enum class Progress : uint8_t { kNothing, kFirst, kAll };
  struct LaneState {
    Part part;
    device::OwnedEvent mark, first, end;
    uint64_t window = 0;   // how many windows were packed
    uint64_t list_at = 0;  // items of them
  };
  absl::Status RunLane(LaneState& lane, std::span<std::byte> image, bool registered, bool first);
  absl::Status RunPiece(LaneState& lane, const DevicePlan::Piece& piece, std::byte* image, bool registered);
  absl::Status RunPacked(LaneState& lane, const DevicePlan::Piece& piece, std::byte* image, bool registered);
  absl::Status CopyAll(LaneState& lane, std::span<const device::CopyRange> ranges, bool registered);
  absl::Status CopyStrided(LaneState& lane, const DevicePlan::Piece& piece, std::byte* image, bool registered);
  void Progressed(Progress progress);
  void KeepPace(uint64_t bytes);
  absl::Status FenceAt(Progress wanted, std::span<const DeviceStream> streams, double timeout_s);
  static device::Stream StreamOf(const device::Device& device, std::span<const DeviceStream> streams);

  std::vector<LaneState> lanes_;
  std::vector<const void*> addresses_;
  Options options_;
  std::vector<device::CopyRange> ranges_;  // of the helper

  sync::Mutex mutex_;
  sync::Condition changed_;
  Progress progress_ NEVE_GUARDED_BY(mutex_) = Progress::kNothing;
  bool fenced_ NEVE_GUARDED_BY(mutex_) = false;  // somebody waits: no more pauses
  bool ended_ NEVE_GUARDED_BY(mutex_) = false;
  absl::Status given_up_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve::capture

#endif  // NEVE_CAPTURE_DEVICE_SAVE_H_
