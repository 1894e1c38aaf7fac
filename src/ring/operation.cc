#include "ring/operation.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/io_hooks.h"

namespace neve::ring {
namespace {

// What direct transfers are cut at, and the finest alignment that any device takes.
constexpr uint64_t kDirectCutBytes = 4096, kDirectBytesMin = 512;

bool IsDirect(const os::File& file) {
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

bool FitsFile(const Operation& operation) {
  constexpr auto kLimit = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  return operation.offset <= kLimit && operation.length <= kLimit - operation.offset;
}

os::CallInfo InfoOf(const Operation& operation, uint64_t bytes) {
  os::CallInfo info;
  switch (operation.kind) {
    case Operation::Kind::kWrite: info.call = os::Call::kPwrite; break;
    case Operation::Kind::kRead: info.call = os::Call::kPread; break;
    case Operation::Kind::kFdatasync: info.call = os::Call::kFdatasync; break;
  }
  info.path = operation.file->path;
  info.offset = operation.transfer_offset();
  info.length = bytes;
  return info;
}

absl::Status Failure(const Operation& operation, int error_number) {
  std::string what = Describe(operation);
  struct ::statvfs room;
  const bool no_room = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  if (no_room && ::fstatvfs(operation.file->fd.get(), &room) == 0) {
    what += absl::StrFormat(" (%d bytes are free there)", static_cast<uint64_t>(room.f_bavail) * room.f_frsize);
  }
  return ErrnoStatus(error_number, std::move(what));
}

}  // namespace

Operation MakeWrite(const os::File& file, uint64_t offset, std::span<const std::byte> source, Done done) {
  Operation operation;
  operation.kind = Operation::Kind::kWrite;
  operation.file = &file;
  operation.offset = offset;
  operation.memory = const_cast<std::byte*>(source.data());
  operation.length = source.size();
  operation.done = std::move(done);
  return operation;
}

Operation MakeRead(const os::File& file, uint64_t offset, std::span<std::byte> target, Done done) {
  Operation operation = MakeWrite(file, offset, target, std::move(done));
  operation.kind = Operation::Kind::kRead;
  return operation;
}

Operation MakeFdatasync(const os::File& file, Done done) {
  Operation operation;
  operation.file = &file;
  operation.done = std::move(done);
  return operation;
}

std::string Describe(const Operation& operation) {
  if (operation.kind == Operation::Kind::kFdatasync) return absl::StrFormat("fdatasync of %s", operation.file->path);
  return absl::StrFormat("%s of %d bytes at %d of %s", operation.kind == Operation::Kind::kWrite ? "write" : "read",
                         operation.length, operation.offset, operation.file->path);
}

bool Prepare(Operation& operation, uint64_t limit, int64_t* result) {
  operation.made = false;
  operation.transfer_bytes = std::min({operation.length - operation.moved, limit, kTransferBytesMax});
  if (!FitsFile(operation)) {
    *result = -EOVERFLOW;
    return false;
  }
  if (const os::IoHooksInUse hooks; hooks) {
    const os::CallVerdict verdict = hooks->Before(InfoOf(operation, operation.transfer_bytes));
    if (verdict.error_number != 0) {
      *result = -verdict.error_number;
      return false;
    }
    if (verdict.shorten_to >= 0 && static_cast<uint64_t>(verdict.shorten_to) < operation.transfer_bytes) {
      uint64_t bytes = static_cast<uint64_t>(verdict.shorten_to);
      // A direct transfer is cut where the device could have cut it.
      if (IsDirect(*operation.file)) bytes = bytes / kDirectCutBytes * kDirectCutBytes;
      if (bytes > 0 || verdict.shorten_to == 0) operation.transfer_bytes = bytes;
    }
  }
  if (operation.kind != Operation::Kind::kFdatasync && operation.transfer_bytes == 0) {
    *result = 0;
    return false;
  }
  operation.made = true;
  return true;
}

bool Absorb(Operation& operation, int64_t result, absl::StatusOr<uint64_t>* outcome) {
  if (result == -EAGAIN || result == -EINTR) {
    if (++operation.retries <= kRetriesMax) return false;
  }
  if (result < 0) {
    *outcome = Failure(operation, static_cast<int>(-result));
    return true;
  }
  operation.retries = 0;
  const auto bytes = static_cast<uint64_t>(result);
  if (const os::IoHooksInUse hooks; hooks && operation.made) {
    const bool shows_bytes = operation.kind == Operation::Kind::kWrite;
    hooks->After(InfoOf(operation, bytes), shows_bytes ? operation.transfer_memory() : nullptr);
  }
  const uint64_t moved_before = operation.moved;
  operation.moved += bytes;
  const bool is_write = operation.kind == Operation::Kind::kWrite;
  const bool is_sync = operation.kind == Operation::Kind::kFdatasync;
  const bool is_at_end = bytes == 0 && operation.kind == Operation::Kind::kRead;
  if (is_sync || is_at_end || operation.moved == operation.length) {
    *outcome = operation.moved;
    return true;
  }
  // A direct transfer that stopped off alignment cannot be continued from there. A read stops so only at the end of the
  // file; a write is taken up again from the last whole unit.
  if (bytes > 0 && bytes < operation.transfer_bytes && operation.transfer_offset() % kDirectBytesMin != 0 &&
      IsDirect(*operation.file)) {
    if (!is_write) {
      *outcome = operation.moved;
      return true;
    }
    const uint64_t excess = operation.transfer_offset() % kDirectCutBytes;
    operation.moved -= std::min(operation.moved, excess);
  }
  if (operation.moved <= moved_before) {
    *outcome =
        ErrnoStatus(EIO, absl::StrFormat("%s made no progress after %d bytes", Describe(operation), moved_before));
    return true;
  }
  return false;
}

}  // namespace neve::ring
