#include "format/summed_source.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

constexpr uint64_t kBlockBytes = 1u << 20;   // stays in the cache between the read and the sum

}  // namespace

SummedSource::SummedSource(std::shared_ptr<const ByteSource> source, std::vector<SummedRange> ranges)
    : source_(std::move(source)), ranges_(std::move(ranges)), states_(ranges_.size()) {
  std::sort(ranges_.begin(), ranges_.end(), [](const SummedRange& a, const SummedRange& b) { return a.offset < b.offset; });
}

absl::Status SummedSource::Read(uint64_t offset, std::span<std::byte> target) const {
  NEVE_RETURN_IF_ERROR(source_->Read(offset, target));
  const uint64_t end = offset + target.size();
  auto at = std::upper_bound(ranges_.begin(), ranges_.end(), offset,
                             [](uint64_t first, const SummedRange& range) { return first < range.offset + range.bytes; });
  for (; at != ranges_.end() && at->offset < end; ++at) {
    const uint64_t first = std::max(at->offset, offset), last = std::min(at->offset + at->bytes, end);
    NEVE_RETURN_IF_ERROR(Add(static_cast<size_t>(at - ranges_.begin()), first, target.subspan(first - offset, last - first)));
  }
  return absl::OkStatus();
}

absl::Status SummedSource::Add(size_t index, uint64_t offset, std::span<const std::byte> bytes) const {
  switch (states_[index].load(std::memory_order_acquire)) {
    case kGood: return absl::OkStatus();
    case kBad: return Differs(index);
    default: break;
  }
  if (bytes.size() == ranges_[index].bytes) return Compare(index, codec::Crc32(0, bytes));
  return AddPart(index, offset, bytes);
}

absl::Status SummedSource::AddPart(size_t index, uint64_t offset, std::span<const std::byte> bytes) const {
  const SummedRange& range = ranges_[index];
  const uint64_t end = offset + bytes.size();
  uint64_t at = offset;   // all before it is known
  while (at < end) {
    uint64_t gap_end = end;
    {
      sync::MutexLock lock(mutex_);
      const Parts& parts = parts_[index];
      const auto next = parts.upper_bound(at);
      if (next != parts.begin()) {
        const auto& [known, part] = *std::prev(next);
        if (known + part.bytes > at) {
          at = known + part.bytes;
          continue;
        }
      }
      if (next != parts.end()) gap_end = std::min(end, next->first);
    }
    Part part{gap_end - at, codec::Crc32(0, bytes.subspan(at - offset, gap_end - at))};
    sync::MutexLock lock(mutex_);
    if (states_[index].load(std::memory_order_acquire) >= kGood) break;   // another thread completed it
    Parts& parts = parts_[index];
    auto next = parts.lower_bound(at);
    const bool taken = (next != parts.end() && next->first < gap_end) ||
                       (next != parts.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at);
    if (taken) continue;   // another thread read some of the same: look again
    uint8_t unread = kUnread;
    states_[index].compare_exchange_strong(unread, kPart);
    const uint64_t begin = at;
    at = gap_end;
    if (next != parts.end() && next->first == gap_end) {
      part = {part.bytes + next->second.bytes, codec::Crc32Combine(part.crc, next->second.crc, next->second.bytes)};
      next = parts.erase(next);
    }
    uint64_t known = begin;
    if (next != parts.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes == begin) {
        part = {before->second.bytes + part.bytes, codec::Crc32Combine(before->second.crc, part.crc, part.bytes)};
        known = before->first;
        parts.erase(before);
      }
    }
    if (known > range.used_offset || known + part.bytes < range.used_offset + range.used_bytes) {
      parts.emplace(known, part);
      continue;
    }
    parts_.erase(index);
    return Finish(index, known, part);
  }
  return states_[index].load(std::memory_order_acquire) == kBad ? Differs(index) : absl::OkStatus();
}

// All that is used was read and is this part: what else the range has is read for its sum.
absl::Status SummedSource::Finish(size_t index, uint64_t offset, Part part) const {
  const SummedRange& range = ranges_[index];
  uint32_t crc = 0;
  NEVE_RETURN_IF_ERROR(SumSource(range.offset, offset - range.offset, &crc));
  crc = codec::Crc32Combine(crc, part.crc, part.bytes);
  const uint64_t end = offset + part.bytes;
  NEVE_RETURN_IF_ERROR(SumSource(end, range.offset + range.bytes - end, &crc));
  return Compare(index, crc);
}

absl::Status SummedSource::SumSource(uint64_t offset, uint64_t bytes, uint32_t* crc) const {
  std::vector<std::byte> block(std::min(kBlockBytes, bytes));
  for (uint64_t done = 0; done < bytes; done += kBlockBytes) {
    const std::span<std::byte> part = std::span(block).first(std::min(kBlockBytes, bytes - done));
    NEVE_RETURN_IF_ERROR(source_->Read(offset + done, part));
    *crc = codec::Crc32(*crc, part);
  }
  return absl::OkStatus();
}

absl::Status SummedSource::Compare(size_t index, uint32_t crc) const {
  const bool good = crc == ranges_[index].crc;
  states_[index].store(good ? kGood : kBad, std::memory_order_release);
  return good ? absl::OkStatus() : Differs(index);
}

absl::Status SummedSource::Differs(size_t index) const {
  return DataLoss(absl::StrFormat("%s: the bytes of tensor %s differ from their checksum (CRC-32 %08x wanted)", name(),
                                  Quoted(ranges_[index].name), ranges_[index].crc));
}

absl::Status SummedSource::CheckRead() const {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const uint8_t state = states_[i].load(std::memory_order_acquire);
    if (state == kBad) return Differs(i);
    if (state != kPart) continue;
    uint32_t crc = 0;
    NEVE_RETURN_IF_ERROR(SumSource(ranges_[i].offset, ranges_[i].bytes, &crc));
    NEVE_RETURN_IF_ERROR(Compare(i, crc));
  }
  return absl::OkStatus();
}

}  // namespace neve::format
