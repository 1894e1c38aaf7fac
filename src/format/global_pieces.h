// The boxes of one logical tensor, as all ranks hold them. Internal to global_image.h.
#ifndef NEVE_FORMAT_GLOBAL_PIECES_H_
#define NEVE_FORMAT_GLOBAL_PIECES_H_

#include <span>

#include "base/error/status.h"
#include "format/global_image.h"
#include "format/global_tree.h"

namespace neve::format {

// Damaged, with ranks and boxes: they disagree on type or global shape, leave a gap, or overlap without being the same.
absl::StatusOr<GlobalEntry> JoinPieces(std::span<const RankImage> images, const GlobalLeaf& leaf);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_PIECES_H_
