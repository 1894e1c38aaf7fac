#include "cli/inspect_file.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/names.h"
#include "neve/places.h"

namespace neve::cli {
namespace {

constexpr std::string_view kImageSuffix = ".safetensors", kRecordSuffix = ".commit.json";

void ReadRecordBeside(InspectedFile* file) {
  if (!file->path.ends_with(kImageSuffix)) return;
  const std::string path = file->path.substr(0, file->path.size() - kImageSuffix.size()) + std::string(kRecordSuffix);
  if (!os::Exists(path)) {
    if (format::ParseShardName(os::BaseName(file->path)).has_value()) {
      file->notes.push_back(file->path + " has no commit record: it is not part of any save");
    }
    return;
  }
  const absl::StatusOr<std::string> text = os::ReadFile(path, format::kRecordBytesMax);
  absl::StatusOr<format::CommitRecord> record = text.ok() ? format::DecodeRecord(*text) : text.status();
  if (record.ok()) {
    file->record = *std::move(record);
  } else {
    file->notes.push_back(path + ": " + std::string(record.status().message()));
  }
}

absl::StatusOr<std::vector<std::string>> ImagesIn(const std::string& folder) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<os::DirectoryEntry> entries, os::ListDirectory(folder));
  std::vector<std::string> files;
  for (const os::DirectoryEntry& entry : entries) {
    const std::optional<format::ShardName> shard = format::ParseShardName(entry.name);
    if (shard.has_value() && !shard->is_record && !entry.is_directory) files.push_back(os::JoinPath(folder, entry.name));
  }
  return files;
}

absl::StatusOr<const SaveInfo*> ChooseSave(const ListReport& report, const std::string& place, int64_t step) {
  const SaveInfo* chosen = nullptr;
  for (const SaveInfo& save : report.saves) {
    if (step >= 0 ? save.step != static_cast<uint64_t>(step) : !save.complete) continue;
    if (chosen == nullptr || save.save > chosen->save) chosen = &save;
  }
  if (chosen != nullptr) return chosen;
  if (step >= 0) return NotFound(absl::StrFormat("%s holds no save of step %d", place, step));
  if (report.saves.empty()) return Unsupported(absl::StrFormat("%s is a job folder without any save", place));
  return Damaged(absl::StrFormat("%s holds no complete save; the newest, step %d, is not: %s (`neve ls` shows all)", place,
                                 report.saves.front().step, report.saves.front().reason));
}

}  // namespace

absl::StatusOr<InspectedFile> InspectFile(const std::string& path, bool lenient) {
  InspectedFile inspected;
  inspected.path = path;
  absl::StatusOr<std::unique_ptr<format::Contents>> contents = format::OpenContents(path, {.lenient = lenient});
  if (!contents.ok()) {
    ReadRecordBeside(&inspected);
    const absl::StatusOr<struct ::stat> facts = os::Stat(path);
    if (inspected.record.has_value() && facts.ok() && S_ISREG(facts->st_mode) &&
        inspected.record->image_bytes != static_cast<uint64_t>(facts->st_size)) {  // an image it was, whatever it looks like
      return Damaged(
          absl::StrFormat("%s: %d bytes expected by its record, %d found", path, inspected.record->image_bytes, facts->st_size));
    }
    const bool named = std::string(contents.status().message()).find(path) != std::string::npos;
    return named ? contents.status() : Annotate(contents.status(), path);
  }
  inspected.contents = *std::move(contents);
  inspected.notes.assign(inspected.contents->notes().begin(), inspected.contents->notes().end());
  if (inspected.is_safetensors()) ReadRecordBeside(&inspected);
  return inspected;
}

absl::StatusOr<InspectedPlace> FindFiles(const std::string& place, int64_t step) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  InspectedPlace found;
  found.kind = "step";
  switch (info.kind) {
    case PlaceKind::kImageFile:
      found.kind = "file";
      found.files.push_back(info.path);
      return found;
    case PlaceKind::kStepFolder: {
      NEVE_ASSIGN_OR_RETURN(found.files, ImagesIn(info.path));
      if (found.files.empty()) return Damaged(absl::StrFormat("%s holds no image", place));
      return found;
    }
    case PlaceKind::kJobFolder: {
      NEVE_ASSIGN_OR_RETURN(const ListReport report, ListSaves(place));
      found.notes = report.notes;
      NEVE_ASSIGN_OR_RETURN(const SaveInfo* const save, ChooseSave(report, place, step));
      if (!save->complete) found.notes.push_back(absl::StrFormat("step %d is not complete: %s", save->step, save->reason));
      NEVE_ASSIGN_OR_RETURN(found.files, ImagesIn(save->tiers.at("file").place));
      if (found.files.empty()) return Damaged(absl::StrFormat("%s holds no image", save->tiers.at("file").place));
      return found;
    }
    case PlaceKind::kRoot:
      return Unsupported(absl::StrFormat("%s is a root of %d job folders; give one of them, such as %s", place,
                                         info.job_folders.size(), info.job_folders.front()));
    case PlaceKind::kRam:
      return Unsupported(
          "inspect reads files; `neve ls ram:` and `neve verify ram:` look at RAM, `neve recover` brings it to "
          "files");
    case PlaceKind::kEmptyFolder:
      return Unsupported(absl::StrFormat("%s holds nothing of neve", place));
    case PlaceKind::kForeign: {
      const absl::StatusOr<struct ::stat> facts = os::Stat(info.path);
      if (!facts.ok() || !S_ISDIR(facts->st_mode)) break;
      found.kind = "file";  // a folder that is one checkpoint of another kind
      found.files.push_back(info.path);
      return found;
    }
  }
  return Unsupported(absl::StrFormat("%s is %s", place, info.what));
}

}  // namespace neve::cli
