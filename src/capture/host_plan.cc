#include "capture/host_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error/check.h"

namespace neve::capture {
namespace {

using format::StoredTensor;

constexpr uint64_t kShareBytes = uint64_t{4} << 20;
constexpr uint64_t kAloneBytes = uint64_t{1} << 20;  // less is copied by the caller alone

// Bytes [begin, end) of a blob tensor: its length, its payload, zeros.
void PutBlob(std::string_view payload, uint64_t begin, uint64_t end, std::byte* target) {
  std::array<std::byte, format::kBlobPrefixBytes> prefix;
  for (size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<std::byte>(static_cast<uint64_t>(payload.size()) >> (8 * i) & 0xff);
  }
  std::memset(target, 0, end - begin);
  const auto put = [&](const void* bytes, uint64_t at, uint64_t size) {
    const uint64_t from = std::max(begin, at), to = std::min(end, at + size);
    if (from < to) std::memcpy(target + (from - begin), static_cast<const char*>(bytes) + (from - at), to - from);
  };
  put(prefix.data(), 0, prefix.size());
  put(payload.data(), prefix.size(), payload.size());
}

}  // namespace

HostPlan::HostPlan(std::shared_ptr<const format::Layout> layout, std::span<const int32_t> devices) : layout_(std::move(layout)) {
  const std::span<const StoredTensor> stored = layout_->stored();
  uint64_t share = kShareBytes;
  for (uint32_t i = 0; i < stored.size(); ++i) {
    const StoredTensor& tensor = stored[i];
    if (tensor.bytes == 0 || (tensor.source != StoredTensor::Source::kBlob && devices[tensor.index] >= 0)) continue;
    int32_t strided = -1;
    if (tensor.source == StoredTensor::Source::kTensor && !tensor.contiguous) {
      strided = static_cast<int32_t>(strided_.size());
      strided_.emplace_back(tensor.shape, tensor.strides, ItemBytes(layout_->structure().tensors[tensor.index].dtype));
    }
    for (uint64_t from = 0; from < tensor.bytes; from += kShareBytes) {
      const uint64_t to = std::min(from + kShareBytes, tensor.bytes);
      if (share + (to - from) > kShareBytes) {
        groups_.push_back(static_cast<uint32_t>(parts_.size()));
        share = 0;
      }
      parts_.push_back({i, strided, from, to});
      share += to - from;
      bytes_ += to - from;
    }
  }
  groups_.push_back(static_cast<uint32_t>(parts_.size()));
}

absl::Status HostPlan::WriteHeader(const CaptureInput& input, std::span<std::byte> image) const {
  NEVE_RETURN_IF_ERROR(CheckInput(*layout_, input));
  return layout_->WriteHeader(input.values, image.first(layout_->header_bytes()));
}

void HostPlan::Copy(const Part& part, const CaptureInput& input, std::byte* image) const {
  const StoredTensor& tensor = layout_->stored()[part.stored];
  std::byte* const target = image + tensor.offset + part.from;
  if (tensor.source == StoredTensor::Source::kBlob) {
    PutBlob(input.blobs[tensor.index], part.from, part.to, target);
    return;
  }
  const auto* base = static_cast<const std::byte*>(input.addresses[tensor.index]);
  if (tensor.source == StoredTensor::Source::kBase) base += tensor.address_delta;
  if (part.strided >= 0) {
    strided_[static_cast<size_t>(part.strided)].Gather(base, part.from, part.to, target);
  } else {
    codec::StreamCopy(target, base + part.from, part.to - part.from);
  }
}

void HostPlan::Run(const CaptureInput& input, std::span<std::byte> image, sync::Crew& crew) const {
  auto share = [&](uint64_t group, int) {
    for (uint32_t i = groups_[group]; i < groups_[group + 1]; ++i) Copy(parts_[i], input, image.data());
  };
  const uint64_t groups = groups_.size() - 1;
  if (bytes_ < kAloneBytes) {
    for (uint64_t group = 0; group < groups; ++group) share(group, 0);
  } else {
    crew.Run(groups, share);
  }
}

}  // namespace neve::capture
