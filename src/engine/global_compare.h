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

// One answer for each comparison. Of what is larger than 64 KiB and lies alike in the chunks of both images only the ends are read: the
// records' digests tell of the chunks between. Memory is bounded whatever the sizes.
absl::StatusOr<std::vector<bool>> CompareBytes(std::span<const std::unique_ptr<RankFile>> images,
                                               std::span<const format::Comparison> comparisons);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_GLOBAL_COMPARE_H_
