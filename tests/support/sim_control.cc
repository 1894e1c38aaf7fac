#include "support/sim_control.h"

#include <algorithm>
#include <utility>

namespace neve::testing {

using group::Control;

SimControl::SimControl(sync::SimExecutor& executor, Options options) : executor_(executor), options_(std::move(options)) {
  nodes_.resize(options_.world);
}

SimControl::~SimControl() { *alive_ = false; }

void SimControl::Start() {
  for (uint32_t rank = 0; rank < options_.world; ++rank) {
    if (!running(rank)) StartOne(rank);
  }
}

void SimControl::StartOne(uint32_t rank) {
  Node& node = nodes_[rank];
  ++node.life;
  node.told = 0;
  node.tick_at = 0;
  node.control = std::make_unique<Control>(Control::Options{.rank = rank, .world = options_.world, .key = options_.key,
                                                            .context = options_.context, .columns = options_.columns,
                                                            .fan_out = options_.fan_out, .random = [this] { return executor_.Random(); }});
  node.control->Start(executor_.Now());
  After(rank);
}

void SimControl::Kill(uint32_t rank) {
  Node& node = nodes_[rank];
  node.control.reset();
  for (auto& [link, wire] : std::exchange(node.wires, {})) EndWire(wire.first, 1 - wire.second, "the other side is gone");
}

void SimControl::Commit(uint32_t rank, size_t column, uint64_t sequence) {
  nodes_[rank].control->Commit(column, sequence, executor_.Now());
  After(rank);
}

void SimControl::Abandon(uint32_t rank, size_t column, uint64_t sequence) {
  nodes_[rank].control->Abandon(column, sequence, executor_.Now());
  After(rank);
}

void SimControl::Partition(std::set<uint32_t> island, bool silently) {
  island_ = std::move(island);
  silently_ = silently;
  for (uint32_t rank = 0; rank < options_.world; ++rank) {
    for (auto& [link, held] : nodes_[rank].wires) {
      auto& [wire, end] = held;
      if (wire->hear || Reaches(wire->ends[0].rank, wire->ends[1].rank) || wire->dead) continue;
      if (silently_) {
        wire->dead = true;
      } else {
        EndWire(wire, 0, "reset by the network");
        EndWire(wire, 1, "reset by the network");
      }
    }
  }
}

void SimControl::After(uint32_t rank) {
  Node& node = nodes_[rank];
  while (node.control != nullptr) {
    std::vector<Control::Action> actions = node.control->TakeActions();
    if (actions.empty()) break;
    for (Control::Action& action : actions) Act(rank, std::move(action));
  }
  if (node.control == nullptr) return;
  if (told_ && std::exchange(node.told, node.control->told()) != node.control->told()) told_(rank);
  const sync::Nanos next = std::max(node.control->NextTick(), executor_.Now());
  if (node.tick_at > executor_.Now() && node.tick_at <= next) return;   // one is on its way
  node.tick_at = next;
  executor_.PostAfter(next - executor_.Now(), [this, alive = alive_, rank, life = node.life, next] {
    if (!*alive || nodes_[rank].life != life || nodes_[rank].control == nullptr || nodes_[rank].tick_at != next) return;
    nodes_[rank].tick_at = 0;
    nodes_[rank].control->Tick(executor_.Now());
    After(rank);
  });
}

sync::Nanos SimControl::Arrival(Wire& wire, int to) {
  const sync::Nanos at = executor_.Now() + 1 + static_cast<sync::Nanos>(Below(static_cast<uint64_t>(options_.delay_max)));
  wire.last[to] = std::max(wire.last[to] + 1, at);   // the simulation shuffles equal times
  return wire.last[to];
}

void SimControl::Act(uint32_t rank, Control::Action action) {
  Node& node = nodes_[rank];
  switch (action.kind) {
    case Control::Action::Kind::kConnect: {
      auto wire = std::make_shared<Wire>();
      wire->ends[0] = {rank, node.life, action.link};
      wire->ends[1] = {action.rank, 0, 0};
      node.wires[action.link] = {wire, 0};
      if (!Reaches(rank, action.rank) && silently_) {
        wire->dead = true;
        return;
      }
      executor_.PostAfter(Arrival(*wire, 1) - executor_.Now(), [this, alive = alive_, wire, to = action.rank] {
        if (*alive && !wire->dead) Accept(wire, to);
      });
      return;
    }
    case Control::Action::Kind::kSend: {
      const auto found = node.wires.find(action.link);
      if (found == node.wires.end()) return;
      auto [wire, end] = found->second;
      if (recording_ && !wire->hear) recorded_[{rank, wire->ends[1 - end].rank}] += action.bytes;
      std::string_view rest = action.bytes;
      while (!rest.empty()) {
        const size_t piece = options_.pieces ? 1 + Below(rest.size()) : rest.size();
        Carry(wire, 1 - end, std::string(rest.substr(0, piece)));
        rest.remove_prefix(piece);
      }
      return;
    }
    case Control::Action::Kind::kClose: {
      const auto found = node.wires.find(action.link);
      if (found == node.wires.end()) return;
      auto [wire, end] = found->second;
      node.wires.erase(found);
      EndWire(wire, 1 - end, "closed by the other side");
      return;
    }
  }
}

void SimControl::Accept(const std::shared_ptr<Wire>& wire, uint32_t rank) {
  Node& node = nodes_[rank];
  if (node.control == nullptr || (!wire->hear && !Reaches(wire->ends[0].rank, rank))) return EndWire(wire, 0, "refused");
  wire->accepted = true;
  wire->ends[1] = {rank, node.life, node.control->Accepted(executor_.Now())};
  node.wires[wire->ends[1].link] = {wire, 1};
  After(rank);
  if (wire->hear) return;
  executor_.PostAfter(Arrival(*wire, 0) - executor_.Now(), [this, alive = alive_, wire] {
    const End& end = wire->ends[0];
    if (!*alive || wire->dead || !IsThere(end)) return;
    nodes_[end.rank].control->Connected(end.link, executor_.Now());
    After(end.rank);
  });
}

void SimControl::Carry(const std::shared_ptr<Wire>& wire, int to, std::string bytes) {
  executor_.PostAfter(Arrival(*wire, to) - executor_.Now(), [this, alive = alive_, wire, to, bytes = std::move(bytes)] {
    if (!*alive || wire->dead) return;
    if (to == 0 && wire->hear) return wire->hear(bytes);
    const End& end = wire->ends[to];
    if (!IsThere(end)) return;
    nodes_[end.rank].control->Received(end.link, bytes, executor_.Now());
    After(end.rank);
  });
}

void SimControl::EndWire(const std::shared_ptr<Wire>& wire, int to, const std::string& why) {
  executor_.PostAfter(Arrival(*wire, to) - executor_.Now(), [this, alive = alive_, wire, to, why] {
    const End& end = wire->ends[to];
    if (!*alive || wire->dead || (to == 0 && wire->hear) || (to == 1 && !wire->accepted) || !IsThere(end)) return;
    if (nodes_[end.rank].wires.erase(end.link) == 0) return;
    nodes_[end.rank].control->Closed(end.link, why, executor_.Now());
    After(end.rank);
  });
}

void SimControl::Intrude(uint32_t rank, std::string bytes, std::function<void(std::string_view)> hear) {
  auto wire = std::make_shared<Wire>();
  wire->hear = hear ? std::move(hear) : [](std::string_view) {};
  executor_.PostAfter(Arrival(*wire, 1) - executor_.Now(), [this, alive = alive_, wire, rank] {
    if (*alive) Accept(wire, rank);
  });
  if (!bytes.empty()) Carry(wire, 1, std::move(bytes));
}

}  // namespace neve::testing
