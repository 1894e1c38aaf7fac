// The nesting of a state as nodes: `neve.tree` joined with the tensors that it places and the values of `neve.values`. What
// compares states, leaves parts of one out, or writes it in another format walks this. Nothing in it is run.
#ifndef NEVE_FORMAT_STATE_TREE_H_
#define NEVE_FORMAT_STATE_TREE_H_

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/image_header.h"
#include "format/values.h"

namespace neve::format {

inline constexpr int kTreeNestingMax = 300;            // as deep as values nest, and the objects between them
inline constexpr uint64_t kTreeBytesMax = 64u << 20;   // a parsed tree takes several times its text

struct TreeNode {
  enum class Kind : uint8_t {
    kValue,       // text: the value as `neve.values` has it
    kTensor,      // index: of the logical tensor
    kMeta,        // a tensor without bytes
    kSame,        // text: the name of the tensor that it is again
    kDict, kList, // type: as in docs/format.md
    kBlob,        // index: its number; type: the class of a pickled object, else ""
    kComposite,   // type: "state", "dataclass", "coo", ..; of the children
    kOpaque,      // type: the callable; its children are what it held
  };
  Kind kind = Kind::kValue;
  bool bare = false;                     // a tensor of a run: nothing is said of it but its place
  std::string key;                       // in its container, as in names; "" otherwise
  std::string path;                      // dotted, as in names; "" is the root
  std::string type, text;
  uint64_t index = 0;
  nlohmann::json extra;                  // members of the node beside those above, as they stand; null: none
  std::vector<TreeNode> children;
  std::unique_ptr<TreeNode> attributes;  // a dict's "a", a tensor's "py"
};

// Without a tree of its own the file is a dict of its tensors by their names (`flat`).
struct StateTree {
  TreeNode root;
  bool flat = false;
};
// Damaged: the tree contradicts itself, the tensors or the values. Unsupported: a node of an unknown kind, or over kTreeBytesMax.
absl::StatusOr<StateTree> ReadStateTree(const ImageHeader& header, std::span<const LogicalTensor> tensors);

// The root node as text, and the values in the order in which it takes them.
struct TreeText {
  std::string root, values;
};
TreeText WriteStateTree(const TreeNode& root);

// The key that a component of a name stands for. Damaged: it is not one that neve makes.
absl::StatusOr<Value> KeyOf(std::string_view component);

}  // namespace neve::format

#endif  // NEVE_FORMAT_STATE_TREE_H_
