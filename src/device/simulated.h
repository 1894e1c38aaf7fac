// A simulated device with real asynchrony, for tests and for measurements without hardware.
//
//   memory     its own: what Allocate gives traps when the host touches it. Work that touches memory which is not allocated, or
//   no
//              more, is a sticky error, as a device's illegal address is.
//   streams    run on one thread of the device, late and in slices, so that two copies of the same memory tear. Which stream is
//              next comes from the seed and from each stream's pace.
//   pace       kEager: runs as soon as it may. kLate: runs nothing until a host thread waits for it. kSeeded: a coin.
//   hold       Hold() stops all streams that are not eager, host waits or not; Settle() returns when the eager ones have nothing
//              left that may run. So a test decides who was first, by no clock.
//   events     by CUDA's rules, never recorded and recorded again included.
//   engines    one for each direction, with bandwidth and latency; unlimited by default.
//   faults     by kind, the n-th time that it comes by.
#ifndef NEVE_DEVICE_SIMULATED_H_
#define NEVE_DEVICE_SIMULATED_H_

#include <functional>
#include <memory>
#include <vector>

#include "base/sync/executor.h"
#include "device/device.h"

namespace neve::device {

enum class Pace : uint8_t { kEager, kLate, kSeeded };
enum class Fault : uint8_t {
  kAllocate,     // Exhausted
  kRegister,     // Unavailable: refused
  kCopyRefused,  // the call fails, nothing was handed over
  kCopyFails,    // the copy itself fails, later: a sticky error
  kRecord,       // the call fails
  kStream,       // a stream cannot be made
};

struct SimulatedOptions {
  uint64_t seed = 1;
  uint64_t memory_bytes = uint64_t{256} << 20;  // all of the device's
  uint64_t register_bytes_max = 0;              // a single registration beyond this is refused; 0: none is
  double bytes_per_s = 0;                       // of each copy engine; 0: as fast as memory
  sync::Nanos latency = 0;                      // of a copy
  uint64_t slice_bytes = 64 << 10;
  BatchForm batch = BatchForm::k13000;
  bool kernels = true;
  bool adopts_host = false;           // host memory that is not registered counts as the device's own
  Pace default_pace = Pace::kSeeded;  // of the default stream
  std::vector<Pace> paces;            // of the streams that CreateStream makes, in order; then by the seed
};

// What was asked of it since it was made.
struct SimulatedCounts {
  uint64_t copies = 0, batches = 0, gathers = 0, copied_bytes = 0;
  uint64_t allocated_bytes = 0, allocated_bytes_max = 0;  // of device memory
  uint64_t registered_bytes = 0, registrations = 0;
};

class Simulated : public Device {
 public:
  // Null when memory or a thread cannot be had.
  static std::shared_ptr<Simulated> Create(SimulatedOptions options);

  // A stream of the program's own.
  virtual Stream NewStream(Pace pace) = 0;
  // A kernel that writes `bytes` times `value`, in slices, after the work before it on the stream.
  virtual absl::Status Fill(Stream stream, void* target, uint64_t bytes, uint8_t value) = 0;
  // Device memory from and to the host, at once: not a part of any stream.
  virtual void Poke(void* target, const void* source, uint64_t bytes) = 0;
  virtual void Peek(void* target, const void* source, uint64_t bytes) = 0;
  virtual absl::Status SynchronizeStream(Stream stream) = 0;
  virtual void SetCapturing(Stream stream, bool capturing) = 0;

  virtual void Hold() = 0;
  virtual void Release() = 0;
  virtual void Settle() = 0;
  virtual void FailAt(Fault fault, int nth) = 0;  // 1: the next; every further one works again
  virtual void FailAlways(Fault fault) = 0;
  virtual void Break(const std::string& why) = 0;  // a sticky error out of the blue
  virtual SimulatedCounts counts() const = 0;
};

}  // namespace neve::device

#endif  // NEVE_DEVICE_SIMULATED_H_
