// Asynchronous file I/O: one interface, two engines (io_uring, thread pool), chosen by a probe that really writes.
//
// Contract
//   Owner     One thread owns a Ring, the first that calls anything but Create: submissions, regions, Poll and the
//             destructor are called by it only. Completions run on it, inside Poll (and the destructor); they may
//             submit, but not Poll. Wake() is the one call any thread may make.
//   Memory    Buffers and descriptors are borrowed until the completion ran.
//   Transfers Short reads and writes are continued inside the engine; a completion reports the whole transfer or an
//             error. A read that meets end of file completes with the bytes it got.
//   Depth     At most options.depth operations are in the kernel at once; more are queued here, in order of submission.
//   Order     None between operations in flight. Submit an fsync only after the writes it covers have completed.
//   Cancel    There is none: operations are small and always complete. The destructor waits for those in flight; queued
//             ones complete with Closed. Every completion runs exactly once.
//   Errors    Those of ErrnoStatus, naming file, offset and length. EINTR and EAGAIN are retried, up to a limit.
//             Unavailable also when the kernel takes no more submissions (a filter that came later); Closed in a forked
//             child, which inherits no ring and may destroy its copy freely.
//   Faults    Hooks of base/os/io_hooks.h are asked before each transfer (Call::kPread, kPwrite, kFdatasync): an error
//             takes the place of the kernel's answer, a shortened transfer is continued by another one.
#ifndef NEVE_RING_RING_H_
#define NEVE_RING_RING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve::ring {

struct Options {
  int depth = 8;                 // operations in the kernel at once, 1..256
  std::string engine;            // "", "uring" or "threads"; "" takes NEVE_IO, else the probe's choice
  int threads = 2;               // of the thread engine
};

// Receives bytes transferred, or an error that names file, offset and length.
using Done = std::function<void(absl::StatusOr<uint64_t>)>;

class Ring {
 public:
  // Fails with Unavailable only when an engine was forced and does not work, with Invalid for options out of range.
  // `reason` (optional) receives why io_uring was not chosen, in one line, empty when it was.
  static absl::StatusOr<std::unique_ptr<Ring>> Create(const Options& options, std::string* reason = nullptr);
  virtual ~Ring() = default;

  virtual std::string_view engine() const = 0;   // "uring" or "threads"

  // Registers memory that many transfers will use (a slot's pages). Best effort: OK when registered or when the engine
  // has no use for it; an error (memlock) means transfers work unregistered. Regions stay until Unregister or the end.
  virtual absl::Status RegisterRegion(std::span<std::byte> region) = 0;
  virtual void UnregisterRegion(std::span<std::byte> region) = 0;

  virtual void Write(const os::File& file, uint64_t offset, std::span<const std::byte> source, Done done) = 0;
  virtual void Read(const os::File& file, uint64_t offset, std::span<std::byte> target, Done done) = 0;
  virtual void Fdatasync(const os::File& file, Done done) = 0;

  // Submits what is queued, then runs completions that are there. `wait`: first blocks until at least one operation
  // completed or Wake() was called; returns at once when nothing is in flight and Wake() is pending.
  // Returns the number of completions run.
  virtual int Poll(bool wait) = 0;
  virtual void Wake() = 0;           // thread: any
  virtual int pending() const = 0;   // submitted or queued, not completed
};

// Whether io_uring works here: sets a ring up and writes, syncs and reads through it, in an unlinked file under
// `folder` (empty: in memory). The error says which step was refused and what to do.
absl::Status ProbeUring(const std::string& folder);

}  // namespace neve::ring

#endif  // NEVE_RING_RING_H_
