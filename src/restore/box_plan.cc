#include "restore/box_plan.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_format.h"

namespace neve::restore {
namespace {

using format::GlobalCopy;
using format::GlobalEntry;

// The nearest usable copy; of equals the one whose turn it is.
absl::StatusOr<uint32_t> ChooseCopy(std::span<const GlobalCopy> copies, std::span<const uint32_t> distances, uint64_t turn) {
  uint32_t nearest = kUnusable;
  for (const GlobalCopy& copy : copies) nearest = std::min(nearest, distances[copy.image]);
  if (nearest == kUnusable) return NotFound("no usable copy is left");
  uint32_t equals = 0;
  for (const GlobalCopy& copy : copies) equals += distances[copy.image] == nearest ? 1 : 0;
  uint64_t wanted = turn % equals;
  for (uint32_t i = 0; i < copies.size(); ++i) {
    if (distances[copies[i].image] == nearest && wanted-- == 0) return i;
  }
  return Internal("a copy was counted and not found");
}

// The part of a wanted box that lies in one box of the entry, from one copy of that.
void SetRange(const GlobalEntry& entry, const BoxWant& want, BoxPart* part) {
  const GlobalCopy& copy = entry.CopiesOf(part->box)[part->copy];
  part->image = copy.image;
  const std::span<const int64_t> box_offset = entry.boxes.offset(part->box), box_extent = entry.boxes.extent(part->box);
  tensor::Dims offset, extent;
  tensor::Intersect(box_offset, box_extent, want.offset, want.extent, &offset, &extent);
  const uint64_t item = ItemBytes(entry.dtype);
  tensor::Dims source(offset.size());
  int64_t stride = static_cast<int64_t>(item), from = 0, to = 0;
  for (size_t i = offset.size(); i-- > 0;) {
    const bool once = (copy.expanded >> i & 1) != 0;
    source[i] = once ? 0 : stride;
    if (!once) stride *= box_extent[i];
    from += (offset[i] - box_offset[i]) * source[i];
    to += (offset[i] - want.offset[i]) * want.strides[i];
  }
  auto box = std::make_shared<const tensor::BoxCopy>(extent, source, want.strides, item);
  part->range = {.offset = copy.offset + static_cast<uint64_t>(from), .bytes = box->span_bytes(), .target = want.target + to,
                 .box = box->contiguous() ? nullptr : std::move(box)};
}

}  // namespace

absl::StatusOr<std::vector<BoxPart>> PlanBoxes(std::span<const GlobalEntry> entries, std::span<const BoxWant> wants,
                                               std::span<const uint32_t> distances) {
  std::vector<BoxPart> parts;
  parts.reserve(wants.size());
  tensor::Dims offset, extent;
  for (uint32_t w = 0; w < wants.size(); ++w) {
    const BoxWant& want = wants[w];
    const GlobalEntry& entry = entries[want.entry];
    uint64_t found = 0;
    absl::Status status;
    entry.boxes.ForEachMeeting(want.offset, want.extent, [&](size_t box) {
      tensor::Intersect(entry.boxes.offset(box), entry.boxes.extent(box), want.offset, want.extent, &offset, &extent);
      found += *tensor::ElementCount(extent);
      const absl::StatusOr<uint32_t> copy = ChooseCopy(entry.CopiesOf(box), distances, want.entry + box);
      status = copy.status();
      if (!status.ok()) return false;
      BoxPart& part = parts.emplace_back(BoxPart{w, static_cast<uint32_t>(box), *copy, 0, {}});
      SetRange(entry, want, &part);
      return true;
    });
    NEVE_RETURN_IF_ERROR(status);
    const absl::StatusOr<uint64_t> all = tensor::ElementCount(want.extent);
    if (!all.ok() || found != *all) return Internal(absl::StrFormat("a wanted box has elements that no box of its tensor holds"));
  }
  return parts;
}

absl::Status TakeOtherCopy(std::span<const GlobalEntry> entries, std::span<const BoxWant> wants, std::span<const uint32_t> distances,
                           BoxPart* part) {
  const BoxWant& want = wants[part->want];
  const GlobalEntry& entry = entries[want.entry];
  NEVE_ASSIGN_OR_RETURN(part->copy, ChooseCopy(entry.CopiesOf(part->box), distances, want.entry + part->box));
  SetRange(entry, want, part);
  return absl::OkStatus();
}

std::vector<Range> RangesOf(std::span<const BoxPart* const> parts) {
  std::vector<Range> ranges;
  ranges.reserve(parts.size());
  for (const BoxPart* part : parts) ranges.push_back(part->range);
  std::vector<uint32_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return ranges[a].offset < ranges[b].offset; });
  uint64_t end = 0;
  for (const uint32_t index : order) {
    Range& range = ranges[index];
    if (range.box != nullptr) continue;
    if (range.offset < end) {
      range.box = std::make_shared<const tensor::BoxCopy>(tensor::Dims(), tensor::Dims(), tensor::Dims(), range.bytes);
    } else {
      end = range.offset + range.bytes;
    }
  }
  return ranges;
}

}  // namespace neve::restore
