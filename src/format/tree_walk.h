// One walk over `neve.tree` and `neve.values`, in the order in which the nodes take tensors and values. It checks every rule
// that docs/format.md has for them, and tells a visitor what stands where. Nothing of the data is read, no class looked up.
//
// Bounded: time by the text times its depth, memory by the text; the names of all places together by kTreeNamesBytesMax, for a
// long key above many places makes names far larger than the file.
#ifndef NEVE_FORMAT_TREE_WALK_H_
#define NEVE_FORMAT_TREE_WALK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/image_header.h"
#include "format/values.h"

namespace neve::format {

struct Structure;

// From the first to the last byte of a tensor, holes included, is at most so far: a file cannot ask for more memory than there is.
inline constexpr uint64_t kSpanBytesMax = uint64_t{1} << 44;

// The composite of several boxes of one logical tensor.
inline constexpr std::string_view kPiecesKind = "pieces";

inline constexpr uint64_t kTreeNamesBytesMax = uint64_t{1} << 28;   // and 64 times the tree's own bytes

// Where a node stands. Holds during the call that it is given to.
struct TreePlace {
  enum class Role : uint8_t { kRoot, kKey, kIndex, kAttributes, kPart };
  Role role = Role::kRoot;
  std::string_view name;     // dotted, as tensors are named; "" for the root
  const Value* key = nullptr;   // kKey
  uint64_t index = 0;        // kIndex, kPart
  int depth = 0;             // nodes around it
};

// What a node says beside its children.
struct NodeMembers {
  std::string type;          // "t" of a dictionary or list, "o" of a composite
  std::string class_name;    // "q"
  std::string dtype, device; // "dt", "dev"
  std::string numpy;         // "np" where it is a text
  bool array = false, parameter = false, gradient = false, attributes = false;   // "np", "param", "grad", "py" or "a"
  bool has_shape = false;
  tensor::Dims shape;        // "sh"
};

// Told of each node once, parents first. Every Enter has its Leave.
class TreeVisitor {
 public:
  enum class Container : uint8_t { kDict, kList, kComposite, kTensor };
  virtual ~TreeVisitor() = default;
  // A tensor, or a container of nodes; of a tensor only its attributes.
  virtual void Enter(const TreePlace& place, Container container, const NodeMembers& node) = 0;
  virtual void Leave() = 0;
  virtual void OnTensor(const TreePlace& place, const NodeMembers& node, const LogicalTensor& tensor) = 0;
  virtual void OnValue(const TreePlace& place, Value value) = 0;
  virtual void OnMeta(const TreePlace& place, const NodeMembers& node) = 0;
  virtual void OnBlob(const TreePlace& place, const NodeMembers& node, const HeaderTensor& blob) = 0;
  virtual void OnReference(const TreePlace& place, const std::string& target) = 0;
};

// `tensors`: LogicalTensors of the header. The visitor may be null. OK at once for a header without a tree.
// Damaged: a rule is broken; says where. Unsupported: a node of a kind that this version does not know, so that what follows
// cannot be told.
absl::Status WalkTree(const ImageHeader& header, std::span<const LogicalTensor> tensors, TreeVisitor* visitor);

// The tensors that the tree takes again at other places (the same object twice): aliases of those they are, by those places' names.
// One whose name a tensor has already is left out, and so is what stands behind a node that this version does not know.
std::vector<LogicalTensor> TensorsAgain(const ImageHeader& header, std::span<const LogicalTensor> tensors);

// LogicalTensors and WalkTree: every rule of neve's own metadata.
absl::Status CheckTree(const ImageHeader& header);

// The same of a state that has not been saved yet, all but its values. Invalid: what would be saved could not be read again.
absl::Status CheckRoot(const Structure& structure);

}  // namespace neve::format

#endif  // NEVE_FORMAT_TREE_WALK_H_
