// What is handed to the streams of the simulated device.
#include <algorithm>
#include <cstring>

#include "device/simulated_device.h"

namespace neve::device::internal {

StreamState* SimulatedDevice::StateLocked(Stream stream) {
  if (stream.handle == nullptr) return &default_;
  for (const auto& one : streams_) {
    if (one.get() == stream.handle) return one.get();
  }
  return nullptr;
}

EventState* SimulatedDevice::StateLocked(Event event) {
  const auto found = events_.find(event.handle);
  return found == events_.end() ? nullptr : found->second.get();
}

Stream SimulatedDevice::NewStream(Pace pace) {
  sync::MutexLock lock(mutex_);
  streams_.push_back(std::make_unique<StreamState>());
  streams_.back()->pace = pace;
  return Stream{streams_.back().get()};
}

absl::StatusOr<Stream> SimulatedDevice::CreateStream() {
  Pace pace;
  {
    sync::MutexLock lock(mutex_);
    if (!sticky_.ok()) return sticky_;
    if (FaultLocked(Fault::kStream)) return Exhausted("simulated: no stream can be made (injected)");
    pace = made_ < options_.paces.size() ? options_.paces[made_] : static_cast<Pace>(random_.Below(3));
    ++made_;
  }
  return NewStream(pace);
}

void SimulatedDevice::DestroyStream(Stream stream) {
  sync::MutexLock lock(mutex_);
  // It stays until the device goes: what it was given runs on, and may be waited for.
  if (StreamState* state = StateLocked(stream); state != nullptr) WantLocked(state, state->given);
}

absl::StatusOr<bool> SimulatedDevice::IsCapturing(Stream stream) {
  sync::MutexLock lock(mutex_);
  StreamState* state = StateLocked(stream);
  if (state == nullptr) return Invalid("simulated: that is no stream of this device");
  return state->capturing;
}

void SimulatedDevice::SetCapturing(Stream stream, bool capturing) {
  sync::MutexLock lock(mutex_);
  StateLocked(stream)->capturing = capturing;
}

absl::StatusOr<Event> SimulatedDevice::CreateEvent() {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  auto state = std::make_unique<EventState>();
  void* const handle = state.get();
  events_[handle] = std::move(state);
  return Event{handle};
}

void SimulatedDevice::DestroyEvent(Event event) {
  sync::MutexLock lock(mutex_);
  events_.erase(event.handle);
}

absl::Status SimulatedDevice::GiveLocked(Stream stream, std::unique_ptr<Operation> operation, uint64_t* number) {
  if (!sticky_.ok()) return sticky_;
  StreamState* state = StateLocked(stream);
  if (state == nullptr) return Invalid("simulated: that is no stream of this device");
  if (state->capturing) return Unavailable("simulated: the stream is captured into a graph: this call would break the capture");
  operation->number = ++state->given;
  if (operation->kind == Operation::Kind::kRecord) {
    operation->mark->stream = state;
    operation->mark->number = operation->number;
  }
  if (number != nullptr) *number = operation->number;
  state->operations.push_back(std::move(operation));
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status SimulatedDevice::Record(Event event, Stream stream) {
  sync::MutexLock lock(mutex_);
  EventState* state = StateLocked(event);
  if (state == nullptr) return Invalid("simulated: that is no event of this device");
  if (FaultLocked(Fault::kRecord)) return Unavailable("simulated: the event could not be recorded (injected)");
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::kRecord;
  operation->mark = std::make_shared<Mark>();
  const std::shared_ptr<Mark> mark = operation->mark;
  NEVE_RETURN_IF_ERROR(GiveLocked(stream, std::move(operation)));
  state->mark = mark;
  return absl::OkStatus();
}

absl::Status SimulatedDevice::Wait(Stream stream, Event event) {
  sync::MutexLock lock(mutex_);
  EventState* state = StateLocked(event);
  if (state == nullptr) return Invalid("simulated: that is no event of this device");
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::kWait;
  operation->mark = state->mark;
  return GiveLocked(stream, std::move(operation));
}

absl::StatusOr<bool> SimulatedDevice::Reached(Event event) {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  EventState* state = StateLocked(event);
  if (state == nullptr) return Invalid("simulated: that is no event of this device");
  return state->mark == nullptr || state->mark->reached;
}

absl::Status SimulatedDevice::AwaitLocked(StreamState* stream, uint64_t number) {
  WantLocked(stream, number);
  changed_.Wait(mutex_, [&]() NEVE_REQUIRES(mutex_) { return stream->done >= number || (!sticky_.ok() && !busy_); });
  return sticky_;
}

absl::Status SimulatedDevice::Synchronize(Event event) {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  EventState* state = StateLocked(event);
  if (state == nullptr) return Invalid("simulated: that is no event of this device");
  if (state->mark == nullptr) return absl::OkStatus();
  const std::shared_ptr<Mark> mark = state->mark;
  return AwaitLocked(mark->stream, mark->number);
}

absl::Status SimulatedDevice::SynchronizeStream(Stream stream) {
  sync::MutexLock lock(mutex_);
  StreamState* state = StateLocked(stream);
  if (state == nullptr) return Invalid("simulated: that is no stream of this device");
  return AwaitLocked(state, state->given);
}

// ---- Work ----

absl::Status SimulatedDevice::Copies(Stream stream, std::span<const CopyRange> ranges, bool batch) {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  if (batch && options_.batch == BatchForm::kNone) return Unsupported("simulated: this driver has no batched copy");
  if (batch && stream.handle == nullptr) return Invalid("simulated: a batch of copies cannot go on the default stream");
  if (FaultLocked(Fault::kCopyRefused)) return Unavailable("simulated: the copy was refused (injected)");
  bool stops = false;
  for (const CopyRange& range : ranges) {
    const bool loose = !options_.adopts_host && ((!OnDevice(range.source) && !RegisteredLocked(range.source, range.bytes)) ||
                                                 (!OnDevice(range.target) && !RegisteredLocked(range.target, range.bytes)));
    if (loose && batch) return Invalid("simulated: a batch of copies needs registered host memory");
    stops |= loose;
  }
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::kCopies;
  for (const CopyRange& range : ranges) {
    if (range.bytes != 0) operation->ranges.push_back(range);
  }
  if (batch) {
    for (size_t i = operation->ranges.size(); i > 1; --i)
      std::swap(operation->ranges[i - 1], operation->ranges[random_.Below(i)]);
    ++counts_.batches;
  }
  counts_.copies += operation->ranges.size();
  uint64_t number = 0;
  NEVE_RETURN_IF_ERROR(GiveLocked(stream, std::move(operation), &number));
  return stops ? AwaitLocked(StateLocked(stream), number) : absl::OkStatus();
}

absl::Status SimulatedDevice::GiveKernel(Stream stream, std::function<absl::Status(uint64_t, uint64_t)> body, uint64_t total,
                                         bool whole) {
  sync::MutexLock lock(mutex_);
  auto operation = std::make_unique<Operation>();
  operation->body = std::move(body);
  operation->total = total;
  operation->whole = whole;
  return GiveLocked(stream, std::move(operation));
}

absl::Status SimulatedDevice::Fill(Stream stream, void* target, uint64_t bytes, uint8_t value) {
  return GiveKernel(
      stream,
      [this, target, value](uint64_t from, uint64_t to) {
        auto* const at = static_cast<std::byte*>(target) + from;
        NEVE_RETURN_IF_ERROR(Check(at, to - from));
        std::memset(Reachable(at), value, to - from);
        return absl::OkStatus();
      },
      bytes, false);
}

absl::Status SimulatedDevice::Gather(Stream stream, const kernels::GatherItem* items, uint32_t count, void* target) {
  if (!options_.kernels) return Unsupported("simulated: the kernels were not loaded");
  {
    sync::MutexLock lock(mutex_);
    ++counts_.gathers;
  }
  return GiveKernel(
      stream,
      [this, items, count, target](uint64_t, uint64_t) {
        NEVE_RETURN_IF_ERROR(Check(items, count * sizeof(kernels::GatherItem)));
        const auto* const list = reinterpret_cast<const kernels::GatherItem*>(Reachable(items));
        for (uint32_t i = 0; i < count; ++i) {
          kernels::GatherItem item = list[i];
          NEVE_RETURN_IF_ERROR(Check(reinterpret_cast<void*>(item.address), item.bytes));
          NEVE_RETURN_IF_ERROR(Check(static_cast<std::byte*>(target) + item.offset, item.bytes));
          item.address = reinterpret_cast<uint64_t>(Reachable(reinterpret_cast<void*>(item.address)));
          kernels::GatherShare(item, reinterpret_cast<uint8_t*>(Reachable(target)), 0, 1);
        }
        return absl::OkStatus();
      },
      1, true);
}

absl::Status SimulatedDevice::GatherStrided(Stream stream, const kernels::StridedView& view, uint64_t first, uint64_t count,
                                            void* target) {
  if (!options_.kernels) return Unsupported("simulated: the kernels were not loaded");
  return GiveKernel(
      stream,
      [this, view, first, count, target](uint64_t, uint64_t) {
        kernels::StridedView reached = view;
        NEVE_RETURN_IF_ERROR(Check(target, count * view.item_bytes));
        NEVE_RETURN_IF_ERROR(Check(kernels::ElementOf(view, first), view.item_bytes));
        NEVE_RETURN_IF_ERROR(Check(kernels::ElementOf(view, first + count - 1), view.item_bytes));
        reached.address = reinterpret_cast<uint64_t>(Reachable(reinterpret_cast<void*>(view.address)));
        kernels::GatherStridedShare(reached, first, count, reinterpret_cast<uint8_t*>(Reachable(target)), 0, 1);
        return absl::OkStatus();
      },
      1, true);
}

}  // namespace neve::device::internal
