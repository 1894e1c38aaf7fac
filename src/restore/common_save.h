// Which save the ranks of a job restore together: pure functions of what each of them sees, so that all come to the same.
//
// Invariants
//   - A save is offered only if every rank of the world reaches its own image of it, record and all, by the tiers that it has; of a
//     save of another number of ranks, if every rank reaches all of its images.
//   - Saves are taken newest first, by save id. What is newer and not offered has a reason that names the ranks.
//   - Views may be cut at their old end (`more`); nothing older than the newest cut is decided on.
#ifndef NEVE_RESTORE_COMMON_SAVE_H_
#define NEVE_RESTORE_COMMON_SAVE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error/status.h"
#include "catalog/catalog.h"
#include "neve/types.h"

namespace neve::restore {

// What one rank sees of one save.
struct SeenSave {
  SaveId save;
  uint64_t step = 0;
  uint32_t world = 1;
  bool any_record = false;
  bool contradicts = false;
  std::vector<std::pair<uint32_t, uint32_t>> ranks;   // [first, last] of images that have record and bytes, ascending
  bool Sees(uint32_t rank) const;
};

struct View {
  absl::Status status;             // why this rank cannot take part
  std::string wish;                // what it was asked for; the same on every rank
  uint64_t sequence = 0;           // of its next save
  bool more = false;               // older saves were left out
  std::vector<SeenSave> saves;     // newest first
};
inline constexpr size_t kViewSavesMax = 256;
// Of the saves (newest first) older than `before`.
View ViewOf(std::span<const catalog::Save> saves, std::optional<SaveId> before, size_t saves_max = kViewSavesMax);
std::string Encode(const View& view);

struct CommonSave {
  SaveId save;
  uint64_t step = 0;
  uint32_t world = 1;
  bool offered = false;
  bool any_record = false;
  std::string reason;              // why it is not offered
};
struct Common {
  std::vector<CommonSave> saves;   // newest first
  uint64_t sequence = 0;           // the greatest of all ranks
  std::optional<SaveId> rest;      // saves older than this were not looked at by all: gather again for those
};
// `views`: by rank, as encoded; as many as the world has ranks.
absl::StatusOr<Common> FindCommon(std::span<const std::string> views);

}  // namespace neve::restore

#endif  // NEVE_RESTORE_COMMON_SAVE_H_
