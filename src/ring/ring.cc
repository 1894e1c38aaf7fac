// The choice of an engine.
#include "ring/ring.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "ring/engines.h"

namespace neve::ring {
namespace {

constexpr int kDepthMax = 256, kThreadsMax = 256;

absl::StatusOr<std::unique_ptr<Ring>> CreateProbedUring(const Options& options) {
  NEVE_RETURN_IF_ERROR(ProbeUring(""));
  return CreateUringEngine(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ring>> Ring::Create(const Options& options, std::string* reason) {
  std::string ignored;
  if (reason == nullptr) reason = &ignored;
  reason->clear();
  if (options.depth < 1 || options.depth > kDepthMax) {
    return Invalid(absl::StrFormat("depth of a ring is %d, must be 1 to %d", options.depth, kDepthMax));
  }
  if (options.threads < 1 || options.threads > kThreadsMax) {
    return Invalid(absl::StrFormat("threads of a ring are %d, must be 1 to %d", options.threads, kThreadsMax));
  }
  std::string engine = options.engine;
  const char* asked_by = "the options";
  if (engine.empty()) {
    const char* const variable = std::getenv("NEVE_IO");
    if (variable != nullptr) engine = variable;
    asked_by = "NEVE_IO";
  }
  if (engine == "threads") {
    *reason = absl::StrFormat("the thread engine was asked for by %s", asked_by);
    return CreateThreadEngine(options);
  }
  if (!engine.empty() && engine != "uring") {
    return Invalid(
        absl::StrFormat("I/O engine \"%s\", asked for by %s, is unknown: use uring or threads", engine, asked_by));
  }
  absl::StatusOr<std::unique_ptr<Ring>> uring = CreateProbedUring(options);
  if (uring.ok()) return uring;
  if (engine == "uring") {
    return Unavailable(absl::StrFormat("io_uring was asked for by %s and does not work here: %s", asked_by,
                                       std::string(uring.status().message())),
                       ErrnoOf(uring.status()));
  }
  *reason = std::string(uring.status().message());
  return CreateThreadEngine(options);
}

}  // namespace neve::ring
