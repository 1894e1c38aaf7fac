// The control connections of one job in simulation: a Control a rank, and a network that carries their bytes in order, in pieces,
// after random delays, and that can be cut. One thread; everything follows from the seed of its executor.
#ifndef NEVE_TESTS_SUPPORT_SIM_CONTROL_H_
#define NEVE_TESTS_SUPPORT_SIM_CONTROL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/sync/executor.h"
#include "group/control.h"

namespace neve::testing {

class SimControl {
 public:
  struct Options {
    uint32_t world = 2, fan_out = 8;
    size_t columns = 1;
    std::string key = "key", context = "job 1, life 1";
    sync::Nanos delay_max = sync::kMillisecond;
    bool pieces = false;                               // bytes arrive cut anywhere
  };
  SimControl(sync::SimExecutor& executor, Options options);
  ~SimControl();

  void Start();                                        // all that are not running
  void StartOne(uint32_t rank);
  void Kill(uint32_t rank);                            // its process is gone; connections end some time later
  bool running(uint32_t rank) const { return nodes_[rank].control != nullptr; }
  group::Control& at(uint32_t rank) { return *nodes_[rank].control; }
  void Commit(uint32_t rank, size_t column, uint64_t sequence);
  void Abandon(uint32_t rank, size_t column, uint64_t sequence);
  // Ranks in it reach only each other; connections across are lost silently (no news of it) or ended. Empty: healed.
  void Partition(std::set<uint32_t> island, bool silently);
  // Somebody who is no rank connects and speaks. Gives what would be sent back, later, to `hear` (may be null).
  void Intrude(uint32_t rank, std::string bytes, std::function<void(std::string_view)> hear = {});
  // Called when what a rank is told has changed.
  void OnTold(std::function<void(uint32_t)> told) { told_ = std::move(told); }
  // Everything that anybody has sent on a connection, by (from, to): for replays.
  const std::map<std::pair<uint32_t, uint32_t>, std::string>& recorded() const { return recorded_; }
  void Record(bool on) { recording_ = on; }

 private:
  struct End {
    uint32_t rank = 0;
    uint64_t life = 0;                                 // of the process
    group::Control::Link link = 0;
  };
  struct Wire {
    End ends[2];                                       // [0] connected
    bool accepted = false;
    bool dead = false;                                 // nothing passes any more
    sync::Nanos last[2] = {0, 0};                      // arrival of the last bytes to that end: order is kept
    std::function<void(std::string_view)> hear;        // of an intruder
  };
  struct Node {
    std::unique_ptr<group::Control> control;
    uint64_t life = 0, told = 0;
    sync::Nanos tick_at = 0;
    std::map<group::Control::Link, std::pair<std::shared_ptr<Wire>, int>> wires;   // and which end
  };

  bool Reaches(uint32_t a, uint32_t b) const { return island_.contains(a) == island_.contains(b); }
  bool IsThere(const End& end) const { return nodes_[end.rank].control != nullptr && nodes_[end.rank].life == end.life; }
  void After(uint32_t rank);                           // an event: does what it asks for
  void Act(uint32_t rank, group::Control::Action action);
  void Carry(const std::shared_ptr<Wire>& wire, int to, std::string bytes);
  void Accept(const std::shared_ptr<Wire>& wire, uint32_t rank);
  void EndWire(const std::shared_ptr<Wire>& wire, int to, const std::string& why);
  sync::Nanos Arrival(Wire& wire, int to);
  uint64_t Below(uint64_t limit) { return executor_.Random() % limit; }

  sync::SimExecutor& executor_;
  const Options options_;
  std::vector<Node> nodes_;
  std::set<uint32_t> island_;
  bool silently_ = false;
  std::function<void(uint32_t)> told_;
  bool recording_ = false;
  std::map<std::pair<uint32_t, uint32_t>, std::string> recorded_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace neve::testing

#endif  // NEVE_TESTS_SUPPORT_SIM_CONTROL_H_
