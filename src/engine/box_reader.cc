// Boxes out of one or several images: what neve::engine::ReadBoxes of global_image.h does.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "engine/global_image.h"
#include "restore/box_plan.h"

namespace neve::engine {

using format::GlobalEntry;

std::vector<GlobalEntry> EntriesOf(const format::ImageHeader& header, std::span<const format::LogicalTensor> tensors) {
  std::vector<GlobalEntry> entries(header.tensors.size());
  const auto set = [&](uint32_t stored, DType dtype, const tensor::Dims& shape, const tensor::Dims& offset, const tensor::Dims& extent,
                       uint64_t expanded) {
    GlobalEntry& entry = entries[stored];
    entry.dtype = dtype;
    entry.shape = shape;
    entry.boxes = tensor::BoxIndex(shape.size());
    entry.boxes.Add(offset, extent);
    entry.boxes.Sort();
    entry.copies = {{0, header.tensors[stored].offset, expanded}};
    entry.first_copy = {0, 1};
  };
  for (const format::LogicalTensor& tensor : tensors) {
    if (tensor.alias) continue;
    const tensor::Dims start(tensor.shape.size(), 0);
    set(tensor.stored_index, tensor.dtype, tensor.piece == nullptr ? tensor.shape : tensor.piece->global_shape,
        tensor.piece == nullptr ? start : tensor.piece->offset, tensor.shape, format::ExpandedDimensions(tensor));
    entries[tensor.stored_index].cut = tensor.piece != nullptr;
  }
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const tensor::Dims bytes = {static_cast<int64_t>(header.tensors[i].bytes)};
    if (entries[i].copies.empty()) set(i, DType::kU8, bytes, {0}, bytes, 0);
  }
  return entries;
}

namespace {

using ReadFn = std::function<absl::Status(uint32_t image, std::span<const restore::Range>)>;

struct Failed {
  const restore::BoxPart* part;
  absl::Status status;
};

// Reads parts of one image. Where some of its bytes are bad the halves are tried by themselves, so that only those parts fail that
// bad bytes belong to. parts: by ascending offset.
void ReadWhatIsGood(const ReadFn& read, std::span<const restore::BoxPart* const> parts, std::vector<Failed>* failed) {
  const absl::Status status = read(parts.front()->image, restore::RangesOf(parts));
  if (status.ok()) return;
  const bool out_of_reach = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  if (parts.size() == 1 || out_of_reach) {
    for (const restore::BoxPart* part : parts) failed->push_back({part, status});
    return;
  }
  ReadWhatIsGood(read, parts.first(parts.size() / 2), failed);
  ReadWhatIsGood(read, parts.subspan(parts.size() / 2), failed);
}

}  // namespace

absl::Status ReadBoxes(std::span<const GlobalEntry> entries, std::span<const restore::BoxWant> wants,
                       std::span<const uint32_t> distances, const ReadFn& read, std::span<uint8_t> written) {
  NEVE_ASSIGN_OR_RETURN(std::vector<restore::BoxPart> parts, restore::PlanBoxes(entries, wants, distances));
  std::vector<const restore::BoxPart*> left;
  for (restore::BoxPart& part : parts) {
    // Who wants the whole of what others hold is one of several who do.
    const restore::BoxWant& want = wants[part.want];
    part.range.shared = distances[part.image] > 0 && want.extent == entries[want.entry].shape;
    left.push_back(&part);
  }
  std::map<const restore::BoxPart*, std::vector<uint32_t>> tried;   // of parts that failed: the distances without what failed
  while (!left.empty()) {
    std::sort(left.begin(), left.end(), [](const restore::BoxPart* a, const restore::BoxPart* b) {
      return a->image != b->image ? a->image < b->image : a->range.offset < b->range.offset;
    });
    if (!written.empty()) {
      for (const restore::BoxPart* part : left) written[part->want] = 1;
    }
    std::vector<Failed> failed;
    for (auto begin = left.begin(); begin != left.end();) {
      const auto end = std::find_if(begin, left.end(), [&](const auto* part) { return part->image != (*begin)->image; });
      ReadWhatIsGood(read, {begin, end}, &failed);
      begin = end;
    }
    left.clear();
    for (const auto& [part, status] : failed) {
      std::vector<uint32_t>& without = tried.try_emplace(part, distances.begin(), distances.end()).first->second;
      without[part->image] = restore::kUnusable;
      auto* again = &parts[static_cast<size_t>(part - parts.data())];
      if (!restore::TakeOtherCopy(entries, wants, without, again).ok()) return status;   // the only copy
      left.push_back(again);
    }
    if (!failed.empty()) {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=replica_unusable parts=%d error=\"%s\"", failed.size(),
                                                     std::string(failed.front().status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace neve::engine
