#include "engine/global_compare.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "format/layout.h"

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
      if (!same_size && !comparison.blob) {
        equal_[i] = false;
        continue;
      }
      uint64_t all = 0;
      for (const Comparison::Bytes& copy : comparison.copies) all += copy.bytes;
      if (comparison.copies.front().bytes > kSmallBytes || all > kBatchBytes) {
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
  // The bytes of a copy that count.
  static uint64_t Counted(const Comparison& comparison, const std::byte* bytes, uint64_t all) {
    if (!comparison.blob || all < format::kBlobPrefixBytes) return all;
    uint64_t payload = 0;
    for (size_t i = 0; i < format::kBlobPrefixBytes; ++i) payload |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    return std::min(all - format::kBlobPrefixBytes, payload) + format::kBlobPrefixBytes;
  }

  absl::Status CompareBatch(std::span<const size_t> batch) {
    std::map<std::pair<uint32_t, uint64_t>, std::vector<std::byte>> buffers;   // by image and offset: what two ask for is read once
    for (const size_t index : batch) {
      for (const Comparison::Bytes& copy : comparisons_[index].copies) buffers[{copy.image, copy.offset}].resize(copy.bytes);
    }
    std::vector<std::vector<restore::Range>> ranges(images_.size());
    for (auto& [where, buffer] : buffers) {
      ranges[where.first].push_back({.offset = where.second, .bytes = buffer.size(), .target = buffer.data()});
    }
    for (size_t image = 0; image < ranges.size(); ++image) NEVE_RETURN_IF_ERROR(images_[image]->ReadRanges(ranges[image]));
    for (const size_t index : batch) {
      const Comparison& comparison = comparisons_[index];
      const auto bytes_of = [&](const Comparison::Bytes& copy) {
        const std::vector<std::byte>& buffer = buffers.at({copy.image, copy.offset});
        return std::span(buffer).first(Counted(comparison, buffer.data(), buffer.size()));
      };
      const std::span<const std::byte> first = bytes_of(comparison.copies.front());
      equal_[index] = std::all_of(comparison.copies.begin(), comparison.copies.end(),
                                  [&](const auto& copy) { return std::ranges::equal(bytes_of(copy), first); });
    }
    return absl::OkStatus();
  }

  absl::Status ReadInto(const Comparison::Bytes& copy, uint64_t begin, std::vector<std::byte>* buffer) {
    const restore::Range range{.offset = copy.offset + begin, .bytes = buffer->size(), .target = buffer->data()};
    return images_[copy.image]->ReadRanges({&range, 1});
  }

  absl::Status CompareLarge(size_t index) {
    const Comparison& comparison = comparisons_[index];
    uint64_t counted = comparison.copies.front().bytes;
    if (comparison.blob) {
      for (const Comparison::Bytes& copy : comparison.copies) {
        std::vector<std::byte> prefix(std::min(copy.bytes, format::kBlobPrefixBytes));
        NEVE_RETURN_IF_ERROR(ReadInto(copy, 0, &prefix));
        const uint64_t payload = Counted(comparison, prefix.data(), copy.bytes);
        if (&copy == &comparison.copies.front()) counted = payload;
        if (payload != counted) equal_[index] = false;
      }
    }
    for (size_t i = 1; i < comparison.copies.size() && equal_[index]; ++i) {
      NEVE_ASSIGN_OR_RETURN(const bool same, SameBytes(comparison.copies.front(), comparison.copies[i], counted));
      equal_[index] = same;
    }
    return absl::OkStatus();
  }

  // Where both lie alike in their chunks, the digests of those that they fill are compared and only the ends are read.
  absl::StatusOr<bool> SameBytes(const Comparison::Bytes& a, const Comparison::Bytes& b, uint64_t counted) {
    const format::CommitRecord* record_a = images_[a.image]->record();
    const format::CommitRecord* record_b = images_[b.image]->record();
    const bool alike = record_a != nullptr && record_b != nullptr && record_a->chunk_bytes == record_b->chunk_bytes &&
                       a.offset % record_a->chunk_bytes == b.offset % record_a->chunk_bytes;
    if (!alike) return SameStretch(a, b, 0, counted);
    const uint64_t chunk = record_a->chunk_bytes, lead = (chunk - a.offset % chunk) % chunk;   // bytes before the first whole chunk
    const uint64_t whole = counted < lead ? 0 : (counted - lead) / chunk;
    if (whole == 0) return SameStretch(a, b, 0, counted);
    for (uint64_t i = 0; i < whole; ++i) {
      if (record_a->digests[(a.offset + lead) / chunk + i] != record_b->digests[(b.offset + lead) / chunk + i]) return false;
    }
    NEVE_ASSIGN_OR_RETURN(const bool same_begin, SameStretch(a, b, 0, lead));
    return same_begin ? SameStretch(a, b, lead + whole * chunk, counted) : absl::StatusOr<bool>(false);
  }

  // Bytes [begin, end) of both, read.
  absl::StatusOr<bool> SameStretch(const Comparison::Bytes& a, const Comparison::Bytes& b, uint64_t begin, uint64_t end) {
    std::vector<std::byte> first, second;
    for (; begin < end; begin += first.size()) {
      first.resize(std::min(kStepBytes, end - begin));
      second.resize(first.size());
      NEVE_RETURN_IF_ERROR(ReadInto(a, begin, &first));
      NEVE_RETURN_IF_ERROR(ReadInto(b, begin, &second));
      if (first != second) return false;
    }
    return true;
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
