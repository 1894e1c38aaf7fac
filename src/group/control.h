// Control: one rank's node in the tree of control connections, by which the watermark is told instead of looked for.
//
// The ranks form a tree of bounded fan-out: rank r has the parent (r - 1) / fan_out, and connects to it. Each tells upward what it
// has committed (progress.h), when that changed and off the step path; a parent merges its own with what its children said; what the
// root merges is what every rank has, and goes down the same connections.
//
// A state machine: events and the time go in, actions come out; it knows no socket and no clock, so hundreds of ranks run in one
// thread from a seed. Its owner carries the bytes. Calls are made one at a time.
//
// Invariants
//   - Complete(column, s): every rank of the world has said in this life that it committed s there. Never unsaid: what a rank has
//     committed it did commit, even if it has gone since.
//   - Nothing here is waited for: a broken tree stops what is told from growing, and nothing else.
//   - Only ranks of the world, of this context (job, life), that prove the key get in, each only in its place of the tree. Of those
//     that have not proved themselves at most kUnprovenMax are kept, each at most kProofTime; more displace the oldest. What speaks
//     wrongly is dropped at its first wrong byte, and counted.
//   - Whoever is silent for kSilence is dropped; a lost parent is tried again after a pause that doubles up to kRetryMax.
//   - At most one message a kPace goes each way over a connection, and none when there is no news, but a sign of life each kSign.
//   - A message is at most kMessageBytesMax bytes.
#ifndef NEVE_GROUP_CONTROL_H_
#define NEVE_GROUP_CONTROL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "base/sync/executor.h"
#include "group/progress.h"
#include "group/session.h"

namespace neve::group {

class Control {
 public:
  static constexpr sync::Nanos kProofTime = 10 * sync::kSecond, kSilence = 60 * sync::kSecond, kSign = 15 * sync::kSecond;
  static constexpr sync::Nanos kPace = 20 * sync::kMillisecond, kLaggardPace = sync::kSecond;
  static constexpr sync::Nanos kRetryMin = 100 * sync::kMillisecond, kRetryMax = 5 * sync::kSecond;
  static constexpr size_t kUnprovenMax = 64, kColumnsMax = 8, kMessageBytesMax = 4096;
  static constexpr size_t kCompleteKept = 8192, kOwnKept = 4096;   // of the newest saves, a column

  struct Options {
    uint32_t rank = 0, world = 2;
    std::string key, context;                 // of session.h
    size_t columns = 1;                       // what is told of: a tier each, or "any of them"; the same on all ranks, <= kColumnsMax
    uint32_t fan_out = 8;
    std::function<uint64_t()> random;         // nonces (unpredictable) and the spread of retries
  };
  using Link = uint64_t;                      // one connection, numbered here
  struct Action {
    enum class Kind { kConnect, kSend, kClose };
    Kind kind;
    Link link;
    uint32_t rank = 0;                        // kConnect: to whom
    std::string bytes;                        // kSend
  };
  struct Counts {
    uint64_t refused = 0;                     // connections that spoke or proved wrongly
    uint64_t too_slow = 0;                    // ... that did not prove themselves in time, or fell silent
    uint64_t displaced = 0;                   // ... that newer ones took the place of
    uint64_t sent_bytes = 0, received_bytes = 0, sent_messages = 0;
  };

  explicit Control(Options options);

  // ---- Events ----
  void Start(sync::Nanos now);
  // This rank has committed it there, as durably as that tier is; `and_first`: so also in column 0, which stands for "any of them".
  void Commit(size_t column, uint64_t sequence, sync::Nanos now, bool and_first = false);
  void Abandon(size_t column, uint64_t sequence, sync::Nanos now);     // and will never: skipped, replaced, failed
  Link Accepted(sync::Nanos now);                                      // somebody connected
  void Connected(Link link, sync::Nanos now);                          // what kConnect asked for
  void Received(Link link, std::string_view bytes, sync::Nanos now);
  void Closed(Link link, const std::string& why, sync::Nanos now);     // by the other side or the network
  void Tick(sync::Nanos now);
  void Finish(sync::Nanos now);                                        // news that waits for its time is told at once
  // ---- What comes of them ----
  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }
  sync::Nanos NextTick() const;                                        // when Tick is due, if nothing else happens

  // ---- What is told ----
  bool Complete(size_t column, uint64_t sequence) const { return complete_[column].contains(sequence); }
  const std::set<uint64_t>& Complete(size_t column) const { return complete_[column]; }   // the newest kCompleteKept
  bool Lost(size_t column, uint64_t sequence) const { return lost_[column].contains(sequence); }   // some rank has abandoned it
  uint64_t told() const { return told_count_; }                        // changes with the above
  // Who keeps the next save of this column from being complete, as far as is known here.
  std::string WaitsFor(size_t column) const;

  bool joined() const { return options_.rank == 0 || parent_ready_; }  // has a way to the root, as far as is known here
  uint32_t parent() const { return (options_.rank - 1) / options_.fan_out; }
  size_t children() const { return children_.size(); }
  size_t children_joined() const;
  sync::Nanos apart_since() const { return apart_since_; }             // when not joined
  const std::string& last_error() const { return last_error_; }       // of the way to the parent
  const Counts& counts() const { return counts_; }

 private:
  using Report = std::vector<Progress>;
  struct Peer {
    Session session;
    bool outgoing = false, open = false;
    sync::Nanos since = 0, heard = 0, said = 0;
    std::optional<Report> sent;               // the last message on this connection
  };
  struct Child {
    Report report;
    std::optional<Link> link;
    Report news;                              // what it is to be told: from where it stands
    uint64_t news_of = 0;                     // told_changes_ then
  };

  Session::Nonce MakeNonce();
  void Connect(sync::Nanos now);
  void Drop(Link link, const std::string& why, sync::Nanos now);
  void LostLink(Link link, const std::string& why, sync::Nanos now);
  void Proved(Link link, sync::Nanos now);
  absl::Status Take(Link link, std::string_view message, sync::Nanos now);
  Report OwnReport() const;
  void Merge();
  void Learn(const Report& told);
  void RefreshNews();
  // Sends what there is news of on every connection where that is due; when the rest is due, NextTick says. What is due
  // within `ahead` is sent too.
  void Tell(sync::Nanos now, sync::Nanos ahead = 0);
  sync::Nanos DueOn(const Peer& peer, const Report& news) const;   // of the next message
  void Send(Link link, Peer* peer, char kind, const Report& report, sync::Nanos now);

  const Options options_;
  std::map<uint32_t, Child> children_;
  std::map<Link, Peer> peers_;
  Link next_link_ = 1;
  std::optional<Link> parent_link_;
  bool parent_ready_ = false;
  sync::Nanos retry_at_ = 0, retry_pause_ = kRetryMin, apart_since_ = 0;
  std::string last_error_;
  std::vector<std::set<uint64_t>> own_, own_lost_;   // by column
  Report merged_;                             // of this rank and all below
  struct Told {
    uint64_t end = 0;
    uint32_t laggard = 0;
    Progress last;                            // what was learned last
  };
  std::vector<Told> told_;                    // by the root, by column
  uint64_t told_changes_ = 1;                 // of anything told
  std::vector<std::set<uint64_t>> complete_, lost_;
  uint64_t told_count_ = 0;
  std::vector<Action> actions_;
  Counts counts_;
};

}  // namespace neve::group

#endif  // NEVE_GROUP_CONTROL_H_
