// ControlNode: the machine of control.h on real sockets, one thread a rank.
//
//   1  Listen: a port is taken, so that its place can be told to the other ranks     -> what connects is closed again
//   2  Join: the ranks know each other's places and the key                         -> the tree forms, by itself and anew
//   3  Leave (or destruction): what was said is delivered, within a bound
//
// Invariants
//   - Commit and Abandon never wait for the network, and may be called by any thread but for `told`'s.
//   - `told` runs on the node's thread after what is told has changed; it must not wait.
//   - A node that cannot connect says so once in the log, and once when it can again.
#ifndef NEVE_GROUP_CONTROL_NODE_H_
#define NEVE_GROUP_CONTROL_NODE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/sync/mutex.h"
#include "base/sync/sockets.h"
#include "group/control.h"

namespace neve::group {

class ControlNode {
 public:
  // At "ADDRESS:PORT", port 0 for any. Unsupported: there is no libcrypto. Unavailable: that place cannot be listened at.
  static absl::StatusOr<std::unique_ptr<ControlNode>> Listen(const std::string& place);
  ~ControlNode();   // leaves at once

  const std::string& place() const { return sockets_->place(); }
  // Once. `parent`: the place of the rank above, unused by rank 0. `options.random` is set here.
  void Join(Control::Options options, const std::string& parent, std::function<void()> told);
  // The last messages are delivered, for at most `linger` seconds; then nothing is said or heard any more.
  void Leave(double linger);

  void Commit(size_t column, uint64_t sequence);   // and in column 0, which stands for "any of them"
  void Abandon(size_t column, uint64_t sequence);

  // Thread: any. Before Join: nothing is told.
  bool Complete(size_t column, uint64_t sequence) const;
  std::set<uint64_t> Complete(size_t column) const;
  std::optional<uint64_t> Newest(size_t column) const;        // complete
  bool Lost(size_t column, uint64_t sequence) const;
  std::string WaitsFor(size_t column) const;
  struct Health {
    bool joined = false;
    size_t children = 0, children_joined = 0;
    std::string error;                                        // of the way to the parent
    Control::Counts counts;
  };
  Health health() const;

 private:
  ControlNode() = default;
  sync::Sockets::Events Events();
  template <typename Event>
  void On(const Event& event);             // runs it on the machine, then does what that asks for; on the sockets' thread
  void WatchParent(sync::Nanos now) NEVE_REQUIRES(mutex_);

  mutable sync::Mutex mutex_;
  std::unique_ptr<Control> control_ NEVE_GUARDED_BY(mutex_);
  bool told_apart_ NEVE_GUARDED_BY(mutex_) = false;
  // The sockets' thread's own.
  std::map<Control::Link, sync::Sockets::Id> sockets_by_link_;
  std::map<sync::Sockets::Id, Control::Link> links_;
  std::string parent_;
  uint64_t told_before_ = 0;
  std::function<void()> told_;
  std::unique_ptr<sync::Sockets> sockets_;   // last: its thread uses the above
};

}  // namespace neve::group

#endif  // NEVE_GROUP_CONTROL_NODE_H_
