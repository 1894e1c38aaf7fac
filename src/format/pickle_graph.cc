#include "format/pickle_graph.h"

#include <bit>

namespace neve::format {

PickleGraph::PickleGraph() { nodes_.push_back({PickleKind::kNone}); }

double PickleGraph::Float(PickleNode node) const { return std::bit_cast<double>(nodes_[node].word); }

std::string_view PickleGraph::Bytes(PickleNode node) const {
  const Node& at = nodes_[node];
  if (at.decoded) return decoded_[at.word];
  return std::string_view(text_).substr(at.word, at.size);
}

bool PickleGraph::BytesOffset(PickleNode node, uint64_t* offset) const {
  *offset = text_offset_ + nodes_[node].word;
  return !nodes_[node].decoded;
}

std::span<const PickleNode> PickleGraph::Items(PickleNode node) const {
  const Node& at = nodes_[node];
  if (at.kind == PickleKind::kTuple) return std::span(tuples_).subspan(at.word, at.size);
  return lists_[at.word];
}

PickleGlobal PickleGraph::Global(PickleNode node) const {
  const auto [module, name] = globals_[nodes_[node].word];
  return {Bytes(module), Bytes(name)};
}

bool PickleGraph::IsCallOf(PickleNode node, std::string_view module, std::string_view name) const {
  if (kind(node) != PickleKind::kCall || kind(Call(node).callable) != PickleKind::kGlobal) return false;
  const PickleGlobal global = Global(Call(node).callable);
  return global.module == module && global.name == name;
}

std::string PickleGraph::CallableName(PickleNode call) const {
  // A callable may itself be the result of a call, and so on in a circle: a few levels are told.
  std::string name;
  PickleNode callable = Call(call).callable;
  for (int level = 0; level < 8 && kind(callable) == PickleKind::kCall; ++level) {
    name += "the result of ";
    callable = Call(callable).callable;
  }
  if (kind(callable) == PickleKind::kPersistent) {  // ('module', class, file, source): how old streams kept a class's source
    const PickleNode id = PersistentId(callable);
    if (kind(id) == PickleKind::kTuple && Items(id).size() > 1 && IsText(Items(id)[0], "module")) callable = Items(id)[1];
  }
  if (kind(callable) == PickleKind::kGlobal) return name + Global(callable).FullName();
  return name + "an object that is no class";
}

}  // namespace neve::format
