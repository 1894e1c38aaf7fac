// Exchange: one rank's side of the gathers through a store, as a state machine. The caller gives it the time and asks it again
// and again; it never sleeps, so hundreds of them run in one thread against a simulated store.
//
// Names in the store
//   session                      rank 0: (session, world, who, the session before). A session is random: one life of one group
//   <session>/<round>/<rank>     a rank's message: (token, world, who, purpose, data, why it leaves if it does)
//   <session>/<round>/all        rank 0's answer: an error, or the (token, data) of every rank
//
//   1  rank 0 writes `session`; the others wait for it and put their message of round 1 below it
//   2  rank 0 collects the messages of all, and writes the answer
//   3  the others take the answer
//   Later rounds begin at 2 with the session known. A round without an answer by the deadline fails.
//
// Invariants
//   - Names of earlier lives may lie there: an answer counts only for the rank whose own token, random for each process, stands
//     in it, or who took part in an earlier round of its session.
//   - Whoever finds another session than the one it took part in, or another token under its own rank, says so: two processes
//     claim one rank.
//   - Rank 0 writes one answer a round, an error included, so every rank that is still there gets the same.
//   - What a round left is forgotten once every rank has come to the next; the last round of a session, once a session after the
//     next begins. So rank 0 may begin another life while a slower rank has yet to read the last answer of this one: it finds it.
#ifndef NEVE_GROUP_EXCHANGE_H_
#define NEVE_GROUP_EXCHANGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "base/sync/executor.h"
#include "group/store.h"

namespace neve::group {

// Who a rank is.
struct Self {
  uint32_t rank = 0, world = 1;
  std::string who;     // for people: "host a, process 17"
  std::string token;   // random, of this process and group
};

class Exchange {
 public:
  // The store outlives this. `session`: random; used by rank 0.
  Exchange(Store& store, Self self, std::string session);

  // Begins the next round. The last one is over, whatever became of it.
  void Begin(std::string what, std::string mine, sync::Nanos now, sync::Nanos deadline);
  // The next round is begun and left at once: the others get Unavailable with `why`. Best effort.
  void Leave(std::string what, std::string why);
  // Nothing: not over yet, ask again.
  std::optional<absl::StatusOr<std::vector<std::string>>> Poll(sync::Nanos now);
  const Self& self() const { return self_; }

 private:
  using Outcome = std::optional<absl::StatusOr<std::vector<std::string>>>;
  struct Message {
    std::string token, who, what, data, left;
    uint64_t world = 0;
  };

  void BeginRound(std::string what, std::string mine);
  Outcome PollFirst(sync::Nanos now);
  Outcome PollOther(sync::Nanos now);
  bool Announce();
  absl::Status Collect();
  absl::Status Check() const;
  bool WriteAnswer(const absl::Status& status);
  bool Post();
  Outcome ReadAnswer();
  absl::Status TimedOut(sync::Nanos now);
  std::optional<std::string> Read(const std::string& name);   // nothing: not there, or not now (last_error_)
  std::string NameOf(const std::string& leaf) const;
  static std::string Encode(const Message& message);
  static std::optional<Message> Decode(std::string_view text);

  Store& store_;
  const Self self_;
  std::string session_;             // others: "" until one was seen
  std::string first_who_;           // rank 0, as its session says
  uint64_t round_ = 0;
  bool bound_ = false;              // took part in a round of session_
  bool announced_ = false, posted_ = false;
  Message mine_;
  sync::Nanos begin_ = 0, deadline_ = 0;
  std::vector<std::optional<Message>> come_;   // rank 0: this round's
  std::string others_answer_;       // others: what an answer said that did not count
  sync::Nanos superseded_at_ = -1;  // others: when another session was first seen; the answer of this one may still come into sight
  absl::Status last_error_;
};

}  // namespace neve::group

#endif  // NEVE_GROUP_EXCHANGE_H_
