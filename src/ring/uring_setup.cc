#include "ring/uring_setup.h"

#if NEVE_HAVE_URING

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"

namespace neve::ring {

absl::Status UringRefused(const char* call, int error_number) {
  const char* advice = "";
  switch (error_number) {
    case EPERM:
    case EACCES:
      advice = "; a container's filter or the sysctl kernel.io_uring_disabled forbids it: allow io_uring there";
      break;
    case ENOSYS: advice = "; the kernel is older than 5.6, or a container's filter hides it"; break;
    case ENOMEM: advice = "; raise the limit of locked memory (ulimit -l)"; break;
    default: break;
  }
  return Unavailable(absl::StrFormat("%s: %s%s", call, std::strerror(error_number), advice), error_number);
}

absl::Status SetUpUring(unsigned entries, io_uring* ring) {
  int result = -EINVAL;
  for (const unsigned flags :
       {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED, 0u}) {
    result = io_uring_queue_init(entries, ring, flags);
    if (result != -EINVAL) break;   // EINVAL: flags that this kernel does not know
  }
  return result < 0 ? UringRefused("io_uring_setup", -result) : absl::OkStatus();
}

absl::Status EnableUring(io_uring* ring) {
  if ((ring->flags & IORING_SETUP_R_DISABLED) == 0) return absl::OkStatus();
  // By number: liburing before 2.4 declares io_uring_enable_rings and does not export it.
  const long result = ::syscall(__NR_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  return result < 0 ? UringRefused("io_uring_register", errno) : absl::OkStatus();
}

}  // namespace neve::ring

#endif  // NEVE_HAVE_URING
