#include "engine/global_compare.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "engine/global_image.h"
#include "format/layout.h"
#include "tensor/view.h"

namespace neve::engine {
namespace {

using format::Comparison;

constexpr uint64_t kSmallBytes = 64 << 10;    // read together, as many as fit a batch
constexpr uint64_t kBatchBytes = 16 << 20;
constexpr uint64_t kStepBytes = 4 << 20;      // of larger ones, from each rank at a time

class Comparer {
 public:
  Comparer(std::span<const std::unique_ptr<RankFile>> images, std::span<const Comparison> comparisons)
      : images_(images), comparisons_(comparisons), equal_(comparisons.size(), true) {}

  absl::StatusOr<std::vector<bool>> Run() {
    std::vector<size_t> batch;
    uint64_t bytes = 0;
    for (size_t i = 0; i < comparisons_.size(); ++i) {
      const Comparison& comparison = comparisons_[i];
      const bool same_size = std::all_of(comparison.copies.begin(), comparison.copies.end(),
                                         [&](const auto& copy) { return copy.bytes == comparison.copies.front().bytes; });
      if (!same_size && !comparison.blob && !comparison.box) {
        equal_[i] = false;
        continue;
      }
      if (same_size && SameDigests(comparison)) continue;
      uint64_t all = 0;
      for (const Comparison::Bytes& copy : comparison.copies) all += copy.bytes;
      if (comparison.copies.front().bytes > kSmallBytes || all > kBatchBytes || !StoredAlike(comparison)) {
        NEVE_RETURN_IF_ERROR(CompareLarge(i));
        continue;
      }
      if (bytes + all > kBatchBytes) {
        NEVE_RETURN_IF_ERROR(CompareBatch(batch));
        batch.clear();
        bytes = 0;
      }
      batch.push_back(i);
      bytes += all;
    }
    NEVE_RETURN_IF_ERROR(CompareBatch(batch));
    return std::move(equal_);
  }

 private:
  // Whether the copies' bytes are the same where their elements are: a box may be stored with a dimension once, and whole elsewhere.
  static bool StoredAlike(const Comparison& comparison) {
    return std::all_of(comparison.copies.begin(), comparison.copies.end(),
                       [&](const auto& copy) { return copy.expanded == comparison.copies.front().expanded; });
  }

  bool LieAlike(const Comparison::Bytes& a, const Comparison::Bytes& b) const {
    const format::CommitRecord* record_a = images_[a.image]->record();
    const format::CommitRecord* record_b = images_[b.image]->record();
    return record_a != nullptr && record_b != nullptr && record_a->chunk_bytes == record_b->chunk_bytes &&
           a.offset % record_a->chunk_bytes == b.offset % record_a->chunk_bytes;
  }

  bool SameChunk(const Comparison::Bytes& a, const Comparison::Bytes& b, uint64_t begin) const {
    const format::CommitRecord& record_a = *images_[a.image]->record();
    const format::CommitRecord& record_b = *images_[b.image]->record();
    return record_a.digests[(a.offset + begin) / record_a.chunk_bytes] == record_b.digests[(b.offset + begin) / record_b.chunk_bytes];
  }

  // Whether all chunks that the bytes lie in are the same.
  bool SameDigests(const Comparison& comparison) const {
    const Comparison::Bytes& first = comparison.copies.front();
    if (!StoredAlike(comparison) || first.bytes == 0) return first.bytes == 0;
    for (const Comparison::Bytes& copy : comparison.copies) {
      if (&copy == &first) continue;
      if (!LieAlike(first, copy)) return false;
      const uint64_t chunk = images_[first.image]->record()->chunk_bytes;
      const uint64_t last = first.bytes - 1;
      for (uint64_t at = 0; at < last; at += chunk) {
        if (!SameChunk(first, copy, at)) return false;
      }
      if (!SameChunk(first, copy, last)) return false;
    }
    return true;
  }

