// Group: how the ranks of one job swap small messages, used on the caller's thread inside open and restore only.
//
// A gather is collective: every rank calls it, with the same purpose and in the same order, and each gets every rank's message
// or all get the same error. It may block, up to its deadline.
//
// Invariants
//   - A message that a rank gets was sent by a process of this very life of the job, for this very gather.
//   - An error names what was waited for: the purpose, and the ranks that did not come.
//   - A gather that failed is over on every rank that took part; the next one begins afresh.
//   - Nothing is said or waited for between gathers: save() has no part in a group.
//
// Codes: Timeout (somebody did not come), Invalid (two processes of one rank, ranks that do different things, worlds that
// differ), Unavailable (the place that carries the messages), Unsupported (a kind of group that is not there).
#ifndef NEVE_GROUP_GROUP_H_
#define NEVE_GROUP_GROUP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "group/exchange.h"
#include "group/store.h"

namespace neve::group {

using Messages = std::vector<std::string>;   // by rank

class Group {
 public:
  virtual ~Group() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world() const = 0;
  // `what` names the purpose ("open: the job"). One gather at a time.
  virtual absl::StatusOr<Messages> Gather(std::string_view what, std::string_view mine, double timeout_s) = 0;
  // This rank will not come to the next gather: the others get Unavailable with `why`, where the group can tell them, and a
  // Timeout else. Does not wait.
  virtual void Leave(std::string_view what, std::string_view why) {}
};

// Of one rank: its own message.
std::unique_ptr<Group> SoloGroup();

// Through a store that all ranks reach, by the machine of exchange.h. `stop`: a gather in progress ends with Closed once it is true;
// it outlives the group.
std::unique_ptr<Group> StoreGroup(std::unique_ptr<Store> store, Self self, std::string session,
                                  const std::atomic<bool>* stop = nullptr);

// Through an all-gather that the program has: MPI_Allgather, or anything of that kind. It gets this rank's message and gives those
// of all, by rank; its deadline is its own affair.
using AllGather = std::function<absl::StatusOr<Messages>(std::string_view mine, double timeout_s)>;
std::unique_ptr<Group> CallbackGroup(AllGather all_gather, Self self);

}  // namespace neve::group

#endif  // NEVE_GROUP_GROUP_H_
