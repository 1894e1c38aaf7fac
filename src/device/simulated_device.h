// The simulated device's insides: its state, its thread (simulated.cc), what is handed to its streams (simulated_streams.cc).
#ifndef NEVE_DEVICE_SIMULATED_DEVICE_H_
#define NEVE_DEVICE_SIMULATED_DEVICE_H_

#include <pthread.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/sync/mutex.h"
#include "base/sync/seeded_random.h"
#include "device/simulated.h"

namespace neve::device::internal {

struct StreamState;

// One recording of an event: reached once the stream has run what came before it.
struct Mark {
  bool reached = false;
  StreamState* stream = nullptr;
  uint64_t number = 0;  // of the operation that records it
};

struct EventState {
  std::shared_ptr<Mark> mark;  // null: never recorded
};

struct Operation {
  enum class Kind : uint8_t { kCopies, kKernel, kRecord, kWait };
  Kind kind = Kind::kKernel;
  uint64_t number = 0;
  std::vector<CopyRange> ranges;
  std::function<absl::Status(uint64_t, uint64_t)> body;  // of a kernel: does [from, to) of its `total`
  uint64_t total = 0;
  bool whole = false;  // of a kernel: in one go
  size_t range = 0;
  uint64_t done = 0;  // of the range, or of the total
  bool begun = false;
  sync::Nanos begin = 0;
  std::shared_ptr<Mark> mark;
};

struct StreamState {
  Pace pace = Pace::kSeeded;
  std::deque<std::unique_ptr<Operation>> operations;
  uint64_t given = 0, done = 0;  // numbers of the last operation handed over, and run
  uint64_t wanted = 0;           // up to here host threads wait
  bool capturing = false;
};

class SimulatedDevice final : public Simulated {
 public:
  explicit SimulatedDevice(SimulatedOptions options) : options_(std::move(options)), random_(options_.seed) {
    default_.pace = options_.default_pace;
  }
  bool Start();
  ~SimulatedDevice() override;

  int ordinal() const override { return 0; }
  std::string name() const override { return "simulated:0"; }
  BatchForm batch_form() const override { return options_.batch; }
  bool has_kernels() const override { return options_.kernels; }
  absl::Status Health() const override {
    sync::MutexLock lock(mutex_);
    return sticky_;
  }
  absl::StatusOr<MemoryKind> KindOf(const void* address) const override;
  absl::StatusOr<void*> Allocate(MemoryKind kind, uint64_t bytes) override;
  void Free(MemoryKind kind, void* address) override;
  absl::Status RegisterHost(std::span<std::byte> memory) override;
  absl::Status UnregisterHost(std::byte* begin) override;
  absl::StatusOr<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  absl::StatusOr<bool> IsCapturing(Stream stream) override;
  absl::StatusOr<Event> CreateEvent() override;
  void DestroyEvent(Event event) override;
  absl::Status Record(Event event, Stream stream) override;
  absl::Status Wait(Stream stream, Event event) override;
  absl::StatusOr<bool> Reached(Event event) override;
  absl::Status Synchronize(Event event) override;
  absl::Status Copy(Stream stream, const CopyRange& range) override { return Copies(stream, {&range, 1}, false); }
  absl::Status CopyBatch(Stream stream, std::span<const CopyRange> ranges) override { return Copies(stream, ranges, true); }
  absl::Status Gather(Stream stream, const kernels::GatherItem* items, uint32_t count, void* target) override;
  absl::Status GatherStrided(Stream stream, const kernels::StridedView& view, uint64_t first, uint64_t count,
                             void* target) override;

  Stream NewStream(Pace pace) override;
  absl::Status Fill(Stream stream, void* target, uint64_t bytes, uint8_t value) override;
  void Poke(void* target, const void* source, uint64_t bytes) override { std::memcpy(Reachable(target), source, bytes); }
  void Peek(void* target, const void* source, uint64_t bytes) override { std::memcpy(target, Reachable(source), bytes); }
  absl::Status SynchronizeStream(Stream stream) override;
  void SetCapturing(Stream stream, bool capturing) override;
  void Hold() override {
    sync::MutexLock lock(mutex_);
    held_ = true;
  }
  void Release() override {
    sync::MutexLock lock(mutex_);
    held_ = false;
    changed_.NotifyAll();
  }
  void Settle() override;
  void FailAt(Fault fault, int nth) override {
    sync::MutexLock lock(mutex_);
    faults_[static_cast<size_t>(fault)] = nth;
  }
  void FailAlways(Fault fault) override { FailAt(fault, -1); }
  void Break(const std::string& why) override {
    sync::MutexLock lock(mutex_);
    BreakLocked(Unavailable(why));
  }
  SimulatedCounts counts() const override {
    sync::MutexLock lock(mutex_);
    return counts_;
  }

