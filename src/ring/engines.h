// The two engines behind Ring, by their factories. Internal to this folder.
#ifndef NEVE_RING_ENGINES_H_
#define NEVE_RING_ENGINES_H_

#include <memory>

#include "base/error/status.h"
#include "ring/ring.h"

namespace neve::ring {

absl::StatusOr<std::unique_ptr<Ring>> CreateThreadEngine(const Options& options);

// The owner may be another thread than the caller: the kernel learns it at the first Poll or RegisterRegion.
// Unsupported where this was built without liburing.
absl::StatusOr<std::unique_ptr<Ring>> CreateUringEngine(const Options& options);

}  // namespace neve::ring

#endif  // NEVE_RING_ENGINES_H_
