// The probe. It writes, syncs and reads through a ring of its own, because a setup that succeeds proves little: filters
// exist that allow io_uring_setup and refuse io_uring_enter, and old kernels lack the operations.
#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "ring/ring.h"
#include "ring/uring_setup.h"

#if NEVE_HAVE_URING
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/os/random.h"
#include "base/os/unique_handle.h"
#endif

namespace neve::ring {

#if NEVE_HAVE_URING
namespace {

constexpr unsigned kProbeBytes = 4096;
constexpr unsigned kProbeEntries = 4;

struct RingTraits {
  using Handle = io_uring*;
  static Handle Invalid() { return nullptr; }
  static void Close(Handle ring) { io_uring_queue_exit(ring); }
};

// A file without a name. The hooks are not asked: an injected fault must not look like a refusal of io_uring.
absl::StatusOr<os::UniqueFd> OpenNameless(const std::string& folder) {
  if (folder.empty()) {
    os::UniqueFd fd(::memfd_create("neve-probe", MFD_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, "memfd_create for the probe of io_uring");
    return fd;
  }
  os::UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  // Some file systems lack O_TMPFILE.
  const std::string path = absl::StrFormat("%s/.neve-probe-%s", folder, os::RandomHex(16));
  fd.reset(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrFormat("create a file in %s for the probe of io_uring", folder));
  ::unlink(path.c_str());
  return fd;
}

// Runs the one entry that was prepared and expects `wanted` from it.
absl::Status RunOne(io_uring* ring, const char* what, int wanted) {
  int result;
  do {
    result = io_uring_submit_and_wait(ring, 1);
  } while (result == -EINTR);
  if (result < 0) return UringRefused("io_uring_enter", -result);
  io_uring_cqe* cqe = nullptr;
  do {
    result = io_uring_wait_cqe(ring, &cqe);
  } while (result == -EINTR);
  if (result < 0) return UringRefused("io_uring_enter", -result);
  const int got = cqe->res;
  io_uring_cqe_seen(ring, cqe);
  if (got < 0) return UringRefused(what, -got);
  if (got != wanted) return Unavailable(absl::StrFormat("%s: moved %d bytes of %d", what, got, wanted));
  return absl::OkStatus();
}

}  // namespace

absl::Status ProbeUring(const std::string& folder) {
  NEVE_ASSIGN_OR_RETURN(const os::UniqueFd fd, OpenNameless(folder));
  io_uring ring;
  NEVE_RETURN_IF_ERROR(SetUpUring(kProbeEntries, &ring));
  const os::UniqueHandle<RingTraits> closer(&ring);
  NEVE_RETURN_IF_ERROR(EnableUring(&ring));

  std::array<unsigned char, kProbeBytes> written, found;
  for (unsigned i = 0; i < kProbeBytes; ++i) written[i] = static_cast<unsigned char>(i * 7 + i / 256);
  found.fill(0);
  io_uring_prep_write(io_uring_get_sqe(&ring), fd.get(), written.data(), kProbeBytes, 0);
  NEVE_RETURN_IF_ERROR(RunOne(&ring, "a write by io_uring", kProbeBytes));
  io_uring_prep_fsync(io_uring_get_sqe(&ring), fd.get(), IORING_FSYNC_DATASYNC);
  NEVE_RETURN_IF_ERROR(RunOne(&ring, "a sync by io_uring", 0));
  io_uring_prep_read(io_uring_get_sqe(&ring), fd.get(), found.data(), kProbeBytes, 0);
  NEVE_RETURN_IF_ERROR(RunOne(&ring, "a read by io_uring", kProbeBytes));
  if (written != found) return Unavailable("a read by io_uring returned other bytes than were written");
  return absl::OkStatus();
}

#else

absl::Status ProbeUring(const std::string&) { return Unsupported("neve was built without liburing"); }

#endif

}  // namespace neve::ring