 private:
  static void* Main(void* self) {
    static_cast<SimulatedDevice*>(self)->Run();
    return nullptr;
  }
  void Run();
  StreamState* PickLocked(sync::Nanos now, sync::Nanos* next) NEVE_REQUIRES(mutex_);
  bool MayRunLocked(const StreamState& stream) const NEVE_REQUIRES(mutex_);
  // Whether the head may run now; else *next may be lowered to the time when it may.
  bool ReadyLocked(Operation& head, sync::Nanos now, sync::Nanos* next) NEVE_REQUIRES(mutex_);
  void StepLocked(StreamState& stream) NEVE_REQUIRES(mutex_);
  absl::Status StepCopyLocked(Operation& head, bool* ended) NEVE_REQUIRES(mutex_);
  void WantLocked(StreamState* stream, uint64_t number) NEVE_REQUIRES(mutex_);
  void BreakLocked(absl::Status why) NEVE_REQUIRES(mutex_);
  bool FaultLocked(Fault fault) NEVE_REQUIRES(mutex_);
  StreamState* StateLocked(Stream stream) NEVE_REQUIRES(mutex_);
  EventState* StateLocked(Event event) NEVE_REQUIRES(mutex_);
  // Null on success after handing the operation over; the number it got in *number.
  absl::Status GiveLocked(Stream stream, std::unique_ptr<Operation> operation, uint64_t* number = nullptr) NEVE_REQUIRES(mutex_);
  absl::Status GiveKernel(Stream stream, std::function<absl::Status(uint64_t, uint64_t)> body, uint64_t total, bool whole);
  absl::Status Copies(Stream stream, std::span<const CopyRange> ranges, bool batch);
  absl::Status AwaitLocked(StreamState* stream, uint64_t number) NEVE_REQUIRES(mutex_);

  bool OnDevice(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= arena_ && at < arena_ + options_.memory_bytes;
  }
  bool Own(const void* address) const NEVE_REQUIRES(mutex_) {
    return OnDevice(address) || (options_.adopts_host && !RegisteredLocked(address, 1));
  }
  // Of a copy to the host 0, of one from it 1; -1: it stays on one side.
  int EngineOf(const CopyRange& range) const NEVE_REQUIRES(mutex_);
  bool RegisteredLocked(const void* address, uint64_t bytes) const NEVE_REQUIRES(mutex_);
  // Where the device itself finds it: the view of its memory that does not trap.
  std::byte* Reachable(const void* address) const {
    auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(address));
    return OnDevice(at) ? view_ + (at - arena_) : at;
  }
  absl::Status CheckLocked(const void* address, uint64_t bytes) const NEVE_REQUIRES(mutex_);
  absl::Status Check(const void* address, uint64_t bytes) const {
    sync::MutexLock lock(mutex_);
    return CheckLocked(address, bytes);
  }

  const SimulatedOptions options_;
  std::byte* arena_ = nullptr;  // as the program sees it
  std::byte* view_ = nullptr;
  pthread_t thread_{};
  bool started_ = false;

  mutable sync::Mutex mutex_;
  mutable sync::Condition changed_;
  sync::SeededRandom random_ NEVE_GUARDED_BY(mutex_);
  bool stop_ NEVE_GUARDED_BY(mutex_) = false;
  bool held_ NEVE_GUARDED_BY(mutex_) = false;
  bool busy_ NEVE_GUARDED_BY(mutex_) = false;
  absl::Status sticky_ NEVE_GUARDED_BY(mutex_);
  StreamState default_ NEVE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StreamState>> streams_ NEVE_GUARDED_BY(mutex_);
  size_t made_ NEVE_GUARDED_BY(mutex_) = 0;  // by CreateStream
  std::map<void*, std::unique_ptr<EventState>> events_ NEVE_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> allocations_ NEVE_GUARDED_BY(mutex_);  // offset in the arena, bytes
  std::map<const std::byte*, uint64_t> registered_ NEVE_GUARDED_BY(mutex_);
  std::array<sync::Nanos, 2> engine_free_ NEVE_GUARDED_BY(mutex_) = {};
  std::array<int, 6> faults_ NEVE_GUARDED_BY(mutex_) = {};
  SimulatedCounts counts_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve::device::internal

#endif  // NEVE_DEVICE_SIMULATED_DEVICE_H_
