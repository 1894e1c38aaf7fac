#include "catalog/catalog.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace neve::catalog {
namespace {

// Names are all that bounds a world here, and anybody can write a name. Larger worlds are refused with a reason, so that a
// hostile "shard-4000000000-of-4294967295" costs no more than 24 MiB.
constexpr uint32_t kWorldMax = 1u << 20;

// One line about what a save lacks, by the first rank that is missing.
std::string MissingReason(const Save& save) {
  std::string ranks;
  for (size_t i = 0; i < save.missing_ranks.size() && i < 8; ++i) {
    ranks += (i == 0 ? "" : ", ") + std::to_string(save.missing_ranks[i]);
  }
  if (save.missing_ranks.size() > 8) ranks += ", ...";
  bool image_only = false, record_only = false;
  for (uint32_t rank : save.missing_ranks) {
    for (const Copy& copy : save.ranks[rank]) {
      image_only |= copy.entry.has_image && !copy.entry.has_record;
      record_only |= copy.entry.has_record && !copy.entry.has_image;
    }
  }
  const char* found = image_only    ? "an image without a commit record"
                      : record_only ? "a commit record without its image"
                                    : "nothing";
  return absl::StrFormat("rank %s of %d missing (found %s)", ranks, save.world, found);
}

}  // namespace

bool Save::CompleteIn(int tier) const {
  // What is not complete in all tiers together, or contradicts itself, must not count as the newest of one of them either:
  // retention would keep it in place of a save that can be restored.
  if (!complete) return false;
  for (const auto& copies : ranks) {
    const bool here = std::any_of(copies.begin(), copies.end(), [&](const Copy& copy) {
      return copy.tier == tier && copy.entry.has_record && copy.entry.has_image;
    });
    if (!here) return false;
  }
  return !ranks.empty();
}

std::vector<Save> GroupSaves(std::span<const TierListing> listings) {
  std::map<SaveId, Save> by_id;
  for (size_t t = 0; t < listings.size(); ++t) {
    for (const storage::ImageEntry& entry : listings[t].listing.images) {
      auto [it, fresh] = by_id.try_emplace(entry.key.save);
      Save& save = it->second;
      if (fresh) {
        save.step = entry.key.step;
        save.save = entry.key.save;
        save.world = entry.key.world;
      }
      save.pinned |= entry.pinned;
      save.any_record |= entry.has_record;
      if (entry.key.world != save.world || entry.key.step != save.step || entry.key.rank >= save.world) {
        save.contradicts = true;
        if (save.reason.empty()) {
          save.reason = absl::StrFormat("its images disagree: step %d of world %d, and %s says step %d, rank %d of world %d",
                                        save.step, save.world, entry.path, entry.key.step, entry.key.rank, entry.key.world);
        }
        continue;
      }
      if (save.world > kWorldMax) {
        save.contradicts = true;
        save.reason = absl::StrFormat("%s is of a world of %d ranks; at most %d are known", entry.path, save.world, kWorldMax);
        continue;
      }
      if (save.ranks.size() <= entry.key.rank) save.ranks.resize(entry.key.rank + 1);
      save.ranks[entry.key.rank].push_back(Copy{static_cast<int>(t), entry});
    }
  }
  std::vector<Save> saves;
  saves.reserve(by_id.size());
  for (auto it = by_id.rbegin(); it != by_id.rend(); ++it) {
    Save& save = it->second;
    constexpr size_t kMissingListed = 1024;
    for (uint32_t rank = 0; rank < save.world && save.missing_ranks.size() < kMissingListed; ++rank) {
      const bool here = rank < save.ranks.size() &&
                        std::any_of(save.ranks[rank].begin(), save.ranks[rank].end(), [](const Copy& copy) {
                          return copy.entry.has_record && copy.entry.has_image;
                        });
      if (!here) save.missing_ranks.push_back(rank);
    }
    if (!save.missing_ranks.empty()) {
      save.ranks.resize(std::max<size_t>(save.ranks.size(), save.missing_ranks.back() + 1));
      if (save.reason.empty()) save.reason = MissingReason(save);
    }
    save.complete = save.reason.empty();
    saves.push_back(std::move(save));
  }
  return saves;
}

std::vector<const Save*> ToRetire(std::span<const Save> saves, int tier, const RetentionRule& rule,
                                  const std::set<SaveId>& held, const std::map<SaveId, double>& best_values,
                                  std::optional<SaveId> below, bool remains, const Told& told) {
  std::vector<const Save*> victims;
  const auto is_whole = [&](const Save& save) {
    if (save.CompleteIn(tier)) return true;
    return !save.contradicts && save.world == told.world && told.rank < save.ranks.size() && told.saves.contains(save.save) &&
           std::any_of(save.ranks[told.rank].begin(), save.ranks[told.rank].end(), [&](const Copy& copy) {
             return copy.tier == tier && copy.entry.has_record && copy.entry.has_image;
           });
  };
  if (!told.saves.empty()) {
    const auto seen = std::find_if(saves.begin(), saves.end(),
                                   [&](const Save& save) { return save.world == told.world && save.CompleteIn(tier); });
    if (seen != saves.end()) below = std::min(below.value_or(seen->save), seen->save);
  }
  if (!rule.keep.has_value()) return victims;
  std::set<SaveId> best;
  if (rule.best_count > 0) {
    std::vector<std::pair<double, SaveId>> ranked;
    for (const Save& save : saves) {
      const auto found = best_values.find(save.save);
      if (found != best_values.end() && found->second == found->second && save.CompleteIn(tier)) {
        ranked.emplace_back(rule.best_is_max ? -found->second : found->second, save.save);
      }
    }
    std::sort(ranked.begin(), ranked.end());
    for (size_t i = 0; i < ranked.size() && i < rule.best_count; ++i) best.insert(ranked[i].second);
  }
  const uint64_t kept = std::max<uint64_t>(1, *rule.keep);
  uint64_t newer_complete = 0;
  for (const Save& save : saves) {
    if (save.pinned) continue;
    const bool complete = is_whole(save);
    if (!complete && (!remains || save.contradicts)) continue;
    if (newer_complete < kept) {
      newer_complete += complete ? 1 : 0;
      continue;
    }
    if (held.count(save.save) != 0 || best.count(save.save) != 0) continue;
    if (below.has_value() && !(save.save < *below)) continue;
    victims.push_back(&save);
  }
  std::reverse(victims.begin(), victims.end());
  return victims;
}

uint32_t GreatestIncarnation(std::span<const TierListing> listings) {
  uint32_t greatest = 0;
  for (const TierListing& tier : listings) {
    greatest = std::max(greatest, tier.listing.incarnation_max);
    for (const storage::ImageEntry& entry : tier.listing.images) greatest = std::max(greatest, entry.key.save.incarnation);
  }
  return greatest;
}

}  // namespace neve::catalog
