#include "engine/files_source.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/json_text.h"
#include "format/names.h"
#include "format/verified_contents.h"

namespace neve::engine {
namespace {

absl::Status OpenFile(const std::string& path, const SourceOptions& options, Source* source) {
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<format::Contents> contents, format::OpenContents(path, {.lenient = options.lenient}));
  source->kind = std::string(format::Name(contents->kind()));
  for (const std::string& note : contents->notes()) source->notes.push_back(absl::StrFormat("%s: %s", path, note));
  source->shards.push_back({std::move(contents), std::nullopt});
  return absl::OkStatus();
}

// An image with the record beside it, which is verified as it is read.
absl::Status OpenShard(const std::string& image, const std::string& record_path, const SourceOptions& options, Source* source) {
  NEVE_RETURN_IF_ERROR(OpenFile(image, options, source));
  SourceShard& shard = source->shards.back();
  if (record_path.empty()) {
    source->notes.push_back(image + " has no commit record: its bytes cannot be verified");
    return absl::OkStatus();
  }
  absl::StatusOr<format::CommitRecord> record = ReadRecord(record_path);
  if (!record.ok()) {
    // A record that cannot be trusted is damage of structure, as verify has it.
    return record.status().code() == absl::StatusCode::kDataLoss ? Damaged(std::string(record.status().message()))
                                                                 : record.status();
  }
  shard.record = *record;
  NEVE_ASSIGN_OR_RETURN(shard.contents, format::Verified(std::move(shard.contents), *std::move(record)));
  return absl::OkStatus();
}

absl::Status OpenStep(const FoundStep& step, const SourceOptions& options, Source* source) {
  uint32_t world = 0;
  for (const FoundImage& image : step.images) {
    if (image.image_path.empty()) return Damaged(absl::StrFormat("%s is there, its image is not", image.record_path));
    if (world != 0 && image.world != world) {
      return Unsupported(absl::StrFormat("%s holds shards of %d ranks and of %d ranks; give one of the files", step.path, world,
                                         image.world));
    }
    world = image.world;
    NEVE_RETURN_IF_ERROR(OpenShard(image.image_path, image.record_path, options, source));
  }
  if (step.images.empty()) return Damaged(absl::StrFormat("%s holds no image", step.path));
  if (step.images.size() < world) {
    source->notes.push_back(absl::StrFormat("%s holds %d of %d ranks", step.path, step.images.size(), world));
  }
  return absl::OkStatus();
}

absl::Status ListTensors(Source* source) {
  std::unordered_map<std::string, uint32_t> seen;   // how many shards have the name
  if (source->shards.size() > 1) {
    for (const SourceShard& shard : source->shards) {
      for (const format::LogicalTensor& tensor : shard.contents->tensors()) ++seen[tensor.name];
    }
  }
  for (uint32_t i = 0; i < source->shards.size(); ++i) {
    const SourceShard& shard = source->shards[i];
    const uint32_t rank = shard.record.has_value() ? shard.record->key.rank : i;
    for (const format::LogicalTensor& tensor : shard.contents->tensors()) {
      NEVE_ASSIGN_OR_RETURN(const uint64_t elements, tensor::ElementCount(tensor.shape));
      uint64_t bytes = 0;
      // Expanded dimensions cost a file nothing, so the logical size may be any number.
      if (__builtin_mul_overflow(elements, ItemBytes(tensor.dtype), &bytes) ||
          __builtin_add_overflow(source->bytes, bytes, &source->bytes)) {
        return Damaged(absl::StrFormat("%s: the size of tensor %s overflows", shard.contents->files().front(), tensor.name));
      }
      const auto found = seen.find(tensor.name);
      std::string name = tensor.name;
      if (found != seen.end() && found->second > 1) name += absl::StrFormat("@%d", rank);
      source->tensors.push_back({std::move(name), i, &tensor, elements, bytes});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const SaveInfo*> ChooseSave(const ListReport& report, const std::string& place, int64_t step) {
  const SaveInfo* chosen = nullptr;
  for (const SaveInfo& save : report.saves) {
    if (step >= 0 ? save.step != static_cast<uint64_t>(step) : !save.complete) continue;
    if (chosen == nullptr || save.save > chosen->save) chosen = &save;
  }
  if (chosen != nullptr) return chosen;
  if (step >= 0) return NotFound(absl::StrFormat("%s holds no save of step %d (`neve ls` shows all)", place, step));
  if (report.saves.empty()) return Unsupported(absl::StrFormat("%s is a job folder without any save", place));
  return Damaged(absl::StrFormat("%s holds no complete save; the newest, step %d, is not: %s (`neve ls` shows all)", place,
                                 report.saves.front().step, report.saves.front().reason));
}

}  // namespace

absl::Status CheckRead(const Source& source) {
  for (const SourceShard& shard : source.shards) NEVE_RETURN_IF_ERROR(shard.contents->CheckRead());
  return absl::OkStatus();
}

absl::Status CheckLogicalSize(const Source& source) {
  constexpr uint64_t kFactor = 1024, kAlways = 1u << 30;
  uint64_t stored = 0;
  for (const SourceShard& shard : source.shards) stored += shard.contents->image_bytes();
  if (source.bytes / kFactor <= stored + kAlways / kFactor) return absl::OkStatus();
  const auto largest = std::max_element(source.tensors.begin(), source.tensors.end(),
                                        [](const SourceTensor& a, const SourceTensor& b) { return a.bytes < b.bytes; });
  return Unsupported(absl::StrFormat("%s: its tensors repeat %d bytes to %d, %s alone to %d; that is not gone through", source.place,
                                     stored, source.bytes, format::Quoted(largest->name), largest->bytes));
}

absl::StatusOr<FoundStep> ChooseStep(const PlaceInfo& info, const std::string& place, int64_t step,
                                     std::vector<std::string>* notes) {
  if (info.kind == PlaceKind::kStepFolder) return ReadStep(info.path);
  NEVE_ASSIGN_OR_RETURN(const ListReport report, ListSaves(place));
  notes->insert(notes->end(), report.notes.begin(), report.notes.end());
  NEVE_ASSIGN_OR_RETURN(const SaveInfo* const save, ChooseSave(report, place, step));
  if (!save->complete) notes->push_back(absl::StrFormat("step %d is not complete: %s", save->step, save->reason));
  return ReadStep(save->tiers.at("file").place);
}

absl::StatusOr<Source> OpenSource(const std::string& place, const SourceOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  Source source;
  source.place = place;
  switch (info.kind) {
    case PlaceKind::kImageFile: {
      const std::optional<format::ShardName> shard = format::ParseShardName(os::BaseName(info.path));
      if (!shard.has_value()) {
        NEVE_RETURN_IF_ERROR(OpenFile(info.path, options, &source));
        break;
      }
      std::string record = os::JoinPath(os::DirName(info.path), format::FormatRecordName(shard->rank, shard->world));
      if (!os::Exists(record)) record.clear();
      NEVE_RETURN_IF_ERROR(OpenShard(info.path, record, options, &source));
      break;
    }
    case PlaceKind::kStepFolder:
    case PlaceKind::kJobFolder: {
      NEVE_ASSIGN_OR_RETURN(const FoundStep step, ChooseStep(info, place, options.step, &source.notes));
      NEVE_RETURN_IF_ERROR(OpenStep(step, options, &source));
      source.kind = "neve step";
      break;
    }
    case PlaceKind::kRoot:
      return Unsupported(absl::StrFormat("%s is a root of %d job folders; give one of them, such as %s", place,
                                         info.job_folders.size(), info.job_folders.front()));
    case PlaceKind::kRam:
      return Unsupported(absl::StrFormat("%s: only files are read here; `neve ls ram:` and `neve verify ram:` look at RAM, "
                                         "`neve recover` brings it to files", place));
    case PlaceKind::kEmptyFolder:
      return Unsupported(absl::StrFormat("%s holds nothing that neve can read", place));
    case PlaceKind::kForeign: {
      const absl::StatusOr<struct ::stat> facts = os::Stat(info.path);
      if (!facts.ok() || !S_ISDIR(facts->st_mode)) return Unsupported(absl::StrFormat("%s is %s", place, info.what));
      NEVE_RETURN_IF_ERROR(OpenFile(info.path, options, &source));
      break;
    }
  }
  NEVE_RETURN_IF_ERROR(ListTensors(&source));
  return source;
}

}  // namespace neve::engine
