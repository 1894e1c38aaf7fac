// Catalog: what saves exist, in which tiers, complete or not. Derived from listings each time, stored nowhere.
//
// Everything here is a pure function of listings. Names and sizes alone say which saves can be complete; whether a record
// parses is found when an image is opened.
//
// Invariants
//   - A save is complete when every rank of its world has, in some tier, a record and an image.
//   - Saves are ordered by save id only: never by step, never by a clock.
//   - Retention never names a pinned save, one that is held, one of the `keep` newest that are complete in that tier, or one that
//     is not complete there, unless ranks retire one by one and it is older than all that are kept.
#ifndef NEVE_CATALOG_CATALOG_H_
#define NEVE_CATALOG_CATALOG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "neve/types.h"
#include "storage/tier.h"

namespace neve::catalog {

struct TierListing {
  TierKind kind;
  std::string place;
  absl::Status status;           // not OK: could not be listed; `listing` is empty
  storage::Listing listing;
};

struct Copy {
  int tier = 0;                  // index into the listings
  storage::ImageEntry entry;
};

struct Save {
  uint64_t step = 0;
  SaveId save;
  uint32_t world = 1;
  std::vector<std::vector<Copy>> ranks;        // copies of each rank's image, in the order of the listings
  bool complete = false;
  std::vector<uint32_t> missing_ranks;         // without any copy that has both record and image
  bool pinned = false;
  bool any_record = false;
  bool contradicts = false;                    // its images disagree on step or world
  std::string reason;                          // why it is not complete, in one line; empty when it is

  ImageKey KeyOf(uint32_t rank) const { return ImageKey{save, step, rank, world}; }
  bool CompleteIn(int tier) const;             // complete, and every rank has a copy in this tier
};

// Groups listings (nearest tier first) into saves, newest first. Entries of one save id that disagree on world or step make
// the save incomplete, with a reason that names both.
std::vector<Save> GroupSaves(std::span<const TierListing> listings);

struct RetentionRule {
  std::optional<uint64_t> keep;                // none: keep all
  std::string best_tag;
  bool best_is_max = false;
  uint64_t best_count = 0;
};
// What the ranks have told each other that all of them have in a tier. Counts as complete here where this rank's own image is.
struct Told {
  std::set<SaveId> saves;
  uint32_t rank = 0, world = 1;
};
// Saves to retire from tier `tier`, oldest first. `saves`: newest first. `held`: saves in use. `best_values`: the tag's number
// where known. `below`: only saves older than this may go (the watermark), none: no bound. `remains`: where each rank retires its own
// images, also saves that other ranks have begun to take out: not complete any more, and older than the oldest that the rule keeps.
// `told`: counts besides the listing; the newest save of this world that the listing alone shows whole stays all the same, with all newer.
std::vector<const Save*> ToRetire(std::span<const Save> saves, int tier, const RetentionRule& rule,
                                  const std::set<SaveId>& held, const std::map<SaveId, double>& best_values,
                                  std::optional<SaveId> below, bool remains = false, const Told& told = {});

// The greatest incarnation in any name of any listing; 0 when there is none.
uint32_t GreatestIncarnation(std::span<const TierListing> listings);

}  // namespace neve::catalog

#endif  // NEVE_CATALOG_CATALOG_H_
