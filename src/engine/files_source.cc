#include "engine/files_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/tree_walk.h"
#include "format/json_text.h"
#include "format/names.h"
#include "format/verified_contents.h"

namespace neve::engine {
namespace {

absl::Status OpenFile(const std::string& path, const SourceOptions& options, Source* source) {
  NEVE_ASSIGN_OR_RETURN(source->contents, format::OpenContents(path, {.lenient = options.lenient}));
  source->kind = std::string(format::Name(source->contents->kind()));
  source->stored_bytes += source->contents->image_bytes();
  for (const std::string& note : source->contents->notes()) source->notes.push_back(absl::StrFormat("%s: %s", path, note));
  return absl::OkStatus();
}

// An image with the record beside it, which is verified as it is read.
absl::Status OpenImage(const std::string& image, const std::string& record_path, const SourceOptions& options, Source* source) {
  NEVE_RETURN_IF_ERROR(OpenFile(image, options, source));
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
  if (!source->record.has_value()) source->record = *record;
  NEVE_ASSIGN_OR_RETURN(source->contents, format::Verified(std::move(source->contents), *std::move(record)));
  return absl::OkStatus();
}

std::string ByRankNote(const std::string& place, std::span<const std::string> paths) {
  constexpr size_t kNamed = 4;
  std::string names;
  for (size_t i = 0; i < paths.size() && i < kNamed; ++i) names += (i == 0 ? "" : ", ") + paths[i];
  if (paths.size() > kNamed) names += absl::StrFormat(" and %d more", paths.size() - kNamed);
  return absl::StrFormat("%s: the ranks differ in %s; each rank's is shown, as %s%s@0", place, names.empty() ? "all they hold" : names,
                         paths.front(), paths.front().empty() ? "" : ".");
}

absl::Status OpenStep(const FoundStep& step, const SourceOptions& options, Source* source) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<const FoundImage*> images, ImagesOf(step, options.rank));
  std::vector<GlobalContents::Rank> ranks;
  for (const FoundImage* image : images) {
    NEVE_RETURN_IF_ERROR(OpenImage(image->image_path, image->record_path, options, source));
    if (images.size() > 1) ranks.push_back({image->rank, std::move(source->contents)});
  }
  source->kind = "neve step";
  if (ranks.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<GlobalContents>> global = GlobalContents::Open(std::move(ranks));
  if (!global.ok()) {
    return Annotate(global.status(), step.path + " (`--rank R` shows one rank's image)");
  }
  source->global = global->get();
  if (!source->global->by_rank().empty()) source->notes.push_back(ByRankNote(step.path, source->global->by_rank()));
  source->contents = *std::move(global);
  return absl::OkStatus();
}

absl::Status ListTensors(Source* source) {
  source->again = format::TensorsAgain(source->contents->header(), source->contents->tensors());
  std::vector<const format::LogicalTensor*> all;
  for (const format::LogicalTensor& tensor : source->contents->tensors()) all.push_back(&tensor);
  const size_t own = all.size();
  for (const format::LogicalTensor& tensor : source->again) all.push_back(&tensor);
  for (size_t i = 0; i < all.size(); ++i) {
    const format::LogicalTensor& tensor = *all[i];
    NEVE_ASSIGN_OR_RETURN(const uint64_t elements, tensor::ElementCount(tensor.shape));
    uint64_t bytes = 0;
    // Expanded dimensions cost a file nothing, so the logical size may be any number.
    if (__builtin_mul_overflow(elements, ItemBytes(tensor.dtype), &bytes) ||
        __builtin_add_overflow(source->bytes, bytes, &source->bytes)) {
      return Damaged(absl::StrFormat("%s: the size of tensor %s overflows", source->contents->files().front(), tensor.name));
    }
    source->tensors.push_back({tensor.name, &tensor, elements, bytes, i >= own});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLogicalSize(const Source& source) {
  constexpr uint64_t kFactor = 1024, kAlways = 1u << 30;
  const uint64_t stored = source.stored_bytes;
  if (source.bytes / kFactor <= stored + kAlways / kFactor) return absl::OkStatus();
  const auto largest = std::max_element(source.tensors.begin(), source.tensors.end(),
                                        [](const SourceTensor& a, const SourceTensor& b) { return a.bytes < b.bytes; });
  return Unsupported(absl::StrFormat("%s: its tensors repeat %d bytes to %d, %s alone to %d; that is not gone through", source.place,
                                     stored, source.bytes, format::Quoted(largest->name), largest->bytes));
}

absl::StatusOr<Source> OpenChosen(const Chosen& chosen, const SourceOptions& options) {
  Source source;
  source.notes = chosen.notes;
  if (chosen.step.has_value()) {
    source.place = chosen.step->path;
    NEVE_RETURN_IF_ERROR(OpenStep(*chosen.step, options, &source));
  } else {
    source.place = chosen.path;
    if (const std::optional<format::ShardName> shard = format::ParseShardName(os::BaseName(chosen.path)); shard.has_value()) {
      std::string record = os::JoinPath(os::DirName(chosen.path), format::FormatRecordName(shard->rank, shard->world));
      if (!os::Exists(record)) record.clear();
      NEVE_RETURN_IF_ERROR(OpenImage(chosen.path, record, options, &source));
    } else {
      NEVE_RETURN_IF_ERROR(OpenFile(chosen.path, options, &source));
    }
  }
  NEVE_RETURN_IF_ERROR(ListTensors(&source));
  return source;
}

absl::StatusOr<Source> OpenSource(const std::string& place, const SourceOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const Chosen chosen, Choose(place, options));
  NEVE_ASSIGN_OR_RETURN(Source source, OpenChosen(chosen, options));
  source.place = place;
  return source;
}

}  // namespace neve::engine
