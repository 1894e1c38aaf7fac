#include "device/simulated.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/os/thread.h"
#include "base/sync/pause.h"
#include "device/simulated_device.h"

namespace neve::device::internal {
namespace {

constexpr uint64_t kAllocationUnit = 256;

}  // namespace

bool SimulatedDevice::Start() {
  const int file = ::memfd_create("neve-simulated", MFD_CLOEXEC);
  if (file < 0) return false;
  const bool sized = ::ftruncate(file, static_cast<off_t>(options_.memory_bytes)) == 0;
  void* arena = sized ? ::mmap(nullptr, options_.memory_bytes, PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
  void* view = sized ? ::mmap(nullptr, options_.memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  if (arena != MAP_FAILED) arena_ = static_cast<std::byte*>(arena);
  if (view != MAP_FAILED) view_ = static_cast<std::byte*>(view);
  if (arena_ == nullptr || view_ == nullptr) return false;
  started_ = os::StartThread(&Main, this, &thread_);
  return started_;
}

SimulatedDevice::~SimulatedDevice() {
  {
    sync::MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (started_) ::pthread_join(thread_, nullptr);
  if (arena_ != nullptr) ::munmap(arena_, options_.memory_bytes);
  if (view_ != nullptr) ::munmap(view_, options_.memory_bytes);
}

// ---- The device's own thread ----

void SimulatedDevice::Run() {
  os::NameThisThread("neve-simulated");
  constexpr sync::Nanos kNever = INT64_MAX;
  sync::MutexLock lock(mutex_);
  while (!stop_) {
    sync::Nanos next = kNever;
    const sync::Nanos now = sync::MonotonicNow();
    StreamState* stream = PickLocked(now, &next);
    if (stream != nullptr) {
      busy_ = true;
      StepLocked(*stream);
      busy_ = false;
      changed_.NotifyAll();
      continue;
    }
    // What may run again is announced by a change, or comes with time.
    const double seconds = next == kNever ? 3600 : static_cast<double>(next - now) * 1e-9;
    uint64_t before = 0;
    for (const auto& one : streams_) before += one->given + one->wanted;
    before += default_.given + default_.wanted;
    const bool held = held_;
    changed_.WaitFor(mutex_, seconds, [&]() NEVE_REQUIRES(mutex_) {
      uint64_t after = default_.given + default_.wanted;
      for (const auto& one : streams_) after += one->given + one->wanted;
      return stop_ || after != before || held_ != held;
    });
  }
}

bool SimulatedDevice::MayRunLocked(const StreamState& stream) const {
  if (stream.operations.empty()) return false;
  if (stream.pace == Pace::kEager) return true;
  if (held_) return false;
  return stream.pace == Pace::kSeeded || stream.operations.front()->number <= stream.wanted;
}

bool SimulatedDevice::ReadyLocked(Operation& head, sync::Nanos now, sync::Nanos* next) {
  if (head.kind == Operation::Kind::kWait) return head.mark == nullptr || head.mark->reached;
  if (head.kind != Operation::Kind::kCopies) return true;
  if (!head.begun) {
    head.begun = true;
    head.begin = now + options_.latency;
  }
  sync::Nanos free = head.begin;
  if (options_.bytes_per_s > 0 && head.range < head.ranges.size()) {
    const CopyRange& range = head.ranges[head.range];
    if (const int engine = EngineOf(range); engine >= 0) free = std::max(free, engine_free_[static_cast<size_t>(engine)]);
  }
  if (free <= now) return true;
  *next = std::min(*next, free);
  return false;
}

StreamState* SimulatedDevice::PickLocked(sync::Nanos now, sync::Nanos* next) {
  if (!sticky_.ok()) return nullptr;
  std::vector<StreamState*> eager, others;
  const auto look = [&](StreamState* stream) NEVE_REQUIRES(mutex_) {
    if (!MayRunLocked(*stream) || !ReadyLocked(*stream->operations.front(), now, next)) return;
    (stream->pace == Pace::kEager ? eager : others).push_back(stream);
  };
  look(&default_);
  for (const auto& stream : streams_) look(stream.get());
  const std::vector<StreamState*>& among = eager.empty() ? others : eager;
  return among.empty() ? nullptr : among[random_.Below(among.size())];
}

int SimulatedDevice::EngineOf(const CopyRange& range) const {
  const bool from = Own(range.source), to = Own(range.target);
  return from == to ? -1 : from ? 0 : 1;
}

absl::Status SimulatedDevice::StepCopyLocked(Operation& head, bool* ended) {
  if (head.range == head.ranges.size()) {
    *ended = true;
    return absl::OkStatus();
  }
  const CopyRange range = head.ranges[head.range];
  const uint64_t bytes = std::min(options_.slice_bytes, range.bytes - head.done);
  if (FaultLocked(Fault::kCopyFails)) return Unavailable("simulated: a copy failed (an uncorrectable memory error)");
  auto* const target = static_cast<std::byte*>(range.target) + head.done;
  const auto* const source = static_cast<const std::byte*>(range.source) + head.done;
  NEVE_RETURN_IF_ERROR(CheckLocked(source, bytes));
  NEVE_RETURN_IF_ERROR(CheckLocked(target, bytes));
  if (const int engine = EngineOf(range); options_.bytes_per_s > 0 && engine >= 0) {
    sync::Nanos& free = engine_free_[static_cast<size_t>(engine)];
    free = std::max(free, head.begin) + static_cast<sync::Nanos>(static_cast<double>(bytes) / options_.bytes_per_s * 1e9);
  }
  counts_.copied_bytes += bytes;
  mutex_.Unlock();
  std::memcpy(Reachable(target), Reachable(source), bytes);
  mutex_.Lock();
  head.done += bytes;
  if (head.done == range.bytes) {
    ++head.range;
    head.done = 0;
  }
  *ended = head.range == head.ranges.size();
  return absl::OkStatus();
}

void SimulatedDevice::StepLocked(StreamState& stream) {
  Operation& head = *stream.operations.front();
  bool ended = true;
  absl::Status status;
  if (head.kind == Operation::Kind::kCopies) {
    status = StepCopyLocked(head, &ended);
  } else if (head.kind == Operation::Kind::kKernel) {
    const uint64_t to = head.whole ? head.total : std::min(head.total, head.done + options_.slice_bytes);
    mutex_.Unlock();
    status = head.body(head.done, to);
    mutex_.Lock();
    head.done = to;
    ended = to == head.total;
  } else if (head.kind == Operation::Kind::kRecord) {
    head.mark->reached = true;
  }
  if (!status.ok()) {
    BreakLocked(std::move(status));
    return;
  }
  if (!ended || stream.operations.empty()) return;  // emptied: the device broke meanwhile
  stream.done = head.number;
  stream.operations.pop_front();
}

void SimulatedDevice::WantLocked(StreamState* stream, uint64_t number) {
  if (stream->wanted >= number) return;
  stream->wanted = number;
  for (const auto& operation : stream->operations) {
    if (operation->number > number) break;
    if (operation->kind != Operation::Kind::kWait || operation->mark == nullptr || operation->mark->reached) continue;
    WantLocked(operation->mark->stream, operation->mark->number);
  }
  changed_.NotifyAll();
}

void SimulatedDevice::BreakLocked(absl::Status why) {
  if (sticky_.ok()) sticky_ = std::move(why);
  changed_.NotifyAll();
}

bool SimulatedDevice::FaultLocked(Fault fault) {
  int& count = faults_[static_cast<size_t>(fault)];
  if (count < 0) return true;
  return count > 0 && --count == 0;
}

void SimulatedDevice::Settle() {
  sync::MutexLock lock(mutex_);
  changed_.Wait(mutex_, [this]() NEVE_REQUIRES(mutex_) {
    if (busy_) return false;
    if (!sticky_.ok()) return true;
    sync::Nanos next = INT64_MAX;
    const auto may = [&](StreamState& stream) NEVE_REQUIRES(mutex_) {
      return stream.pace == Pace::kEager && !stream.operations.empty() &&
             (ReadyLocked(*stream.operations.front(), sync::MonotonicNow(), &next) || next != INT64_MAX);
    };
    return !may(default_) && std::none_of(streams_.begin(), streams_.end(), [&](const auto& stream) { return may(*stream); });
  });
}

// ---- Memory ----

bool SimulatedDevice::RegisteredLocked(const void* address, uint64_t bytes) const {
  // A range may lie in several registrations that meet.
  const auto* at = static_cast<const std::byte*>(address);
  const std::byte* const end = at + bytes;
  while (at < end) {
    auto found = registered_.upper_bound(at);
    if (found == registered_.begin()) return false;
    --found;
    if (at >= found->first + found->second) return false;
    at = found->first + found->second;
  }
  return true;
}

absl::Status SimulatedDevice::CheckLocked(const void* address, uint64_t bytes) const {
  if (!OnDevice(address) || bytes == 0) return absl::OkStatus();
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(address) - arena_);
  auto found = allocations_.upper_bound(offset);
  if (found != allocations_.begin()) {
    --found;
    if (offset + bytes <= found->first + found->second) return absl::OkStatus();
  }
  return Unavailable(absl::StrFormat("simulated: illegal address (%d bytes at offset %d of the device)", bytes, offset));
}

absl::StatusOr<MemoryKind> SimulatedDevice::KindOf(const void* address) const {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  if (OnDevice(address)) return MemoryKind::kDevice;
  if (RegisteredLocked(address, 1)) return MemoryKind::kRegistered;
  return options_.adopts_host ? MemoryKind::kDevice : MemoryKind::kHost;
}

absl::StatusOr<void*> SimulatedDevice::Allocate(MemoryKind kind, uint64_t bytes) {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  if (FaultLocked(Fault::kAllocate)) return Exhausted("simulated: out of memory (injected)", ENOMEM);
  if (kind != MemoryKind::kDevice) {
    void* address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (address == nullptr) return Exhausted(absl::StrFormat("simulated: no host memory for %d bytes", bytes), ENOMEM);
    registered_[static_cast<std::byte*>(address)] = bytes;
    return address;
  }
  const uint64_t taken = (std::max<uint64_t>(bytes, 1) + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
  uint64_t at = 0;
  for (const auto& [begin, size] : allocations_) {
    if (at + taken <= begin) break;
    at = begin + (size + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
  }
  if (taken > options_.memory_bytes || at > options_.memory_bytes - taken) {
    return Exhausted(absl::StrFormat("simulated: out of memory: no %d bytes of %d", bytes, options_.memory_bytes), ENOMEM);
  }
  allocations_[at] = std::max<uint64_t>(bytes, 1);
  counts_.allocated_bytes += bytes;
  counts_.allocated_bytes_max = std::max(counts_.allocated_bytes_max, counts_.allocated_bytes);
  return arena_ + at;
}

void SimulatedDevice::Free(MemoryKind kind, void* address) {
  sync::MutexLock lock(mutex_);
  if (kind != MemoryKind::kDevice) {
    registered_.erase(static_cast<std::byte*>(address));
    std::free(address);
    return;
  }
  const auto found = allocations_.find(static_cast<uint64_t>(static_cast<std::byte*>(address) - arena_));
  if (found == allocations_.end()) return;
  counts_.allocated_bytes -= found->second;
  std::memset(Reachable(address), 0xdb, found->second);  // what reads it later reads nothing that was saved
  allocations_.erase(found);
}

absl::Status SimulatedDevice::RegisterHost(std::span<std::byte> memory) {
  sync::MutexLock lock(mutex_);
  if (!sticky_.ok()) return sticky_;
  if (FaultLocked(Fault::kRegister)) return Unavailable("simulated: the registration was refused (injected)");
  if (options_.register_bytes_max != 0 && memory.size() > options_.register_bytes_max) {
    return Exhausted(absl::StrFormat("simulated: %d bytes are more than one registration may have (%d)", memory.size(),
                                     options_.register_bytes_max));
  }
  for (const auto& [begin, bytes] : registered_) {
    if (memory.data() < begin + bytes && begin < memory.data() + memory.size()) {
      return absl::AlreadyExistsError("simulated: part of this memory is registered");
    }
  }
  registered_[memory.data()] = memory.size();
  counts_.registered_bytes += memory.size();
  ++counts_.registrations;
  return absl::OkStatus();
}

absl::Status SimulatedDevice::UnregisterHost(std::byte* begin) {
  sync::MutexLock lock(mutex_);
  const auto found = registered_.find(begin);
  if (found == registered_.end()) return Invalid("simulated: no registered memory begins there");
  counts_.registered_bytes -= found->second;
  registered_.erase(found);
  return absl::OkStatus();
}

}  // namespace neve::device::internal

namespace neve::device {

std::shared_ptr<Simulated> Simulated::Create(SimulatedOptions options) {
  auto device = std::make_shared<internal::SimulatedDevice>(std::move(options));
  return device->Start() ? device : nullptr;
}

}  // namespace neve::device
