// What ranks keep differently in one place, shown by rank. Internal to global_image.h.
#ifndef NEVE_FORMAT_GLOBAL_BY_RANK_H_
#define NEVE_FORMAT_GLOBAL_BY_RANK_H_

#include <set>
#include <span>
#include <string>

#include "base/error/status.h"
#include "format/global_tree.h"

namespace neve::format {

// Puts a dictionary in each of these places, in which "@<rank>" is what that rank has there: what was `seed` is `seed.@0`, `seed.@1`.
// What refers to a tensor in such a place is shown by rank too. In a flat set of tensors the names are the places.
// paths: of nodes of the merged tree; of a composite's parts they are the composite's. Of paths below another one that one counts.
absl::Status NameByRank(std::span<const RankImage> images, std::set<std::string> paths, GlobalTree* tree);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_BY_RANK_H_
