// File calls that only the file tier needs, beside base/os/syscalls.h and by the same rules: EINTR is retried, the hooks are
// asked where they have a name for the call, failures name the path.
#ifndef NEVE_STORAGE_FILE_KERNEL_FILE_H_
#define NEVE_STORAGE_FILE_KERNEL_FILE_H_

#include <cstdint>
#include <string>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve::storage {

// Blocks, for the calling thread, the signals that file calls raise and whose default may end the process: SIGURG, which
// WriteLease asks for, and SIGXFSZ, so that a file size limit is an EFBIG.
void BlockFileSignals();

// A write lease: granted only while nobody else has the file open or mapped. Who opens it meanwhile waits for the release,
// and the calling thread, which must have blocked SIGURG, gets that signal.
class WriteLease {
 public:
  static absl::StatusOr<WriteLease> Take(const os::File& file);  // the file must outlive the lease
  WriteLease(WriteLease&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  WriteLease& operator=(WriteLease&&) = delete;
  // Released by an explicit call: closing the descriptor would leave the lease to a forked child that inherited it.
  ~WriteLease();

 private:
  explicit WriteLease(int fd) : fd_(fd) {}
  int fd_;
};

// Whether direct transfers whose offsets, sizes and addresses are multiples of `alignment` can work on a file opened with
// O_DIRECT. True where the kernel does not say.
bool DirectTransfersFit(const os::File& file, uint64_t alignment);
// Turns O_DIRECT off on an open file.
absl::Status StopDirectTransfers(const os::File& file);

// Page cache of [offset, offset + bytes) of a file written or read without O_DIRECT.
absl::Status StartWriteback(const os::File& file, uint64_t offset, uint64_t bytes);
absl::Status WaitForWriteback(const os::File& file, uint64_t offset, uint64_t bytes);
void DropCachedPages(const os::File& file, uint64_t offset, uint64_t bytes);  // 0 bytes: to the end
void ReadOnlyWhatIsAsked(const os::File& file);                               // nothing ahead

// Bytes that an unprivileged writer still has on the file system of `path`; 0 when that cannot be told.
uint64_t FreeBytes(const std::string& path);
// Whether something of that name is there, a link that leads nowhere included.
bool NameIsTaken(const std::string& path);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_KERNEL_FILE_H_
