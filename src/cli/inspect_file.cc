#include "cli/inspect_file.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/tree_walk.h"
#include "format/commit_record.h"
#include "format/names.h"

namespace neve::cli {
namespace {

constexpr std::string_view kImageSuffix = ".safetensors", kRecordSuffix = ".commit.json";

// Returns what the record says of the image's size; none where there is no record to be trusted.
std::optional<uint64_t> ReadRecordBeside(InspectedFile* file) {
  if (!file->path.ends_with(kImageSuffix)) return std::nullopt;
  const std::string path = file->path.substr(0, file->path.size() - kImageSuffix.size()) + std::string(kRecordSuffix);
  if (!os::Exists(path)) {
    if (format::ParseShardName(os::BaseName(file->path)).has_value()) {
      file->notes.push_back(file->path + " has no commit record: it is not part of any save");
    }
    return std::nullopt;
  }
  const absl::StatusOr<std::string> text = os::ReadFile(path, format::kRecordBytesMax);
  const absl::StatusOr<format::CommitRecord> record = text.ok() ? format::DecodeRecord(*text) : text.status();
  if (!record.ok()) {
    file->notes.push_back(path + ": " + std::string(record.status().message()));
    return std::nullopt;
  }
  SaveInfo save;
  save.job = record->job;
  save.step = record->key.step;
  save.save = record->key.save;
  save.world = record->key.world;
  save.time = record->time;
  save.tags = record->tags;
  file->save = std::move(save);
  file->rank = record->key.rank;
  return record->image_bytes;
}

}  // namespace

absl::StatusOr<InspectedFile> InspectFile(const std::string& path, bool lenient) {
  InspectedFile inspected;
  inspected.path = path;
  absl::StatusOr<std::unique_ptr<format::Contents>> contents = format::OpenContents(path, {.lenient = lenient});
  if (!contents.ok()) {
    const std::optional<uint64_t> expected = ReadRecordBeside(&inspected);
    const absl::StatusOr<struct ::stat> facts = os::Stat(path);
    if (expected.has_value() && facts.ok() && S_ISREG(facts->st_mode) &&
        *expected != static_cast<uint64_t>(facts->st_size)) {  // an image it was, whatever it looks like
      return Damaged(absl::StrFormat("%s: %d bytes expected by its record, %d found", path, *expected, facts->st_size));
    }
    const bool named = std::string(contents.status().message()).find(path) != std::string::npos;
    return named ? contents.status() : Annotate(contents.status(), path);
  }
  inspected.contents = *std::move(contents);
  inspected.notes.assign(inspected.contents->notes().begin(), inspected.contents->notes().end());
  inspected.again = format::TensorsAgain(inspected.header(), inspected.tensors());
  if (inspected.is_safetensors()) ReadRecordBeside(&inspected);
  return inspected;
}

absl::StatusOr<InspectedFile> InspectWhole(const PlaceContent& content) {
  InspectedFile inspected;
  inspected.path = content.path;
  inspected.save = content.whole->info;
  inspected.images = content.files;
  inspected.entries = content.whole->entries;
  NEVE_ASSIGN_OR_RETURN(inspected.whole_header, format::ParseImageHeader(content.whole->header, content.whole->image_bytes));
  NEVE_ASSIGN_OR_RETURN(inspected.whole_tensors, format::LogicalTensors(inspected.whole_header));
  inspected.again = format::TensorsAgain(inspected.whole_header, inspected.whole_tensors);
  return inspected;
}

}  // namespace neve::cli
