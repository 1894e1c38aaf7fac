#include "capture/device_save.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "capture/orders.h"

namespace neve::capture {

using device::CopyRange;
using device::MemoryKind;
using device::OwnedEvent;
using device::OwnedMemory;
using device::OwnedStream;
using device::Stream;

absl::StatusOr<std::shared_ptr<DeviceLane>> DeviceLane::Create(std::shared_ptr<device::Device> device) {
  std::shared_ptr<DeviceLane> lane(new DeviceLane(std::move(device)));
  NEVE_ASSIGN_OR_RETURN(lane->copies_, OwnedStream::Create(lane->device_));
  NEVE_ASSIGN_OR_RETURN(lane->packing_, OwnedStream::Create(lane->device_));
  for (auto* events : {&lane->packed_, &lane->left_}) {
    for (OwnedEvent& event : *events) {
      NEVE_ASSIGN_OR_RETURN(event, OwnedEvent::Create(lane->device_));
    }
  }
  return lane;
}

constexpr uint64_t kWindowAlignment = 256;

void DeviceLane::MakeScratch(const DevicePlan& plan) {
  if (!plan.packs() || !device_->has_kernels() || refused_ == &plan) return;
  const uint64_t list_bytes = plan.list_items() * sizeof(kernels::GatherItem);
  const uint64_t window_list_bytes =
      std::min<uint64_t>(plan.list_items(), plan.options().window_items_max) * sizeof(kernels::GatherItem);
  const uint64_t wanted = window_list_bytes + kWindowAlignment + plan.scratch_bytes();
  const auto make = [&](OwnedMemory& memory, MemoryKind kind, uint64_t bytes) -> absl::Status {
    if (memory.bytes() >= bytes) return absl::OkStatus();
    memory = OwnedMemory();  // first, so that there is never more than one of each
    NEVE_ASSIGN_OR_RETURN(memory, OwnedMemory::Create(device_, kind, bytes));
    return absl::OkStatus();
  };
  absl::Status status = make(lists_, MemoryKind::kRegistered, list_bytes);
  for (OwnedMemory& scratch : scratch_) {
    if (status.ok()) status = make(scratch, MemoryKind::kDevice, wanted);
  }
  if (status.ok()) return;
  for (OwnedMemory& scratch : scratch_) scratch = OwnedMemory();
  refused_ = &plan;
  obs::Log(obs::Level::kInfo, absl::StrFormat("event=no_scratch device=%s bytes=%d error=\"%s\"", device_->name(), 2 * wanted,
                                              std::string(status.message())));
}

Stream DeviceSave::StreamOf(const device::Device& device, std::span<const DeviceStream> streams) {
  for (const DeviceStream& stream : streams) {
    if (stream.device == device.ordinal()) return Stream{stream.handle};
  }
  return Stream{};
}

absl::StatusOr<std::shared_ptr<DeviceSave>> DeviceSave::Begin(std::vector<Part> parts, std::span<const void* const> addresses,
                                                              std::span<const DeviceStream> streams, const Options& options) {
  auto save = std::make_shared<DeviceSave>();
  save->options_ = options;
  save->addresses_.assign(addresses.begin(), addresses.end());
  for (Part& part : parts) {
    device::Device& device = *part.lane->device();
    NEVE_RETURN_IF_ERROR(device.Health());
    const Stream stream = StreamOf(device, streams);
    NEVE_ASSIGN_OR_RETURN(const bool capturing, device.IsCapturing(stream));
    if (capturing) {
      return Invalid(absl::StrFormat(
          "the current stream of %s is being captured into a graph: save outside of the captured region", device.name()));
    }
    LaneState lane;
    NEVE_ASSIGN_OR_RETURN(lane.mark, OwnedEvent::Create(part.lane->device()));
    NEVE_ASSIGN_OR_RETURN(lane.first, OwnedEvent::Create(part.lane->device()));
    NEVE_ASSIGN_OR_RETURN(lane.end, OwnedEvent::Create(part.lane->device()));
    if (Kept(Order::kCallerIsMarked)) NEVE_RETURN_IF_ERROR(device.Record(lane.mark.get(), stream));
    lane.part = std::move(part);
    save->lanes_.push_back(std::move(lane));
  }
  return save;
}

bool DeviceSave::has_first() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const LaneState& lane) { return !lane.part.plan->first().empty(); });
}

// ---- The helper ----

void DeviceSave::Progressed(Progress progress) {
  sync::MutexLock lock(mutex_);
  progress_ = progress;
  changed_.NotifyAll();
}

void DeviceSave::KeepPace(uint64_t bytes) {
  if (options_.rate_bytes_per_s == 0) return;
  sync::MutexLock lock(mutex_);
  changed_.WaitFor(mutex_, static_cast<double>(bytes) / static_cast<double>(options_.rate_bytes_per_s),
                   [this]() NEVE_REQUIRES(mutex_) { return fenced_; });
}

