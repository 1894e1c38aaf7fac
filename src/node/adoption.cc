#include "node/adoption.h"

#include <optional>
#include <set>

namespace neve::node {

Debt DebtOf(std::span<const ImageKey> in_ram, std::span<const catalog::Save> saves, uint64_t every) {
  std::optional<SaveId> newest;
  std::set<SaveId> there;
  for (const catalog::Save& save : saves) {
    if (!save.complete) continue;
    if (!newest.has_value()) newest = save.save;
    there.insert(save.save);
  }
  Debt debt;
  for (auto key = in_ram.rbegin(); key != in_ram.rend(); ++key) {
    if (there.contains(key->save)) {
      debt.there.push_back(*key);
    } else if (key->step % every == 0 && (!newest.has_value() || key->save > *newest)) {
      debt.owed.push_back(*key);
    }
  }
  return debt;
}

}  // namespace neve::node
