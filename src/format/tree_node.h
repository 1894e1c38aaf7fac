// One node of `neve.tree`: its members by their meaning, and the rules that bind it to the tensor that it takes.
#ifndef NEVE_FORMAT_TREE_NODE_H_
#define NEVE_FORMAT_TREE_NODE_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error/status.h"
#include "format/tree_walk.h"

namespace neve::format {

// A node with its children as text. At most one of tensor, dict, list, blob, reference and composite is there.
struct NodeText {
  NodeMembers node;
  std::string_view tensor, dict, list, blob, reference;   // the values of "T", "d", "l", "b", "r"
  std::string_view children;      // of "c", a list
  std::string_view attributes;    // a node: "py" of a tensor, "a" of a dictionary
  bool composite = false, meta = false, has_strides = false;
  tensor::Dims strides;           // "st"
};

// `object` is the text of an object that a JsonReader has read. Damaged: a member is not of its type.
absl::Status ReadNode(std::string_view object, NodeText* node);

// Parts of a sparse tensor of that kind; 0 for any other kind.
uint64_t SparseParts(std::string_view kind);
// Parts of a composite of that kind; none for a kind that this version does not know.
std::optional<uint64_t> PartsOf(std::string_view kind);
bool IsKnownDict(std::string_view type);

// Damaged: says why the node cannot be that tensor's, a meta tensor's, a composite's.
absl::Status CheckTensorNode(const NodeText& text, const LogicalTensor& tensor);
absl::Status CheckMeta(const NodeText& text);
absl::Status CheckComposite(const NodeText& text);

}  // namespace neve::format

#endif  // NEVE_FORMAT_TREE_NODE_H_
