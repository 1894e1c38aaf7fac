// One operation of a ring and the rules that both engines share: hooks, short transfers, retries, end of file,
// messages.
//
//   while (true) {
//     if (Prepare(op, limit, &result)) result = <the kernel moves op.transfer_bytes>;
//     if (Absorb(op, result, &outcome)) break;      // outcome is what `done` receives
//   }
#ifndef NEVE_RING_OPERATION_H_
#define NEVE_RING_OPERATION_H_

#include <cstddef>
#include <cstdint>

#include "base/error/status.h"
#include "base/os/syscalls.h"
#include "ring/ring.h"

namespace neve::ring {

// One transfer moves at most this much; longer operations are continued. It is also the most that the kernel takes in
// one registered buffer, so a transfer never spans two.
inline constexpr uint64_t kTransferBytesMax = uint64_t{1} << 30;

// In a row, for one transfer. A device that says EAGAIN this often is broken, not busy.
inline constexpr int kRetriesMax = 1000;

struct Operation {
  enum class Kind : uint8_t { kWrite, kRead, kFdatasync };

  Kind kind = Kind::kFdatasync;
  const os::File* file = nullptr;   // borrowed
  uint64_t offset = 0;
  std::byte* memory = nullptr;      // borrowed; only read from by writes
  uint64_t length = 0;
  Done done;

  uint64_t moved = 0;               // by the transfers that are over
  uint64_t transfer_bytes = 0;      // of the one to be made
  bool made = false;                // whether that one went to the kernel
  int retries = 0;

  uint64_t transfer_offset() const { return offset + moved; }
  std::byte* transfer_memory() const { return memory + moved; }
};

Operation MakeWrite(const os::File& file, uint64_t offset, std::span<const std::byte> source, Done done);
Operation MakeRead(const os::File& file, uint64_t offset, std::span<std::byte> target, Done done);
Operation MakeFdatasync(const os::File& file, Done done);

// Sets up the next transfer, of at most `limit` bytes, and asks the hooks. False: nothing goes to the kernel, and
// `result` is what it would have said.
bool Prepare(Operation& operation, uint64_t limit, int64_t* result);

// Takes what the kernel said (bytes, or -errno). True: the operation is over. False: another transfer is needed.
bool Absorb(Operation& operation, int64_t result, absl::StatusOr<uint64_t>* outcome);

// "write of 4096 bytes at 8192 of /a/b"
std::string Describe(const Operation& operation);

}  // namespace neve::ring

#endif  // NEVE_RING_OPERATION_H_
