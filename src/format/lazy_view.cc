#include "format/lazy_view.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "format/torch_types.h"

namespace neve::format {
namespace {

constexpr uint64_t kBlockBytes = 1u << 20;

// Reads elements of a storage through one block, which rows of a view mostly share.
class ElementReader {
 public:
  ElementReader(const ReadBytes& read, uint64_t end) : read_(read), end_(end) {}

  absl::Status Copy(uint64_t offset, std::span<std::byte> target) {
    if (offset < block_offset_ || offset + target.size() > block_offset_ + block_.size()) {
      block_.resize(std::min(kBlockBytes, end_ - offset));
      block_offset_ = offset;
      NEVE_RETURN_IF_ERROR(read_(offset, block_));
    }
    std::memcpy(target.data(), block_.data() + (offset - block_offset_), target.size());
    return absl::OkStatus();
  }

 private:
  const ReadBytes& read_;
  uint64_t end_;  // of the view
  std::vector<std::byte> block_;
  uint64_t block_offset_ = 0;
};

// Values are little endian here: the sign is the highest bit of the last byte of a word.
void FlipSign(std::byte* word, uint32_t bytes) { word[bytes - 1] ^= std::byte{0x80}; }

void NegateInteger(std::byte* word, uint32_t bytes) {
  unsigned carry = 1;
  for (uint32_t i = 0; i < bytes; ++i) {
    const unsigned value = (~std::to_integer<unsigned>(word[i]) & 255) + carry;
    word[i] = static_cast<std::byte>(value);
    carry = value >> 8;
  }
}

bool IsFloating(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kC32:
    case DType::kC64:
    case DType::kC128:
    case DType::kF8E5M2:
    case DType::kF8E4M3:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status ReadLazyView(const ReadBytes& read, const LazyView& view, uint64_t offset, std::span<std::byte> target) {
  const uint64_t item = ItemBytes(view.dtype);
  const uint32_t word = WordBytes(view.dtype);
  const bool complex = word != item;
  const uint64_t span = tensor::SpanBytes(view.shape, view.strides, item);
  ElementReader elements(read, view.byte_offset + span);
  std::byte element[16];
  while (!target.empty()) {
    uint64_t rest = offset / item, at = view.byte_offset;
    for (size_t dim = view.shape.size(); dim-- > 0;) {
      at += rest % static_cast<uint64_t>(view.shape[dim]) * static_cast<uint64_t>(view.strides[dim]) * item;
      rest /= static_cast<uint64_t>(view.shape[dim]);
    }
    NEVE_RETURN_IF_ERROR(elements.Copy(at, std::span(element, item)));
    if (view.conjugated && complex) FlipSign(element + word, word);
    if (view.negated) {
      for (uint64_t part = 0; part < item; part += word) {
        if (IsFloating(view.dtype)) {
          FlipSign(element + part, word);
        } else {
          NegateInteger(element + part, word);
        }
      }
    }
    const uint64_t within = offset % item, step = std::min<uint64_t>(target.size(), item - within);
    std::memcpy(target.data(), element + within, step);
    target = target.subspan(step);
    offset += step;
  }
  return absl::OkStatus();
}

}  // namespace neve::format
