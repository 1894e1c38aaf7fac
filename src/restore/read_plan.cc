#include "restore/read_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"

namespace neve::restore {

namespace {

bool LeavesImage(const Range& range, uint64_t image_bytes) {
  return range.offset > image_bytes || image_bytes - range.offset < range.bytes;
}

absl::Status OutsideImage(const Range& range, uint64_t image_bytes) {
  return Damaged(absl::StrFormat("a tensor lies at bytes [%d, %d) of an image of %d bytes", range.offset, range.offset + range.bytes,
                                 image_bytes));
}

}  // namespace

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
    if (range.bytes == 0 || range.box != nullptr) continue;
    if (LeavesImage(range, image_bytes)) return OutsideImage(range, image_bytes);
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
  NEVE_RETURN_IF_ERROR(plan.AddBoxes());
  return plan;
}

// Boxes meet each other and leave chunks out, so their segments are sorted in behind those of the other ranges.
absl::Status ReadPlan::AddBoxes() {
  std::vector<std::pair<uint64_t, Segment>> found;   // with the chunk of each
  for (uint32_t index = 0; index < ranges_.size(); ++index) {
    const Range& range = ranges_[index];
    if (range.box == nullptr) continue;
    if (LeavesImage(range, image_bytes_)) return OutsideImage(range, image_bytes_);
    if (range.box->span_bytes() != range.bytes) return Internal("a box whose span is not its range");
    for (uint64_t done = 0; done < range.bytes;) {
      const uint64_t offset = range.offset + done, chunk = offset / chunk_bytes_;
      const uint64_t bytes = std::min(range.bytes - done, (chunk + 1) * chunk_bytes_ - offset);
      if (range.box->BytesIn(done, done + bytes) > 0) found.emplace_back(chunk, Segment{offset, bytes, index, done});
      done += bytes;
    }
  }
  if (found.empty()) return absl::OkStatus();
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ChunkPlan> chunks;
  std::vector<Segment> segments;
  segments.reserve(segments_.size() + found.size());
  auto box = found.begin();
  auto plain = chunks_.begin();
  while (box != found.end() || plain != chunks_.end()) {
    const uint64_t next_box = box == found.end() ? UINT64_MAX : box->first;
    const uint64_t chunk = plain == chunks_.end() ? next_box : std::min(next_box, plain->chunk);
    ChunkPlan merged{chunk, static_cast<uint32_t>(segments.size()), 0};
    if (plain != chunks_.end() && plain->chunk == chunk) {
      const std::span<const Segment> own = SegmentsOf(*plain++);
      segments.insert(segments.end(), own.begin(), own.end());
    }
    for (; box != found.end() && box->first == chunk; ++box) segments.push_back(box->second);
    merged.count = static_cast<uint32_t>(segments.size()) - merged.first;
    chunks.push_back(merged);
  }
  chunks_ = std::move(chunks);
  segments_ = std::move(segments);
  return absl::OkStatus();
}

void ReadPlan::FinishStaged() const {
  for (const Staged& staged : staged_) {
    staged.original.strided->Scatter(staged.original.target, 0, staged.original.bytes, staged.bytes.get());
  }
}

}  // namespace neve::restore
