// What a pickle says, as a graph of small nodes: nothing is imported, looked up or called. A call that the pickle wants made
// is a node that names its callable and holds its arguments.
//
// Nodes are numbers; several places may refer to one node, also in circles. Texts and bytes stay in the pickle and are shown
// as views of it.
#ifndef NEVE_FORMAT_PICKLE_GRAPH_H_
#define NEVE_FORMAT_PICKLE_GRAPH_H_

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace neve::format {

enum class PickleKind : uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInteger,
  kLong,
  kFloat,
  kText,
  kBytes,
  kByteArray,
  kTuple,
  kList,
  kSet,
  kFrozenSet,
  kDict,
  kGlobal,      // module and name; nothing of that name was looked for
  kPersistent,  // a persistent id: torch's storages
  kCall,        // callable(*args), then what was added to the result
};

using PickleNode = uint32_t;

struct PickleGlobal {
  std::string_view module, name;
  std::string FullName() const { return std::string(module) + "." + std::string(name); }
};

// callable(*args[, **kwargs]), or callable.__new__ with them; then __setstate__(state), items appended, pairs set.
struct PickleCall {
  PickleNode callable = 0, args = 0, state = 0;  // 0 is None: no state
  bool constructs = false;                       // by NEWOBJ: callable is a class
  std::vector<PickleNode> items, pairs;          // pairs: key, value, key, value
};

class PickleGraph {
 public:
  PickleGraph();

  PickleKind kind(PickleNode node) const { return nodes_[node].kind; }
  size_t size() const { return nodes_.size(); }
  PickleNode root() const { return root_; }

  int64_t Integer(PickleNode node) const { return static_cast<int64_t>(nodes_[node].word); }  // kInteger
  double Float(PickleNode node) const;                                                        // kFloat
  // kText: UTF-8, perhaps with lone surrogates. kBytes, kByteArray. kLong: two's complement, little endian.
  std::string_view Bytes(PickleNode node) const;
  // Where those bytes lie in the pickle's source, as they are; false when they were decoded.
  bool BytesOffset(PickleNode node, uint64_t* offset) const;
  // kTuple, kList, kSet, kFrozenSet: members. kDict: key, value, key, value.
  std::span<const PickleNode> Items(PickleNode node) const;
  PickleGlobal Global(PickleNode node) const;
  PickleNode PersistentId(PickleNode node) const { return static_cast<PickleNode>(nodes_[node].word); }
  const PickleCall& Call(PickleNode node) const { return calls_[nodes_[node].word]; }

  // Text that is exactly that; an integer of 64 bits in a range.
  bool IsText(PickleNode node, std::string_view text) const { return kind(node) == PickleKind::kText && Bytes(node) == text; }
  bool IsCallOf(PickleNode node, std::string_view module, std::string_view name) const;
  std::string CallableName(PickleNode call) const;  // "module.name" of a call, or what stands in its place

 private:
  friend class PickleMachine;
  struct Node {
    PickleKind kind;
    bool decoded = false;  // text in decoded_, not in text_
    uint32_t size = 0;     // of text, or a tuple's count
    uint64_t word = 0;     // number, offset or index, by kind
  };
  std::vector<Node> nodes_;
  std::string text_;                                        // the pickle
  uint64_t text_offset_ = 0;                                // where it began in its source
  std::deque<std::string> decoded_;                         // texts that the pickle holds escaped
  std::vector<PickleNode> tuples_;                          // members of all tuples
  std::deque<std::vector<PickleNode>> lists_;               // of lists, sets and dicts
  std::vector<std::pair<PickleNode, PickleNode>> globals_;  // module, name: kText
  std::deque<PickleCall> calls_;
  PickleNode root_ = 0;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_PICKLE_GRAPH_H_
