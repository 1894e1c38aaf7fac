// `neve.tree` from its root and the tensors as the user knows them: what LogicalTensors reads, written.
#ifndef NEVE_FORMAT_TREE_FACTS_H_
#define NEVE_FORMAT_TREE_FACTS_H_

#include <span>
#include <string>
#include <string_view>

#include "format/image_header.h"

namespace neve::format {

// root: the text of a node, "" for a flat state. tensors: in tree order; `stored` of an alias is its base's name.
std::string TreeTextOf(std::string_view root, std::span<const LogicalTensor> tensors);

}  // namespace neve::format

#endif  // NEVE_FORMAT_TREE_FACTS_H_
