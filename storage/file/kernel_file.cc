#include "storage/file/kernel_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/os/io_hooks.h"

namespace neve::storage {
namespace {

template <typename Call>
int RetryInterrupted(Call call) {
  int result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

}  // namespace

void BlockFileSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGURG);
  sigaddset(&signals, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

absl::StatusOr<WriteLease> WriteLease::Take(const os::File& file) {
  const os::CallInfo info{.call = os::Call::kLease, .path = file.path};
  if (const os::IoHooksInUse hooks; hooks) {
    if (const int error = hooks->Before(info).error_number) {
      return ErrnoStatus(error, absl::StrFormat("taking a write lease on %s", file.path));
    }
  }
  const int fd = file.fd.get();
  // The signal is set before every lease, because releasing one resets it to SIGIO, whose default ends the process. The
  // owner is this thread, which blocks it; without an owner the whole process would get it.
  const f_owner_ex owner{.type = F_OWNER_TID, .pid = static_cast<pid_t>(::syscall(SYS_gettid))};
  if (::fcntl(fd, F_SETSIG, SIGURG) == -1 || ::fcntl(fd, F_SETOWN_EX, &owner) == -1 ||
      RetryInterrupted([&] { return ::fcntl(fd, F_SETLEASE, F_WRLCK); }) == -1) {
    return ErrnoStatus(errno, absl::StrFormat("taking a write lease on %s", file.path));
  }
  if (const os::IoHooksInUse hooks; hooks) hooks->After(info, nullptr);
  return WriteLease(fd);
}

WriteLease::~WriteLease() {
  if (fd_ != -1) RetryInterrupted([&] { return ::fcntl(fd_, F_SETLEASE, F_UNLCK); });
}

bool DirectTransfersFit(const os::File& file, uint64_t alignment) {
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(file.fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return true;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return true;
  return status.stx_dio_offset_align != 0 && alignment % status.stx_dio_offset_align == 0 && status.stx_dio_mem_align != 0 &&
         alignment % status.stx_dio_mem_align == 0;
#else
  return true;
#endif
}

absl::Status StopDirectTransfers(const os::File& file) {
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  if (flags == -1 || ::fcntl(file.fd.get(), F_SETFL, flags & ~O_DIRECT) == -1) {
    return ErrnoStatus(errno, absl::StrFormat("turning O_DIRECT off on %s", file.path));
  }
  return absl::OkStatus();
}

absl::Status StartWriteback(const os::File& file, uint64_t offset, uint64_t bytes) {
  if (RetryInterrupted([&] {
        return ::sync_file_range(file.fd.get(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes), SYNC_FILE_RANGE_WRITE);
      }) == -1 &&
      errno != ENOSYS && errno != EINVAL && errno != ESPIPE) {
    return ErrnoStatus(errno, absl::StrFormat("writing back bytes [%u, %u) of %s", offset, offset + bytes, file.path));
  }
  return absl::OkStatus();
}

absl::Status WaitForWriteback(const os::File& file, uint64_t offset, uint64_t bytes) {
  const unsigned flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (RetryInterrupted([&] {
        return ::sync_file_range(file.fd.get(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes), flags);
      }) == -1 &&
      errno != ENOSYS && errno != EINVAL && errno != ESPIPE) {
    return ErrnoStatus(errno, absl::StrFormat("writing back bytes [%u, %u) of %s", offset, offset + bytes, file.path));
  }
  return absl::OkStatus();
}

void DropCachedPages(const os::File& file, uint64_t offset, uint64_t bytes) {
  ::posix_fadvise(file.fd.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

void ReadOnlyWhatIsAsked(const os::File& file) { ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_RANDOM); }

uint64_t FreeBytes(const std::string& path) {
  struct statvfs status{};
  if (::statvfs(path.c_str(), &status) != 0) return 0;
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

bool NameIsTaken(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0;
}

}  // namespace neve::storage
