// Device: what neve asks of an accelerator, in one small interface. Three implementations: CUDA (cuda_device.h), the host itself
// (host_device.h: everything done before a call returns) and a simulated device with real asynchrony (simulated.h).
// tests/device/conformance_test.cc says what all of them do.
//
// Invariants
//   - A stream runs what it is given in order. Two streams know no order but what events make.
//   - An event marks the point of a stream where it was recorded last. Waiting on one that was never recorded waits for nothing.
//     Recording it again moves it; who waited before waits for the old point.
//   - A call that hands work to a stream returns before that work is done, but for copies that touch host memory which is not
//     registered: those may return only when it is.
//   - No call changes the calling thread's current device or context, and none leaves an error behind for the next call of the
//     program to find: each error is in the Status of the call that met it.
//   - An error of the device's own (sticky) is given by every later call, as Unavailable, and belongs to the program: nobody here
//     tries to clear it.
// Thread: any, for every call.
#ifndef NEVE_DEVICE_DEVICE_H_
#define NEVE_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error/status.h"
#include "kernels/gather.h"
#include "kernels/strided.h"

namespace neve::device {

// kRegistered: host memory that copies reach without a stop on the way. kHost: any other.
enum class MemoryKind : uint8_t { kHost, kRegistered, kDevice };

// A CUstream; null is the default stream. Owned by whoever made it.
struct Stream {
  void* handle = nullptr;
};
struct Event {
  void* handle = nullptr;
};

struct CopyRange {
  void* target;
  const void* source;
  uint64_t bytes;
};

// The forms of the driver's batched copy; kNone: copies go one by one.
enum class BatchForm : uint8_t { kNone, k12080, k13000 };

class Device {
 public:
  virtual ~Device() = default;
  virtual int ordinal() const = 0;
  virtual std::string name() const = 0;  // "cuda:0", "host", "simulated:0"
  virtual BatchForm batch_form() const = 0;
  virtual bool has_kernels() const = 0;     // whether Gather and GatherStrided work; else ranges are copied one by one
  virtual absl::Status Health() const = 0;  // the sticky error

  // ---- Memory ----
  virtual absl::StatusOr<MemoryKind> KindOf(const void* address) const = 0;
  // kDevice or kRegistered; Exhausted when there is none, which leaves everything as it was.
  virtual absl::StatusOr<void*> Allocate(MemoryKind kind, uint64_t bytes) = 0;
  virtual void Free(MemoryKind kind, void* address) = 0;  // what streams still do with it must have ended
  // Makes host memory kRegistered. AlreadyExists when part of it is (UnregisterHost of the same begin may help); Unavailable or
  // Exhausted when it is refused: the memory is kHost then, as before.
  virtual absl::Status RegisterHost(std::span<std::byte> memory) = 0;
  virtual absl::Status UnregisterHost(std::byte* begin) = 0;

  // ---- Streams and events ----
  virtual absl::StatusOr<Stream> CreateStream() = 0;  // has no order with the default stream
  virtual void DestroyStream(Stream stream) = 0;      // what it was given runs on, and is not waited for
  // Whether calls on the stream are being recorded into a graph instead of run.
  virtual absl::StatusOr<bool> IsCapturing(Stream stream) = 0;
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual void DestroyEvent(Event event) = 0;  // who waits for it still gets there
  virtual absl::Status Record(Event event, Stream stream) = 0;
  virtual absl::Status Wait(Stream stream, Event event) = 0;
  virtual absl::StatusOr<bool> Reached(Event event) = 0;
  virtual absl::Status Synchronize(Event event) = 0;  // blocks the calling thread

  // ---- Work ----
  virtual absl::Status Copy(Stream stream, const CopyRange& range) = 0;
  // In any order among themselves. Host memory must be registered, the stream not the default one.
  virtual absl::Status CopyBatch(Stream stream, std::span<const CopyRange> ranges) = 0;
  // `items` and `target` are memory of the device.
  virtual absl::Status Gather(Stream stream, const kernels::GatherItem* items, uint32_t count, void* target) = 0;
  virtual absl::Status GatherStrided(Stream stream, const kernels::StridedView& view, uint64_t first, uint64_t count,
                                     void* target) = 0;
};

// A stream, an event, memory of a device that goes when its owner does.
class OwnedStream {
 public:
  OwnedStream() = default;
  OwnedStream(std::shared_ptr<Device> device, Stream stream) : device_(std::move(device)), stream_(stream) {}
  OwnedStream(OwnedStream&& other) noexcept : device_(std::move(other.device_)), stream_(other.stream_) {}
  OwnedStream& operator=(OwnedStream&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~OwnedStream() {
    if (device_ != nullptr) device_->DestroyStream(stream_);
  }
  static absl::StatusOr<OwnedStream> Create(const std::shared_ptr<Device>& device) {
    NEVE_ASSIGN_OR_RETURN(const Stream stream, device->CreateStream());
    return OwnedStream(device, stream);
  }
  Stream get() const { return stream_; }

 private:
  std::shared_ptr<Device> device_;
  Stream stream_;
};

class OwnedEvent {
 public:
  OwnedEvent() = default;
  OwnedEvent(std::shared_ptr<Device> device, Event event) : device_(std::move(device)), event_(event) {}
  OwnedEvent(OwnedEvent&& other) noexcept : device_(std::move(other.device_)), event_(other.event_) {}
  OwnedEvent& operator=(OwnedEvent&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~OwnedEvent() {
    if (device_ != nullptr) device_->DestroyEvent(event_);
  }
  static absl::StatusOr<OwnedEvent> Create(const std::shared_ptr<Device>& device) {
    NEVE_ASSIGN_OR_RETURN(const Event event, device->CreateEvent());
    return OwnedEvent(device, event);
  }
  Event get() const { return event_; }

 private:
  std::shared_ptr<Device> device_;
  Event event_;
};

class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(std::shared_ptr<Device> device, MemoryKind kind, void* address, uint64_t bytes)
      : device_(std::move(device)), kind_(kind), address_(static_cast<std::byte*>(address)), bytes_(bytes) {}
  OwnedMemory(OwnedMemory&& other) noexcept { *this = std::move(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(kind_, other.kind_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~OwnedMemory() {
    if (device_ != nullptr) device_->Free(kind_, address_);
  }
  static absl::StatusOr<OwnedMemory> Create(const std::shared_ptr<Device>& device, MemoryKind kind, uint64_t bytes) {
    NEVE_ASSIGN_OR_RETURN(void* address, device->Allocate(kind, bytes));
    return OwnedMemory(device, kind, address, bytes);
  }
  std::byte* get() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  MemoryKind kind_ = MemoryKind::kHost;
  std::byte* address_ = nullptr;
  uint64_t bytes_ = 0;
};

// The device of that number, as CUDA counts them: the same object each time, kept until the process ends. NotFound without such a
// device, Unavailable where the driver is missing or too old, saying what was found. The first call looks for the driver.
absl::StatusOr<std::shared_ptr<Device>> Find(int ordinal);
// What Find finds from now on for every ordinal, for tests and for NEVE_DEVICE=simulated; null: the driver's devices again.
void Use(std::shared_ptr<Device> device);
// One line: the driver, its devices, and how copies will go; Unavailable says what is missing. No context is made.
absl::StatusOr<std::string> Describe();

}  // namespace neve::device

#endif  // NEVE_DEVICE_DEVICE_H_
