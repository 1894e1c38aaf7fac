// Whether bytes that several ranks keep in one place are equal.
#ifndef NEVE_ENGINE_GLOBAL_COMPARE_H_
#define NEVE_ENGINE_GLOBAL_COMPARE_H_

#include <memory>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "engine/opened_image.h"
#include "format/global_image.h"

namespace neve::engine {

// One answer for each comparison. What lies alike in the chunks of both images is told by the digests that their records hold: where
// those of all its chunks are the same nothing is read, else, of what is larger than 64 KiB, the ends at most. Memory is bounded
// whatever the sizes. A copy of a box that cannot be read is not compared, for whoever reads the box takes another; of anything else
// that is the error.
absl::StatusOr<std::vector<bool>> CompareBytes(std::span<const std::unique_ptr<RankFile>> images,
                                               std::span<const format::Comparison> comparisons);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_GLOBAL_COMPARE_H_
