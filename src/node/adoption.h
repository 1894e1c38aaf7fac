// What a dead life left in RAM and owes to a durable tier.
#ifndef NEVE_NODE_ADOPTION_H_
#define NEVE_NODE_ADOPTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "catalog/catalog.h"
#include "neve/types.h"

namespace neve::node {

struct Debt {
  std::vector<ImageKey> owed;    // due in the tier, not there, and newer than the newest complete save there; oldest first
  std::vector<ImageKey> there;   // in the tier already
};
// `in_ram`: newest first. `saves`: of that tier alone, newest first (catalog::GroupSaves). `every`: the tier's cadence.
Debt DebtOf(std::span<const ImageKey> in_ram, std::span<const catalog::Save> saves, uint64_t every);

}  // namespace neve::node

#endif  // NEVE_NODE_ADOPTION_H_
