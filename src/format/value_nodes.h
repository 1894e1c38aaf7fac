// A value of `neve.values` as the node of `neve.tree` that it would be with a tensor in it. What is all values on one rank may hold
// tensors on another.
#ifndef NEVE_FORMAT_VALUE_NODES_H_
#define NEVE_FORMAT_VALUE_NODES_H_

#include <string_view>

#include "base/error/status.h"
#include "format/state_tree.h"

namespace neve::format {

// node: a value. A dictionary, list, tuple, namedtuple or dataclass becomes the container of what stands in it, by one level, and the
// answer is true; anything else stays as it is. Damaged: the text is no value.
absl::StatusOr<bool> OpenValue(TreeNode* node);

// Whether the text of a value is that of a dictionary, whose keys can be merged with another's.
bool IsDictionaryText(std::string_view text);

}  // namespace neve::format

#endif  // NEVE_FORMAT_VALUE_NODES_H_
