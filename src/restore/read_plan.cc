#include "restore/read_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"

namespace neve::restore {

absl::StatusOr<ReadPlan> ReadPlan::Build(std::span<const Range> ranges, uint64_t image_bytes, uint64_t chunk_bytes) {
  if (chunk_bytes == 0) return Internal("a read plan needs a chunk size");
  ReadPlan plan;
  plan.image_bytes_ = image_bytes;
  plan.chunk_bytes_ = chunk_bytes;
  plan.ranges_.assign(ranges.begin(), ranges.end());
  std::vector<uint32_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return ranges[a].offset < ranges[b].offset; });
  uint64_t end = 0;
  for (uint32_t index : order) {
    Range& range = plan.ranges_[index];
    if (range.bytes == 0) continue;
    if (range.offset > image_bytes || image_bytes - range.offset < range.bytes) {
      return Damaged(absl::StrFormat("a tensor lies at bytes [%d, %d) of an image of %d bytes", range.offset,
                                     range.offset + range.bytes, image_bytes));
    }
    if (range.offset < end) return Invalid(absl::StrFormat("two ranges read the image byte %d", range.offset));
    end = range.offset + range.bytes;
    if (range.strided != nullptr && range.strided->logical_bytes() != range.bytes) {
      return Invalid(absl::StrFormat("a strided target of %d bytes was given for %d bytes of the image",
                                     range.strided->logical_bytes(), range.bytes));
    }
    if (range.strided != nullptr && (range.offset % range.item_bytes != 0 || chunk_bytes % range.item_bytes != 0)) {
      Staged staged{range, std::make_unique<std::byte[]>(range.bytes)};
      range.target = staged.bytes.get();
      range.strided = nullptr;
      plan.staged_.push_back(std::move(staged));
    }
    uint64_t done = 0;
    while (done < range.bytes) {
      const uint64_t offset = range.offset + done;
      const uint64_t chunk = offset / chunk_bytes;
      const uint64_t bytes = std::min(range.bytes - done, (chunk + 1) * chunk_bytes - offset);
      if (plan.chunks_.empty() || plan.chunks_.back().chunk != chunk) {
        plan.chunks_.push_back(ChunkPlan{chunk, static_cast<uint32_t>(plan.segments_.size()), 0});
      }
      plan.segments_.push_back(Segment{offset, bytes, index, done});
      ++plan.chunks_.back().count;
      done += bytes;
    }
  }
  return plan;
}

void ReadPlan::FinishStaged() const {
  for (const Staged& staged : staged_) {
    staged.original.strided->Scatter(staged.original.target, 0, staged.original.bytes, staged.bytes.get());
  }
}

}  // namespace neve::restore
