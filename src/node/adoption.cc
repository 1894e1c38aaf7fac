#include "node/adoption.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace neve::node {

Debt DebtOf(std::span<const ImageKey> in_ram, std::span<const catalog::Save> saves, uint64_t every) {
  std::optional<SaveId> newest;
  std::set<std::pair<SaveId, uint32_t>> there;   // and rank
  for (const catalog::Save& save : saves) {
    if (save.complete && !newest.has_value()) newest = save.save;
    const auto is_here = [](const catalog::Copy& copy) { return copy.entry.has_record && copy.entry.has_image; };
    for (uint32_t rank = 0; !save.contradicts && (save.complete ? rank < save.world : rank < save.ranks.size()); ++rank) {
      if (save.complete || std::any_of(save.ranks[rank].begin(), save.ranks[rank].end(), is_here)) there.emplace(save.save, rank);
    }
  }
  Debt debt;
  for (auto key = in_ram.rbegin(); key != in_ram.rend(); ++key) {
    if (there.contains({key->save, key->rank})) {
      debt.there.push_back(*key);
    } else if (key->step % every == 0 && (!newest.has_value() || key->save > *newest)) {
      debt.owed.push_back(*key);
    }
  }
  return debt;
}

}  // namespace neve::node
