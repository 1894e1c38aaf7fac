#include "format/pickle_sharing.h"

#include <algorithm>
#include <limits>
#include <span>
#include <unordered_map>

#include "format/values.h"

namespace neve::format {
namespace {

class Finder {
 public:
  explicit Finder(const PickleGraph& graph) : graph_(graph) {}

  PickleSharing Find() {
    const uint64_t written_out = Visit(graph_.root(), 0).written_out;
    return {shares_, written_out};
  }

 private:
  struct Seen {
    uint64_t written_out = 1;
    bool has_mutable = false;   // itself, or something below it
  };

  Seen Visit(PickleNode node, int depth) {
    const PickleKind kind = graph_.kind(node);
    const bool ordered = kind == PickleKind::kCall && (graph_.IsCallOf(node, "collections", "OrderedDict") ||
                                                       graph_.IsCallOf(node, "collections", "defaultdict"));
    const bool is_mutable = ordered || kind == PickleKind::kDict || kind == PickleKind::kList || kind == PickleKind::kSet ||
                            kind == PickleKind::kByteArray;
    if (!is_mutable && kind != PickleKind::kTuple) return {};
    const auto [at, is_new] = seen_.try_emplace(node);
    if (!is_new) {
      shares_ |= is_mutable || at->second.has_mutable;
      return at->second;
    }
    Seen found{.has_mutable = is_mutable};
    if (depth <= kValuesDepthMax) {   // what nests deeper is refused where it is written out
      if (ordered) {
        const PickleCall& call = graph_.Call(node);
        for (const PickleNode part : {call.args, call.state}) Add(part, depth, &found);
        Add(call.pairs, depth, &found);
        Add(call.items, depth, &found);
      } else if (kind != PickleKind::kByteArray) {
        Add(graph_.Items(node), depth, &found);
      }
    }
    seen_[node] = found;
    return found;
  }

  void Add(std::span<const PickleNode> nodes, int depth, Seen* sum) {
    for (const PickleNode node : nodes) Add(node, depth, sum);
  }

  void Add(PickleNode node, int depth, Seen* sum) {
    const Seen child = Visit(node, depth + 1);
    sum->has_mutable |= child.has_mutable;
    if (__builtin_add_overflow(sum->written_out, child.written_out, &sum->written_out)) {
      sum->written_out = std::numeric_limits<uint64_t>::max();
    }
  }

  const PickleGraph& graph_;
  std::unordered_map<PickleNode, Seen> seen_;
  bool shares_ = false;
};

}  // namespace

PickleSharing FindSharing(const PickleGraph& graph) { return Finder(graph).Find(); }

}  // namespace neve::format
