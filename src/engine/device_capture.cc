// Saves of states of which some tensors lie on devices. The caller's thread marks its stream and copies what lies on the host;
// the thread of copier_ hands the rest to the devices, waits for it, digests the image in RAM, and hands it on.
//
// Only one save's copies run at a time: the pool gives no second entry to fill meanwhile, so the next save waits for them.
#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "capture/orders.h"
#include "device/device.h"
#include "engine/engine_impl.h"

namespace neve {
namespace {

constexpr int kDigestHelpersMax = 3;
constexpr double kFenceTimeout = 60;  // seconds in which the copies must be handed over

}  // namespace

absl::StatusOr<std::string> DescribeDevices() { return device::Describe(); }

absl::Status EngineImpl::OpenLanes(std::span<const int32_t> devices) {
  for (int32_t ordinal : devices) {
    if (lanes_.count(ordinal) != 0) continue;
    if (copier_ == nullptr) {
      // At normal priority: a fence waits for it.
      copier_ = sync::ThreadExecutor::Create({.name = "neve-copies", .background = false});
      if (copier_ == nullptr) {
        return Exhausted(
            "no thread could be started for copies from devices: raise the limit of processes (ulimit -u, pids cgroup)", EAGAIN);
      }
      digest_crew_ = sync::Crew::Create(std::min(sync::UsableCores() - 1, kDigestHelpersMax), /*background=*/true);
    }
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<device::Device> device, device::Find(ordinal));
    registrations_->UseDevice(device);
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<capture::DeviceLane> lane, capture::DeviceLane::Create(std::move(device)));
    lanes_[ordinal] = std::move(lane);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<capture::DeviceSave>> EngineImpl::BeginDeviceSave(const DevicePlans& plans,
                                                                                 const SaveRequest& request) {
  NEVE_RETURN_IF_ERROR(OpenLanes(request.state->devices()));
  if (checked_plans_ != &plans) {
    // Once for a structure: a kernel that reads what is no memory of its device would break the program's own work there.
    NEVE_RETURN_IF_ERROR(CheckAddresses(*request.state, request.addresses));
    checked_plans_ = &plans;
  }
  std::vector<capture::DeviceSave::Part> parts;
  for (const auto& [ordinal, plan] : plans.devices) parts.push_back({lanes_[ordinal], plan});
  return capture::DeviceSave::Begin(std::move(parts), request.addresses, request.streams,
                                    {.rate_bytes_per_s = ram_.has_value() ? ram_->rate_bytes_per_s : 0});
}

absl::Status EngineImpl::CheckAddresses(const State& state, std::span<const void* const> addresses) const {
  for (size_t i = 0; i < addresses.size(); ++i) {
    const int32_t ordinal = state.device_of(i);
    if (ordinal < 0 || addresses[i] == nullptr) continue;  // no address: an empty tensor
    NEVE_ASSIGN_OR_RETURN(const device::MemoryKind kind, lanes_.at(ordinal)->device()->KindOf(addresses[i]));
    if (kind == device::MemoryKind::kHost) {
      return Invalid(absl::StrFormat("tensor \"%s\" is said to lie on device %d, and its address is host memory",
                                     state.structure().tensors[i].name, ordinal));
    }
  }
  return absl::OkStatus();
}

void EngineImpl::FlyDeviceSave(DeviceFlight flight, const SaveRequest& request) {
  {
    sync::MutexLock lock(mutex_);
    ++in_flight_;
  }
  const std::shared_ptr<capture::DeviceSave> copies = flight.copies;
  flight.ticket->CopiesFrom(copies);
  copier_->Post([this, flight = std::move(flight)] { FinishDeviceSave(flight); });
  // Should the fence not be kept, the save is given up and its ticket says so.
  if (!request.fence) {
    if (capture::Kept(capture::Order::kUnfencedSaveFences)) copies->Fence(request.streams, kFenceTimeout).IgnoreError();
  } else if (copies->has_first()) {
    copies->FenceFirst(request.streams, kFenceTimeout).IgnoreError();
  }
}

void EngineImpl::FinishDeviceSave(const DeviceFlight& flight) {
  node::Entry* const entry = flight.entry;
  const std::span<std::byte> image = entry->image().first(flight.record->image_bytes);
  absl::Status status = flight.copies->Run(image, registrations_->Covers(image));
  const absl::Status ended = flight.copies->Await();
  if (status.ok()) status = ended;
  if (!status.ok()) {
    pool_->Abandon(entry);
    metrics_->Add(obs::Metric::kSavesFailed);
    const absl::Status annotated = Annotate(status, absl::StrFormat("step %d (save %s), copies from the device",
                                                                    flight.record->key.step, flight.record->key.save.ToString()));
    NoteError(annotated);
    AbandonSave(flight.record->key.save);
    flight.ticket->FailRest(annotated);
    FlightEnded();
    return;
  }
  if (entry->slot != nullptr) entry->slot->MarkCaptured();
  flight.ticket->Reached("captured");
  const uint64_t chunk_bytes = flight.record->chunk_bytes;
  const std::span<codec::Digest> digests = entry->digests().first(flight.record->chunk_count());
  auto digest = [&](uint64_t chunk, int) {
    const uint64_t begin = chunk * chunk_bytes;
    digests[chunk] = codec::DigestOf(image.subspan(begin, std::min(chunk_bytes, image.size() - begin)));
  };
  digest_crew_->Run(digests.size(), digest);
  HandOn(entry, flight.record, flight.due, flight.ticket, flight.begin);
  FlightEnded();
}

}  // namespace neve
