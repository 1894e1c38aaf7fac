// Which save a place stands for, and which of its images: the one place that decides it, for all verbs.
#ifndef NEVE_ENGINE_PLACES_CHOOSE_H_
#define NEVE_ENGINE_PLACES_CHOOSE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/places_folder.h"
#include "neve/files.h"
#include "neve/places.h"

namespace neve::engine {

// The step folder that a place stands for: itself, or a job folder's newest complete save (or the newest of that step, complete or not,
// with a note). NotFound: no save at all, or none of that step. Damaged: none is complete.
absl::StatusOr<FoundStep> ChooseStep(const PlaceInfo& info, const std::string& place, int64_t step,
                                     std::vector<std::string>* notes);

// Whether --step and --rank say something of such a place; < 0: not given. Invalid: one checkpoint by itself, or a step folder of
// another step.
absl::Status CheckSelection(const PlaceInfo& info, const std::string& place, int64_t step, int64_t rank);
// For one place of two: a selection that says something of the other alone is left out here.
absl::StatusOr<SourceOptions> OptionsOfPair(const std::string& place, const std::string& other, SourceOptions options);

// What is to be read: a step folder, or one file or folder of another kind.
struct Chosen {
  std::optional<FoundStep> step;
  std::string path;                        // where it is no step
  std::vector<std::string> notes;
};
// Unsupported: a place of which nothing is read (says why). Invalid: a rank is asked for, and the place is no save.
absl::StatusOr<Chosen> Choose(const std::string& place, const SourceOptions& options);

// The images of all ranks, by rank, or of that one (rank >= 0). Damaged: ranks are missing (named), or only their records are there.
// NotFound: that rank is not there. Unsupported: images of several worlds.
absl::StatusOr<std::vector<const FoundImage*>> ImagesOf(const FoundStep& step, int64_t rank);

// Ranks of the world of which nothing is there, ascending. Requires: images of one world.
std::vector<uint32_t> MissingRanks(const FoundStep& step);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_CHOOSE_H_
