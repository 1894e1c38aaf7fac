// SIGTERM with a grace period: the first signal lets the watchers finish what they promised, then the handler that was there
// before runs.
//
// Steps: the C handler only counts and writes an eventfd; one thread runs the watchers one after another, then sends the signal
// again. A second signal, that one or another's, goes to the earlier handler at once: a function is called, the default action is
// restored and raised. A forked child's signals go to it directly: the child has no thread of ours.
//
// Invariants
//   - One handler per process, installed by the first watcher, left in place after the last (another may have been put on top).
//   - Nothing but async-signal-safe calls in the handler.
#ifndef NEVE_BASE_SYNC_TERMINATION_H_
#define NEVE_BASE_SYNC_TERMINATION_H_

#include <functional>
#include <memory>

namespace neve::sync {

class TerminationWatch {
 public:
  // `finish` runs once, on the watch's thread, at the first SIGTERM. Must be bounded in time by its owner.
  explicit TerminationWatch(std::function<void()> finish);
  ~TerminationWatch();   // waits for a `finish` that is running
  TerminationWatch(const TerminationWatch&) = delete;

  // Whether another handler has taken SIGTERM's place since.
  static bool Replaced();

 private:
  const int id_;
};

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_TERMINATION_H_
