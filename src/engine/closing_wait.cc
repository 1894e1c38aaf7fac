#include "engine/closing_wait.h"

#include <algorithm>

namespace neve::engine {
namespace {

// What one tier shows of one rank's part of a save.
struct Part {
  bool begun = false, whole = false;
};
Part PartOf(const catalog::Save& save, uint32_t rank, int tier) {
  Part part;
  if (rank >= save.ranks.size()) return part;
  for (const catalog::Copy& copy : save.ranks[rank]) {
    if (copy.tier != tier) continue;
    part.begun |= copy.entry.has_image;
    part.whole |= copy.entry.has_image && copy.entry.has_record;
  }
  return part;
}

}  // namespace

ClosingWait LookWhileClosing(std::span<const catalog::Save> saves, std::span<const int> durable, const SaveId& newest, uint32_t rank,
                             uint32_t world, double allowed_s, const std::function<std::optional<bool>(uint32_t)>& alive) {
  ClosingWait wait;
  const catalog::Save* last = nullptr;
  bool others_seen = false;
  for (const catalog::Save& save : saves) {
    if (save.save > newest) continue;
    if (save.save == newest) last = &save;
    if (!wait.whole.has_value() && std::all_of(durable.begin(), durable.end(), [&](int tier) { return save.CompleteIn(tier); })) {
      wait.whole = save.save;
    }
    if (save.save.incarnation != newest.incarnation) continue;
    for (uint32_t other = 0; other < save.ranks.size(); ++other) {
      if (other == rank) continue;
      for (const int tier : durable) others_seen |= PartOf(save, other, tier).begun || PartOf(save, other, tier).whole;
    }
  }
  if (wait.whole == newest || (last != nullptr && last->contradicts)) return wait;
  double patience = allowed_s;
  for (uint32_t other = 0; other < world; ++other) {
    if (other == rank) continue;
    for (const int tier : durable) {
      const Part part = last == nullptr ? Part{} : PartOf(*last, other, tier);
      if (part.whole) continue;
      const std::optional<bool> lives = alive(other);
      if (lives == false) return wait;
      if (lives == true && part.begun) continue;
      patience = std::min(patience, lives == true || others_seen ? kAlivePatience_s : kUnseenPatience_s);
    }
  }
  wait.patience_s = patience;
  return wait;
}

}  // namespace neve::engine