absl::Status DeviceSave::CopyAll(LaneState& lane, std::span<const CopyRange> ranges, bool registered) {
  device::Device& device = *lane.part.lane->device();
  const Stream stream = lane.part.lane->copies_.get();
  if (registered && ranges.size() > 1 && device.batch_form() != device::BatchForm::kNone) return device.CopyBatch(stream, ranges);
  for (const CopyRange& range : ranges) NEVE_RETURN_IF_ERROR(device.Copy(stream, range));
  return absl::OkStatus();
}

// Element by element, or by rows of them: the long way for what no kernel packs.
absl::Status DeviceSave::CopyStrided(LaneState& lane, const DevicePlan::Piece& piece, std::byte* image, bool registered) {
  constexpr size_t kRangesMax = 4096;
  const DevicePlan& plan = *lane.part.plan;
  const DevicePlan::Part& part = plan.parts(piece)[0];
  const kernels::StridedView view = plan.view(piece, plan.AddressOf({part.stored, 0, 0, 0}, addresses_));
  const bool rows = view.rank > 0 && view.strides[view.rank - 1] == view.item_bytes;
  const uint64_t row = rows ? static_cast<uint64_t>(view.extents[view.rank - 1]) : 1;
  const uint64_t end = part.to / view.item_bytes;
  std::byte* const target = image + plan.layout().stored()[part.stored].offset;
  ranges_.clear();
  for (uint64_t index = part.from / view.item_bytes; index < end;) {
    const uint64_t count = std::min(row - index % row, end - index);
    ranges_.push_back({target + index * view.item_bytes, kernels::ElementOf(view, index), count * view.item_bytes});
    index += count;
    if (ranges_.size() < kRangesMax && index < end) continue;
    NEVE_RETURN_IF_ERROR(CopyAll(lane, ranges_, registered));
    ranges_.clear();
  }
  return absl::OkStatus();
}

absl::Status DeviceSave::RunPacked(LaneState& lane, const DevicePlan::Piece& piece, std::byte* image, bool registered) {
  DeviceLane& own = *lane.part.lane;
  device::Device& device = *own.device();
  const DevicePlan& plan = *lane.part.plan;
  const std::span<const DevicePlan::Part> parts = plan.parts(piece);
  const size_t which = lane.window++ % own.scratch_.size();
  const Stream packing = own.packing_.get(), copies = own.copies_.get();
  const OwnedMemory& scratch = own.scratch_[which];
  std::byte* const list = scratch.get();
  std::byte* const window = scratch.get() + (scratch.bytes() - plan.scratch_bytes()) / kWindowAlignment * kWindowAlignment;

  if (Kept(Order::kPackingAwaitsScratch)) NEVE_RETURN_IF_ERROR(device.Wait(packing, own.left_[which].get()));
  ranges_.clear();
  if (piece.kind == DevicePlan::Kind::kGather) {
    // Each window has its own part of the lists, which the device may read late; one save at a time uses them.
    auto* const items = reinterpret_cast<kernels::GatherItem*>(own.lists_.get()) + lane.list_at;
    lane.list_at += parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      items[i] = {reinterpret_cast<uint64_t>(plan.AddressOf(parts[i], addresses_)), static_cast<uint32_t>(parts[i].to),
                  parts[i].packed};
    }
    const auto upload = [&] { return device.Copy(packing, {list, items, parts.size() * sizeof(kernels::GatherItem)}); };
    const bool before = Kept(Order::kListBeforeGather);
    if (before) NEVE_RETURN_IF_ERROR(upload());
    NEVE_RETURN_IF_ERROR(
        device.Gather(packing, reinterpret_cast<const kernels::GatherItem*>(list), static_cast<uint32_t>(parts.size()), window));
    if (!before) NEVE_RETURN_IF_ERROR(upload());
    for (const DevicePlan::Run& run : plan.runs(piece)) ranges_.push_back({image + run.image, window + run.packed, run.bytes});
  } else {
    const kernels::StridedView view = plan.view(piece, plan.AddressOf({parts[0].stored, 0, 0, 0}, addresses_));
    NEVE_RETURN_IF_ERROR(
        device.GatherStrided(packing, view, parts[0].from / view.item_bytes, piece.bytes / view.item_bytes, window));
    ranges_.push_back({image + plan.layout().stored()[parts[0].stored].offset + parts[0].from, window, piece.bytes});
  }
  if (Kept(Order::kPackingIsMarked)) NEVE_RETURN_IF_ERROR(device.Record(own.packed_[which].get(), packing));
  if (Kept(Order::kCopiesAwaitPacking)) NEVE_RETURN_IF_ERROR(device.Wait(copies, own.packed_[which].get()));
  NEVE_RETURN_IF_ERROR(CopyAll(lane, ranges_, registered));
  if (Kept(Order::kScratchIsMarked)) NEVE_RETURN_IF_ERROR(device.Record(own.left_[which].get(), copies));
  return absl::OkStatus();
}

