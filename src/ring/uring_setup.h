// Setting an io_uring up, for the engine and for the probe, so that the probe tries what the engine will use.
#ifndef NEVE_RING_URING_SETUP_H_
#define NEVE_RING_URING_SETUP_H_

#if NEVE_HAVE_URING

#include <liburing.h>

#include "base/error/status.h"

namespace neve::ring {

// Single issuer with deferred task work where the kernel has them (6.1), else less. The ring may come out disabled:
// then EnableUring, called by the thread that will own it, makes it ready.
absl::Status SetUpUring(unsigned entries, io_uring* ring);
absl::Status EnableUring(io_uring* ring);

// "io_uring_enter: Operation not permitted; ...": with what to do for the refusals that containers give.
absl::Status UringRefused(const char* call, int error_number);

}  // namespace neve::ring

#endif  // NEVE_HAVE_URING

#endif  // NEVE_RING_URING_SETUP_H_
