#include "engine/places_choose.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/global_image.h"

namespace neve::engine {
namespace {

absl::StatusOr<const SaveInfo*> ChooseSave(const ListReport& report, const std::string& place, int64_t step) {
  const SaveInfo* chosen = nullptr;
  for (const SaveInfo& save : report.saves) {
    if (step >= 0 ? save.step != static_cast<uint64_t>(step) : !save.complete) continue;
    if (chosen == nullptr || save.save > chosen->save) chosen = &save;
  }
  if (chosen != nullptr) return chosen;
  if (step >= 0) return NotFound(absl::StrFormat("%s holds no save of step %d (`neve ls` shows all)", place, step));
  if (report.saves.empty()) return NotFound(absl::StrFormat("%s is a job folder without any save", place));
  return Damaged(absl::StrFormat("%s holds no complete save; the newest, step %d, is not: %s (`neve ls` shows all)", place,
                                 report.saves.front().step, report.saves.front().reason));
}

}  // namespace

absl::Status CheckSelection(const PlaceInfo& info, const std::string& place, int64_t step, int64_t rank) {
  if (info.kind == PlaceKind::kStepFolder) {
    const auto name = format::ParseSaveName(os::BaseName(info.path));
    if (step < 0 || (name.has_value() && name->step == static_cast<uint64_t>(step))) return absl::OkStatus();
    return Invalid(absl::StrFormat("--step %d: %s is the folder of another step; give the job folder that holds it", step, place));
  }
  if (info.kind != PlaceKind::kImageFile && info.kind != PlaceKind::kForeign) return absl::OkStatus();
  if (step >= 0) return Invalid(absl::StrFormat("--step %d: %s is one checkpoint by itself, no job folder", step, place));
  if (rank >= 0) return Invalid(absl::StrFormat("--rank %d: %s is one checkpoint by itself, no save of several ranks", rank, place));
  return absl::OkStatus();
}

absl::StatusOr<SourceOptions> OptionsOfPair(const std::string& place, const std::string& other, SourceOptions options) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info_of_other, ResolvePlace(other));
  if (!CheckSelection(info, place, options.step, -1).ok() && CheckSelection(info_of_other, other, options.step, -1).ok()) options.step = -1;
  if (!CheckSelection(info, place, -1, options.rank).ok() && CheckSelection(info_of_other, other, -1, options.rank).ok()) options.rank = -1;
  return options;
}

absl::StatusOr<FoundStep> ChooseStep(const PlaceInfo& info, const std::string& place, int64_t step,
                                     std::vector<std::string>* notes) {
  NEVE_RETURN_IF_ERROR(CheckSelection(info, place, step, -1));
  if (info.kind == PlaceKind::kStepFolder) return ReadStep(info.path);
  NEVE_ASSIGN_OR_RETURN(const ListReport report, ListSaves(place));
  notes->insert(notes->end(), report.notes.begin(), report.notes.end());
  NEVE_ASSIGN_OR_RETURN(const SaveInfo* const save, ChooseSave(report, place, step));
  if (!save->complete) notes->push_back(absl::StrFormat("step %d is not complete: %s", save->step, save->reason));
  return ReadStep(save->tiers.at("file").place);
}

absl::StatusOr<Chosen> Choose(const std::string& place, const SourceOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  NEVE_RETURN_IF_ERROR(CheckSelection(info, place, options.step, options.rank));
  Chosen chosen;
  switch (info.kind) {
    case PlaceKind::kStepFolder:
    case PlaceKind::kJobFolder: {
      NEVE_ASSIGN_OR_RETURN(chosen.step, ChooseStep(info, place, options.step, &chosen.notes));
      return chosen;
    }
    case PlaceKind::kRoot:
      return Unsupported(absl::StrFormat("%s is a root of %d job folders; give one of them, such as %s", place,
                                         info.job_folders.size(), info.job_folders.front()));
    case PlaceKind::kRam:
      return Unsupported(absl::StrFormat("%s: only files are read here; `neve ls ram:` and `neve verify ram:` look at RAM, "
                                         "`neve recover` brings it to files", place));
    case PlaceKind::kEmptyFolder: return Unsupported(absl::StrFormat("%s holds nothing that neve can read", place));
    case PlaceKind::kForeign: {
      const absl::StatusOr<struct ::stat> facts = os::Stat(info.path);
      if (!facts.ok() || !S_ISDIR(facts->st_mode)) return Unsupported(absl::StrFormat("%s is %s", place, info.what));
      break;
    }
    case PlaceKind::kImageFile: break;
  }
  chosen.path = info.path;
  return chosen;
}

absl::StatusOr<std::vector<const FoundImage*>> ImagesOf(const FoundStep& step, int64_t rank) {
  if (step.images.empty()) return Damaged(absl::StrFormat("%s holds no image", step.path));
  const uint32_t world = step.images.front().world;
  std::vector<const FoundImage*> images;
  for (const FoundImage& image : step.images) {
    if (image.world != world) {
      return Unsupported(absl::StrFormat("%s holds shards of %d ranks and of %d ranks; give one of the files", step.path, world,
                                         image.world));
    }
    if (rank >= 0 && image.rank != static_cast<uint64_t>(rank)) continue;
    if (image.image_path.empty()) return Damaged(absl::StrFormat("%s is there, its image is not", image.record_path));
    images.push_back(&image);
  }
  if (rank >= 0) {
    if (!images.empty()) return images;
    return NotFound(absl::StrFormat("%s holds no image of rank %d; it is a save of %d ranks, counted from 0", step.path, rank, world));
  }
  if (const std::vector<uint32_t> missing = MissingRanks(step); !missing.empty()) {
    return Damaged(absl::StrFormat("%s holds %d of %d ranks, %s missing, so that its tensors are not whole; `--rank R` shows one rank "
                                   "that is there", step.path, step.images.size(), world, format::RanksText(missing)));
  }
  return images;
}

std::vector<uint32_t> MissingRanks(const FoundStep& step) {
  std::vector<uint32_t> missing;
  const uint32_t world = step.images.empty() ? 0 : step.images.front().world;
  auto image = step.images.begin();
  for (uint32_t rank = 0; rank < world; ++rank) {
    while (image != step.images.end() && image->rank < rank) ++image;
    if (image == step.images.end() || image->rank != rank) missing.push_back(rank);
  }
  return missing;
}

}  // namespace neve::engine
