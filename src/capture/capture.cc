#include "capture/capture.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/check.h"

namespace neve::capture {
namespace {

using format::StoredTensor;

// Less than this is captured by the caller alone: waking a thread costs as much as copying it.
constexpr uint64_t kAloneBytes = 1u << 20;
constexpr uint64_t kItemBytesMax = 16;

// Bytes [begin, end) of a blob tensor: its length, its payload, zeros. `hasher` stands at `target`.
void CaptureBlob(std::string_view payload, uint64_t begin, uint64_t end, std::byte* target, codec::CaptureHasher* hasher) {
  std::array<std::byte, format::kBlobPrefixBytes> prefix;
  for (size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<std::byte>(static_cast<uint64_t>(payload.size()) >> (8 * i) & 0xff);
  }
  uint64_t position = begin;
  if (position < prefix.size()) {
    const uint64_t bytes = std::min<uint64_t>(end, prefix.size()) - position;
    hasher->Copy(prefix.data() + position, bytes);
    position += bytes;
  }
  const uint64_t payload_end = prefix.size() + payload.size();
  if (position < end && position < payload_end) {
    const uint64_t bytes = std::min(end, payload_end) - position;
    hasher->Copy(reinterpret_cast<const std::byte*>(payload.data()) + (position - prefix.size()), bytes);
    position += bytes;
  }
  if (position < end) {
    std::memset(target + (position - begin), 0, end - position);
    hasher->Wrote(end - position);
  }
}

// Logical bytes [begin, end) of a strided tensor. Chunks may cut an element: its part goes by a copy of the whole.
void GatherBytes(const tensor::StridedCopy& copy, const std::byte* base, uint64_t item, uint64_t begin, uint64_t end,
                 std::byte* target) {
  std::array<std::byte, kItemBytesMax> whole;
  if (const uint64_t cut = begin % item; cut != 0) {
    const uint64_t bytes = std::min(item - cut, end - begin);
    copy.Gather(base, begin - cut, begin - cut + item, whole.data());
    std::memcpy(target, whole.data() + cut, bytes);
    begin += bytes;
    target += bytes;
  }
  const uint64_t tail = begin < end ? end % item : 0;
  if (begin < end - tail) copy.Gather(base, begin, end - tail, target);
  if (tail != 0) {
    copy.Gather(base, end - tail, end - tail + item, whole.data());
    std::memcpy(target + (end - tail - begin), whole.data(), tail);
  }
}

}  // namespace

absl::Status CheckInput(const format::Layout& layout, const CaptureInput& input) {
  const format::Structure& structure = layout.structure();
  if (input.addresses.size() != structure.tensors.size()) {
    return Invalid(absl::StrFormat("%d addresses for a structure of %d tensors", input.addresses.size(),
                                   structure.tensors.size()));
  }
  if (input.values.size() > layout.capacities().values_bytes) {
    return Invalid(absl::StrFormat("values of %d bytes do not fit the layout's %d", input.values.size(),
                                   layout.capacities().values_bytes));
  }
  if (input.blobs.size() != structure.blob_count || input.blobs.size() > layout.capacities().blob_bytes.size()) {
    return Invalid(absl::StrFormat("%d blobs for a structure of %d", input.blobs.size(), structure.blob_count));
  }
  for (size_t i = 0; i < input.blobs.size(); ++i) {
    if (input.blobs[i].size() > layout.capacities().blob_bytes[i]) {
      return Invalid(absl::StrFormat("blob %d of %d bytes does not fit the layout's %d", i, input.blobs[i].size(),
                                     layout.capacities().blob_bytes[i]));
    }
  }
  for (const StoredTensor& stored : layout.stored()) {
    if (stored.bytes == 0 || stored.source == StoredTensor::Source::kBlob) continue;
    if (input.addresses[stored.index] == nullptr) {
      return Invalid("tensor '" + structure.tensors[stored.index].name + "' has elements but no address");
    }
  }
  return absl::OkStatus();
}

CapturePlan::CapturePlan(std::shared_ptr<const format::Layout> layout, uint64_t chunk_bytes)
    : layout_(std::move(layout)), chunk_bytes_(chunk_bytes) {
  NEVE_CHECK(chunk_bytes_ != 0);
  const std::span<const StoredTensor> stored = layout_->stored();
  strided_index_.reserve(stored.size());
  uint64_t end = layout_->header_bytes();
  for (const StoredTensor& tensor : stored) {
    // A hole would hand out what an earlier image left in the slot.
    NEVE_CHECK(tensor.offset == end);
    end += tensor.bytes;
    if (tensor.source != StoredTensor::Source::kTensor || tensor.contiguous) {
      strided_index_.push_back(-1);
      continue;
    }
    const uint64_t item = ItemBytes(layout_->structure().tensors[tensor.index].dtype);
    NEVE_CHECK(item <= kItemBytesMax);
    strided_index_.push_back(static_cast<int32_t>(strided_.size()));
    strided_.emplace_back(tensor.shape, tensor.strides, item);
    NEVE_CHECK(strided_.back().logical_bytes() == tensor.bytes);
  }
  NEVE_CHECK(end == layout_->image_bytes());

  first_stored_.reserve(chunk_count());
  uint32_t first = 0;
  for (uint64_t chunk = 0; chunk < chunk_count(); ++chunk) {
    while (first < stored.size() && stored[first].offset + stored[first].bytes <= chunk * chunk_bytes_) ++first;
    first_stored_.push_back(first);
  }
}

uint64_t CapturePlan::chunk_count() const { return (layout_->image_bytes() + chunk_bytes_ - 1) / chunk_bytes_; }

absl::Status CapturePlan::Run(const CaptureInput& input, std::span<std::byte> image, std::span<codec::Digest> digests,
                              sync::Crew& crew) const {
  return RunRange(input, 0, layout_->image_bytes(), image, digests, crew);
}

absl::Status CapturePlan::RunRange(const CaptureInput& input, uint64_t begin, uint64_t end, std::span<std::byte> target,
                                   std::span<codec::Digest> digests, sync::Crew& crew) const {
  if (begin > end || end > layout_->image_bytes() || begin % chunk_bytes_ != 0 ||
      (end % chunk_bytes_ != 0 && end != layout_->image_bytes())) {
    return Invalid(absl::StrFormat("range [%d, %d) is not made of chunks of %d bytes of an image of %d", begin, end,
                                   chunk_bytes_, layout_->image_bytes()));
  }
  const uint64_t first = begin / chunk_bytes_;
  const uint64_t chunks = (end - begin + chunk_bytes_ - 1) / chunk_bytes_;
  if (target.size() < end - begin || digests.size() < chunks) {
    return Invalid(absl::StrFormat("%d bytes and %d digests of room for %d bytes in %d chunks", target.size(),
                                   digests.size(), end - begin, chunks));
  }
  NEVE_RETURN_IF_ERROR(CheckInput(*layout_, input));

  // The header goes in first and whole, on this thread: it may span chunks, and it can still refuse the values.
  const uint64_t header_bytes = layout_->header_bytes();
  if (begin == 0 && end >= header_bytes) {
    NEVE_RETURN_IF_ERROR(layout_->WriteHeader(input.values, target.first(header_bytes)));
  } else if (begin < header_bytes) {
    // Only ranges that cut the header, of states larger than the host's memory, come here and allocate.
    std::vector<std::byte> header(header_bytes);
    NEVE_RETURN_IF_ERROR(layout_->WriteHeader(input.values, header));
    std::memcpy(target.data(), header.data() + begin, std::min(end, header_bytes) - begin);
  }

  auto capture = [&](uint64_t part, int) {
    CaptureChunk(input, first + part, target.data() + part * chunk_bytes_, &digests[part]);
  };
  if (end - begin < kAloneBytes) {
    for (uint64_t part = 0; part < chunks; ++part) capture(part, 0);
  } else {
    crew.Run(chunks, capture);
  }
  return absl::OkStatus();
}

void CapturePlan::CaptureChunk(const CaptureInput& input, uint64_t chunk, std::byte* target, codec::Digest* digest) const {
  const uint64_t begin = chunk * chunk_bytes_;
  const uint64_t end = std::min(begin + chunk_bytes_, layout_->image_bytes());
  codec::CaptureHasher hasher(target, end - begin);
  uint64_t position = begin;
  if (position < layout_->header_bytes()) {
    position = std::min(end, layout_->header_bytes());
    hasher.Wrote(position - begin);   // the caller put it there
  }
  const std::span<const StoredTensor> stored = layout_->stored();
  for (uint32_t i = first_stored_[chunk]; position < end; ++i) {
    const StoredTensor& tensor = stored[i];
    const uint64_t from = position - tensor.offset;
    const uint64_t to = std::min(end - tensor.offset, tensor.bytes);
    if (from == to) continue;   // empty
    std::byte* const place = target + (position - begin);
    if (tensor.source == StoredTensor::Source::kBlob) {
      CaptureBlob(input.blobs[tensor.index], from, to, place, &hasher);
    } else {
      const auto* base = static_cast<const std::byte*>(input.addresses[tensor.index]);
      if (tensor.source == StoredTensor::Source::kBase) base += tensor.address_delta;
      if (strided_index_[i] < 0) {
        hasher.Copy(base + from, to - from);
      } else {
        const uint64_t item = ItemBytes(layout_->structure().tensors[tensor.index].dtype);
        GatherBytes(strided_[strided_index_[i]], base, item, from, to, place);
        hasher.Wrote(to - from);
      }
    }
    position += to - from;
  }
  *digest = hasher.Finish();
}

}  // namespace neve::capture
