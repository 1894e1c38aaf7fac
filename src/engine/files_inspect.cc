#include <utility>

#include "engine/files_source.h"
#include "neve/files.h"

namespace neve {
namespace {

WholeSave Whole(const engine::Source& source) {
  const engine::GlobalContents& global = *source.global;
  WholeSave whole;
  whole.header = std::string(global.header_text());
  whole.image_bytes = global.image_bytes();
  if (source.record.has_value()) {
    const format::CommitRecord& record = *source.record;
    whole.info.job = record.job;
    whole.info.uid = record.uid;
    whole.info.step = record.key.step;
    whole.info.save = record.key.save;
    whole.info.time = record.time;
    whole.info.tags = record.tags;
  }
  whole.info.world = static_cast<uint32_t>(global.files().size());
  whole.info.bytes = source.stored_bytes;
  for (size_t i = 0; i < global.header().tensors.size(); ++i) {
    const format::HeaderTensor& tensor = global.header().tensors[i];
    WholeSave::Entry entry{global.BoxesOf(i), global.RanksOf(i)};
    if (const std::vector<format::Extent> at = global.Locate(tensor.offset, tensor.bytes); tensor.bytes > 0 && at.size() == 1) {
      entry.file = at.front().file;
      entry.offset = static_cast<int64_t>(at.front().file_offset);
    }
    whole.entries.push_back(std::move(entry));
  }
  return whole;
}

}  // namespace

absl::StatusOr<PlaceContent> LookInto(const std::string& place, const SourceOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const engine::Chosen chosen, engine::Choose(place, options));
  PlaceContent content;
  content.notes = chosen.notes;
  if (!chosen.step.has_value()) {
    content.path = chosen.path;
    content.files.push_back(chosen.path);
    return content;
  }
  content.save = true;
  content.path = chosen.step->path;
  NEVE_ASSIGN_OR_RETURN(const std::vector<const engine::FoundImage*> images, engine::ImagesOf(*chosen.step, options.rank));
  for (const engine::FoundImage* image : images) content.files.push_back(image->image_path);
  if (images.size() == 1) return content;
  NEVE_ASSIGN_OR_RETURN(const engine::Source source, engine::OpenChosen(chosen, options));
  content.notes = source.notes;
  content.whole = Whole(source);
  return content;
}

}  // namespace neve