  // The bytes of a copy that count.
  static uint64_t Counted(const Comparison& comparison, const std::byte* bytes, uint64_t all) {
    if (!comparison.blob || all < format::kBlobPrefixBytes) return all;
    uint64_t payload = 0;
    for (size_t i = 0; i < format::kBlobPrefixBytes; ++i) payload |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    return std::min(all - format::kBlobPrefixBytes, payload) + format::kBlobPrefixBytes;
  }

  struct Buffer {
    std::vector<std::byte> bytes;
    absl::Status status;
  };

  absl::Status CompareBatch(std::span<const size_t> batch) {
    std::map<std::pair<uint32_t, uint64_t>, Buffer> buffers;   // by image and offset: what two ask for is read once
    for (const size_t index : batch) {
      for (const Comparison::Bytes& copy : comparisons_[index].copies) {
        std::vector<std::byte>& bytes = buffers[{copy.image, copy.offset}].bytes;
        bytes.resize(std::max<uint64_t>(bytes.size(), copy.bytes));
      }
    }
    for (auto begin = buffers.begin(); begin != buffers.end();) {
      const auto end = std::find_if(begin, buffers.end(), [&](const auto& one) { return one.first.first != begin->first.first; });
      ReadBuffers(begin, end);
      begin = end;
    }
    for (const size_t index : batch) {
      const Comparison& comparison = comparisons_[index];
      std::optional<std::span<const std::byte>> first;
      for (const Comparison::Bytes& copy : comparison.copies) {
        const Buffer& buffer = buffers.at({copy.image, copy.offset});
        if (!buffer.status.ok() && !comparison.box) return buffer.status;
        if (!buffer.status.ok()) continue;
        const std::span<const std::byte> bytes = std::span(buffer.bytes).first(Counted(comparison, buffer.bytes.data(), copy.bytes));
        if (!first.has_value()) first = bytes;
        if (!std::ranges::equal(bytes, *first)) equal_[index] = false;
      }
    }
    return absl::OkStatus();
  }

  // Of one image, together; where that cannot be, each by itself, so that the error is that of its own bytes.
  template <typename Iterator>
  void ReadBuffers(Iterator begin, Iterator end) {
    std::vector<restore::Range> ranges;
    for (auto it = begin; it != end; ++it) {
      ranges.push_back({.offset = it->first.second, .bytes = it->second.bytes.size(), .target = it->second.bytes.data()});
    }
    RankFile& image = *images_[begin->first.first];
    if (image.ReadRanges(ranges).ok()) return;
    size_t i = 0;
    for (auto it = begin; it != end; ++it) it->second.status = image.ReadRanges({&ranges[i++], 1});
  }

  // Bytes from `begin` on, as they are stored; of a box whose copies are not stored alike, of its elements.
  absl::Status ReadInto(const Comparison& comparison, const Comparison::Bytes& copy, uint64_t begin, std::vector<std::byte>* buffer) {
    if (StoredAlike(comparison)) {
      const restore::Range range{.offset = copy.offset + begin, .bytes = buffer->size(), .target = buffer->data()};
      return images_[copy.image]->ReadRanges({&range, 1});
    }
    format::GlobalEntry entry;
    entry.cut = true;
    entry.dtype = comparison.dtype;
    entry.shape = comparison.extent;
    entry.boxes = tensor::BoxIndex(comparison.extent.size());
    entry.boxes.Add(tensor::Dims(comparison.extent.size(), 0), comparison.extent);
    entry.boxes.Sort();
    entry.copies = {{0, copy.offset, copy.expanded}};
    entry.first_copy = {0, 1};
    const uint64_t item = ItemBytes(comparison.dtype), first = begin / item;
    tensor::Dims strides = tensor::ContiguousStrides(comparison.extent);
    for (int64_t& stride : strides) stride *= static_cast<int64_t>(item);
    std::vector<restore::BoxWant> wants;
    for (tensor::LinearBox& box : tensor::LinearBoxes(comparison.extent, first, buffer->size() / item)) {
      wants.push_back({0, std::move(box.offset), std::move(box.extent), buffer->data() + (box.first - first) * item, strides});
    }
    const std::array<uint32_t, 1> near = {0};
    return ReadBoxes({&entry, 1}, wants, near, [&](uint32_t, std::span<const restore::Range> ranges) {
      return images_[copy.image]->ReadRanges(ranges);
    }, {});
  }

