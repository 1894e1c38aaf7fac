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

absl::Status ReadBoxes(std::span<const GlobalEntry> entries, std::span<const restore::BoxWant> wants, std::vector<uint32_t> distances,
                       const std::function<absl::Status(uint32_t image, std::span<const restore::Range>)>& read,
                       std::span<uint8_t> written) {
  NEVE_ASSIGN_OR_RETURN(std::vector<restore::BoxPart> parts, restore::PlanBoxes(entries, wants, distances));
  std::vector<const restore::BoxPart*> left;
  for (const restore::BoxPart& part : parts) left.push_back(&part);
  while (!left.empty()) {
    std::map<uint32_t, std::vector<const restore::BoxPart*>> by_image;
    for (const restore::BoxPart* part : left) by_image[part->image].push_back(part);
    std::vector<std::pair<absl::Status, std::vector<const restore::BoxPart*>>> failed;
    for (auto& [image, own] : by_image) {
      for (const restore::BoxPart* part : own) {
        if (!written.empty()) written[part->want] = 1;
      }
      absl::Status status = read(image, restore::RangesOf(own));
      if (status.ok()) continue;
      distances[image] = restore::kUnusable;
      failed.emplace_back(std::move(status), std::move(own));
    }
    left.clear();
    for (auto& [status, own] : failed) {
      for (const restore::BoxPart* part : own) {
        auto* again = &parts[static_cast<size_t>(part - parts.data())];
        if (!restore::TakeOtherCopy(entries, wants, distances, again).ok()) return status;   // the only copy
        left.push_back(again);
      }
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=replica_unusable parts=%d error=\"%s\"", own.size(),
                                                     std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace neve::engine
