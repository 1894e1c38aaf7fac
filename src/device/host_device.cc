#include "device/host_device.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "absl/strings/str_format.h"
#include "base/sync/mutex.h"

namespace neve::device {
namespace {

class HostDevice final : public Device {
 public:
  int ordinal() const override { return -1; }
  std::string name() const override { return "host"; }
  BatchForm batch_form() const override { return BatchForm::kNone; }
  bool has_kernels() const override { return true; }
  absl::Status Health() const override { return absl::OkStatus(); }

  absl::StatusOr<MemoryKind> KindOf(const void* address) const override {
    const auto* at = static_cast<const std::byte*>(address);
    sync::MutexLock lock(mutex_);
    for (const auto& [begin, bytes] : registered_) {
      if (at >= begin && at < begin + bytes) return MemoryKind::kRegistered;
    }
    return MemoryKind::kHost;
  }
  absl::StatusOr<void*> Allocate(MemoryKind kind, uint64_t bytes) override {
    constexpr uint64_t kAlignment = 256;
    void* address =
        bytes > SIZE_MAX / 2 ? nullptr : std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (address == nullptr) return Exhausted(absl::StrFormat("host: no memory for %d bytes", bytes), ENOMEM);
    if (kind == MemoryKind::kRegistered) {
      sync::MutexLock lock(mutex_);
      registered_[static_cast<std::byte*>(address)] = bytes;
    }
    return address;
  }
  void Free(MemoryKind kind, void* address) override {
    if (kind == MemoryKind::kRegistered) {
      sync::MutexLock lock(mutex_);
      registered_.erase(static_cast<std::byte*>(address));
    }
    std::free(address);
  }
  absl::Status RegisterHost(std::span<std::byte> memory) override {
    sync::MutexLock lock(mutex_);
    for (const auto& [begin, bytes] : registered_) {
      if (memory.data() < begin + bytes && begin < memory.data() + memory.size()) {
        return absl::AlreadyExistsError("host: part of this memory is registered");
      }
    }
    registered_[memory.data()] = memory.size();
    return absl::OkStatus();
  }
  absl::Status UnregisterHost(std::byte* begin) override {
    sync::MutexLock lock(mutex_);
    return registered_.erase(begin) == 1 ? absl::OkStatus() : Invalid("host: no registered memory begins there");
  }

  absl::StatusOr<Stream> CreateStream() override { return Stream{this}; }
  void DestroyStream(Stream) override {}
  absl::StatusOr<bool> IsCapturing(Stream) override { return false; }
  absl::StatusOr<Event> CreateEvent() override { return Event{this}; }
  void DestroyEvent(Event) override {}
  absl::Status Record(Event, Stream) override { return absl::OkStatus(); }
  absl::Status Wait(Stream, Event) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Reached(Event) override { return true; }
  absl::Status Synchronize(Event) override { return absl::OkStatus(); }

  absl::Status Copy(Stream, const CopyRange& range) override {
    std::memcpy(range.target, range.source, range.bytes);
    return absl::OkStatus();
  }
  absl::Status CopyBatch(Stream stream, std::span<const CopyRange> ranges) override {
    for (const CopyRange& range : ranges) NEVE_RETURN_IF_ERROR(Copy(stream, range));
    return absl::OkStatus();
  }
  absl::Status Gather(Stream, const kernels::GatherItem* items, uint32_t count, void* target) override {
    for (uint32_t i = 0; i < count; ++i) kernels::GatherShare(items[i], static_cast<uint8_t*>(target), 0, 1);
    return absl::OkStatus();
  }
  absl::Status GatherStrided(Stream, const kernels::StridedView& view, uint64_t first, uint64_t count, void* target) override {
    kernels::GatherStridedShare(view, first, count, static_cast<uint8_t*>(target), 0, 1);
    return absl::OkStatus();
  }

 private:
  mutable sync::Mutex mutex_;
  std::map<std::byte*, uint64_t> registered_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Device> MakeHostDevice() { return std::make_shared<HostDevice>(); }

}  // namespace neve::device
