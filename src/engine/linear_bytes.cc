#include "engine/linear_bytes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensor/view.h"

namespace neve::engine {

LinearBytes::LinearBytes(const format::GlobalImage* global) : global_(global), by_offset_(global->entries.size()) {
  std::iota(by_offset_.begin(), by_offset_.end(), 0u);
  std::sort(by_offset_.begin(), by_offset_.end(), [this](uint32_t a, uint32_t b) {
    const auto& tensors = global_->header.tensors;
    return tensors[a].offset != tensors[b].offset ? tensors[a].offset < tensors[b].offset : tensors[a].bytes < tensors[b].bytes;
  });
}

size_t LinearBytes::EntryAt(uint64_t offset) const {
  const auto after = std::upper_bound(by_offset_.begin(), by_offset_.end(), offset, [this](uint64_t at, uint32_t entry) {
    return at < global_->header.tensors[entry].offset;
  });
  return *std::prev(after);   // of those that begin there, empty ones stand first
}

absl::Status LinearBytes::Add(uint64_t offset, std::span<std::byte> target, const ReadNow& read_now,
                              std::vector<restore::BoxWant>* wants) const {
  if (const uint64_t header = global_->header_text.size(); offset < header) {
    const uint64_t bytes = std::min<uint64_t>(target.size(), header - offset);
    std::memcpy(target.data(), global_->header_text.data() + offset, bytes);
    offset += bytes;
    target = target.subspan(bytes);
  }
  while (!target.empty()) {
    const size_t index = EntryAt(offset);
    const format::HeaderTensor& tensor = global_->header.tensors[index];
    const format::GlobalEntry& entry = global_->entries[index];
    const uint64_t item = ItemBytes(entry.dtype), begin = offset - tensor.offset;
    const uint64_t bytes = std::min<uint64_t>(target.size(), tensor.bytes - begin);
    if (begin % item != 0 || bytes < item) {
      std::array<std::byte, 16> one;
      std::vector<restore::BoxWant> cut;
      AddElements(index, begin / item, 1, one.data(), &cut);
      NEVE_RETURN_IF_ERROR(read_now(cut));
      const uint64_t taken = std::min(bytes, item - begin % item);
      std::memcpy(target.data(), one.data() + begin % item, taken);
      offset += taken;
      target = target.subspan(taken);
      continue;
    }
    AddElements(index, begin / item, bytes / item, target.data(), wants);
    offset += bytes / item * item;
    target = target.subspan(bytes / item * item);
  }
  return absl::OkStatus();
}

// Elements as they are stored.
void LinearBytes::AddElements(size_t index, uint64_t first, uint64_t count, std::byte* target,
                              std::vector<restore::BoxWant>* wants) const {
  const format::GlobalEntry& entry = global_->entries[index];
  const int64_t item = static_cast<int64_t>(ItemBytes(entry.dtype));
  const tensor::Dims shape = StoredShape(entry);
  tensor::Dims strides = tensor::ContiguousStrides(shape);
  for (int64_t& stride : strides) stride *= item;
  for (tensor::LinearBox& box : tensor::LinearBoxes(shape, first, count)) {
    wants->push_back({index, std::move(box.offset), std::move(box.extent), target + (box.first - first) * static_cast<uint64_t>(item),
                      strides});
  }
}

tensor::Dims LinearBytes::StoredShape(const format::GlobalEntry& entry) {
  tensor::Dims shape = entry.shape;
  if (entry.cut || entry.copies.empty()) return shape;   // a logical tensor is whole, whatever its pieces were
  for (size_t i = 0; i < shape.size() && i < 64; ++i) {
    if ((entry.copies.front().expanded >> i & 1) != 0) shape[i] = 1;
  }
  return shape;
}

}  // namespace neve::engine
