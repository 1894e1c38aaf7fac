// Which bytes of which images fill the boxes that a caller wants: pure, from where the boxes of each tensor lie.
//
// Invariants
//   - Every element of a wanted box is read once, from the nearest copy of the box that holds it; of equally near ones by turns.
//   - Time: near linear in the wanted boxes and the boxes that they meet, not in their product.
//   - Ranges of one image may be read by one ReadPlan: what would meet another range is a box.
#ifndef NEVE_RESTORE_BOX_PLAN_H_
#define NEVE_RESTORE_BOX_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "format/global_image.h"
#include "restore/read_plan.h"
#include "tensor/view.h"

namespace neve::restore {

struct BoxWant {
  size_t entry = 0;                // into the entries
  tensor::Dims offset, extent;     // of the entry's shape, in elements
  std::byte* target = nullptr;
  tensor::Dims strides;            // of the target, in bytes
};

// What one image gives of one wanted box.
struct BoxPart {
  uint32_t want, box, copy;        // the copy counts within the box
  uint32_t image;
  Range range;
};

inline constexpr uint32_t kUnusable = UINT32_MAX;   // as a distance: not to be read from

// distances: of each image, less is nearer. Internal: a wanted element that no box holds. NotFound: a box of which every copy is
// unusable; says which want.
absl::StatusOr<std::vector<BoxPart>> PlanBoxes(std::span<const format::GlobalEntry> entries, std::span<const BoxWant> wants,
                                               std::span<const uint32_t> distances);

// The part again, from another copy. NotFound: none is left.
absl::Status TakeOtherCopy(std::span<const format::GlobalEntry> entries, std::span<const BoxWant> wants,
                           std::span<const uint32_t> distances, BoxPart* part);

// The ranges of one image's parts, ready for a ReadPlan.
std::vector<Range> RangesOf(std::span<const BoxPart* const> parts);

}  // namespace neve::restore

#endif  // NEVE_RESTORE_BOX_PLAN_H_