absl::Status DeviceSave::RunPiece(LaneState& lane, const DevicePlan::Piece& piece, std::byte* image, bool registered) {
  const DevicePlan& plan = *lane.part.plan;
  const bool packed = piece.kind == DevicePlan::Kind::kGather || piece.kind == DevicePlan::Kind::kStrided;
  if (packed && lane.part.lane->scratch_[1].bytes() != 0) return RunPacked(lane, piece, image, registered);
  if (piece.kind == DevicePlan::Kind::kStrided) return CopyStrided(lane, piece, image, registered);
  ranges_.clear();
  for (const DevicePlan::Part& part : plan.parts(piece)) {
    ranges_.push_back(
        {image + plan.layout().stored()[part.stored].offset + part.from, plan.AddressOf(part, addresses_), part.to - part.from});
  }
  return CopyAll(lane, ranges_, registered);
}

absl::Status DeviceSave::RunLane(LaneState& lane, std::span<std::byte> image, bool registered, bool first) {
  DeviceLane& own = *lane.part.lane;
  device::Device& device = *own.device();
  const DevicePlan& plan = *lane.part.plan;
  if (first) {
    own.MakeScratch(plan);
    if (Kept(Order::kCopiesAwaitCaller)) NEVE_RETURN_IF_ERROR(device.Wait(own.copies_.get(), lane.mark.get()));
    if (Kept(Order::kPackingAwaitsCaller)) NEVE_RETURN_IF_ERROR(device.Wait(own.packing_.get(), lane.mark.get()));
  }
  const device::Event event = first ? lane.first.get() : lane.end.get();
  const bool after = first || Kept(Order::kEndAfterCopies);
  if (!after) NEVE_RETURN_IF_ERROR(device.Record(event, own.copies_.get()));
  // Without this order the two phases change places.
  const bool early = first == Kept(Order::kFirstBeforeRest);
  absl::Status status;
  for (const DevicePlan::Piece& piece : early ? plan.first() : plan.rest()) {
    status = RunPiece(lane, piece, image.data(), registered);
    if (!status.ok()) break;
    KeepPace(piece.bytes);
  }
  // Also after an error: what was handed over before it runs, and is waited for.
  const absl::Status recorded = after ? device.Record(event, own.copies_.get()) : absl::OkStatus();
  return status.ok() ? recorded : status;
}

absl::Status DeviceSave::Run(std::span<std::byte> image, bool registered) {
  absl::Status status;
  for (LaneState& lane : lanes_) {
    if (status.ok()) status = RunLane(lane, image, registered, true);
  }
  Progressed(Progress::kFirst);
  for (LaneState& lane : lanes_) {
    if (status.ok()) status = RunLane(lane, image, registered, false);
  }
  if (!status.ok()) {
    // Some lane may have no end: nothing tells when its copies are over but a record that comes after them.
    for (LaneState& lane : lanes_) {
      DeviceLane& own = *lane.part.lane;
      own.device()->Record(own.packed_[0].get(), own.packing_.get()).IgnoreError();  // what was packed for no copy ends too
      own.device()->Wait(own.copies_.get(), own.packed_[0].get()).IgnoreError();
      own.device()->Record(lane.end.get(), own.copies_.get()).IgnoreError();
    }
    sync::MutexLock lock(mutex_);
    if (given_up_.ok()) given_up_ = status;
  }
  Progressed(Progress::kAll);
  return status;
}

absl::Status DeviceSave::Await() {
  absl::Status status;
  for (LaneState& lane : lanes_) {
    if (!Kept(Order::kCapturedAfterEnd)) break;
    const absl::Status ended = lane.part.lane->device()->Synchronize(lane.end.get());
    if (status.ok()) status = ended;
  }
  sync::MutexLock lock(mutex_);
  ended_ = Kept(Order::kCapturedAfterEnd);
  changed_.NotifyAll();
  return given_up_.ok() ? status : given_up_;
}

// ---- Whoever fences ----

absl::Status DeviceSave::FenceAt(Progress wanted, std::span<const DeviceStream> streams, double timeout_s) {
  {
    sync::MutexLock lock(mutex_);
    fenced_ = true;
    changed_.NotifyAll();
    const auto there = [&]() NEVE_REQUIRES(mutex_) { return progress_ >= wanted; };
    if (Kept(Order::kFenceAwaitsRecord) && !changed_.WaitFor(mutex_, timeout_s, there)) {
      given_up_ =
          Timeout(absl::StrFormat("the copies of this save were not handed to the device within %.3g s of its fence, so the save "
                                  "was given up and training goes on",
                                  timeout_s));
      return given_up_;
    }
    if (ended_) return absl::OkStatus();
  }
  const Order order = wanted == Progress::kFirst ? Order::kFirstAwaitedInSave : Order::kCallerAwaitsEnd;
  for (LaneState& lane : lanes_) {
    if (!Kept(order)) continue;
    device::Device& device = *lane.part.lane->device();
    // A device in an error of its own runs no copies any more, and the program learns of it by its own next call.
    device.Wait(StreamOf(device, streams), wanted == Progress::kFirst ? lane.first.get() : lane.end.get()).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status DeviceSave::Fence(std::span<const DeviceStream> streams, double timeout_s) {
  return FenceAt(Progress::kAll, streams, timeout_s);
}

absl::Status DeviceSave::FenceFirst(std::span<const DeviceStream> streams, double timeout_s) {
  return FenceAt(Progress::kFirst, streams, timeout_s);
}

}  // namespace neve::capture