  absl::Status CompareLarge(size_t index) {
    const Comparison& comparison = comparisons_[index];
    uint64_t counted = comparison.copies.front().bytes;
    if (!StoredAlike(comparison)) {
      counted = *tensor::ElementCount(comparison.extent) * ItemBytes(comparison.dtype);
    } else if (comparison.blob) {
      for (const Comparison::Bytes& copy : comparison.copies) {
        std::vector<std::byte> prefix(std::min(copy.bytes, format::kBlobPrefixBytes));
        NEVE_RETURN_IF_ERROR(ReadInto(comparison, copy, 0, &prefix));
        const uint64_t payload = Counted(comparison, prefix.data(), copy.bytes);
        if (&copy == &comparison.copies.front()) counted = payload;
        if (payload != counted) equal_[index] = false;
      }
    }
    std::vector<size_t> same = {0};                // copies that are equal, of which one is compared with the next
    for (size_t i = 1; i < comparison.copies.size() && equal_[index]; ++i) {
      Outcome outcome = Outcome::kFirstLost;
      while (!same.empty()) {
        NEVE_ASSIGN_OR_RETURN(outcome, SameBytes(comparison, comparison.copies[same.front()], comparison.copies[i], counted));
        if (outcome != Outcome::kFirstLost) break;
        same.erase(same.begin());
      }
      if (outcome == Outcome::kDifferent) equal_[index] = false;
      if (outcome != Outcome::kSecondLost) same.push_back(i);
    }
    return absl::OkStatus();
  }

  enum class Outcome { kSame, kDifferent, kFirstLost, kSecondLost };

  // Where both lie alike in their chunks, chunks of one digest are not read.
  absl::StatusOr<Outcome> SameBytes(const Comparison& comparison, const Comparison::Bytes& a, const Comparison::Bytes& b,
                                    uint64_t counted) {
    if (!StoredAlike(comparison) || !LieAlike(a, b)) return SameStretch(comparison, a, b, 0, counted);
    const uint64_t chunk = images_[a.image]->record()->chunk_bytes;
    for (uint64_t begin = 0; begin < counted;) {
      const uint64_t end = std::min(counted, begin + chunk - (a.offset + begin) % chunk);
      const bool same = SameChunk(a, b, begin);
      if (!same && end - begin == chunk) return Outcome::kDifferent;
      if (!same) {
        NEVE_ASSIGN_OR_RETURN(const Outcome outcome, SameStretch(comparison, a, b, begin, end));
        if (outcome != Outcome::kSame) return outcome;
      }
      begin = end;
    }
    return Outcome::kSame;
  }

  // Bytes [begin, end) of both, read.
  absl::StatusOr<Outcome> SameStretch(const Comparison& comparison, const Comparison::Bytes& a, const Comparison::Bytes& b,
                                      uint64_t begin, uint64_t end) {
    std::vector<std::byte> first, second;
    for (; begin < end; begin += first.size()) {
      first.resize(std::min(kStepBytes, end - begin));
      second.resize(first.size());
      const absl::Status read_a = ReadInto(comparison, a, begin, &first);
      if (!read_a.ok() && comparison.box) return Outcome::kFirstLost;
      NEVE_RETURN_IF_ERROR(read_a);
      const absl::Status read_b = ReadInto(comparison, b, begin, &second);
      if (!read_b.ok() && comparison.box) return Outcome::kSecondLost;
      NEVE_RETURN_IF_ERROR(read_b);
      if (first != second) return Outcome::kDifferent;
    }
    return Outcome::kSame;
  }

  const std::span<const std::unique_ptr<RankFile>> images_;
  const std::span<const Comparison> comparisons_;
  std::vector<bool> equal_;
};

}  // namespace

absl::StatusOr<std::vector<bool>> CompareBytes(std::span<const std::unique_ptr<RankFile>> images,
                                               std::span<const Comparison> comparisons) {
  return Comparer(images, comparisons).Run();
}

}  // namespace neve::engine
