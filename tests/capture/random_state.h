// States of random structure in memory of their own, and the image that a slow and plain program makes of them.
#ifndef NEVE_TESTS_CAPTURE_RANDOM_STATE_H_
#define NEVE_TESTS_CAPTURE_RANDOM_STATE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture.h"
#include "format/layout.h"
#include "tensor/view.h"

namespace neve::capture {

class State {
 public:
  explicit State(uint64_t arena_bytes) : arena_(arena_bytes) {}

  // A tensor at `offset` of the arena; the arena must hold all of its elements.
  void Add(DType dtype, tensor::Dims shape, tensor::Dims strides, uint64_t offset) {
    format::TensorSpec spec{"t" + std::to_string(tensors_.size()), dtype, std::move(shape), std::move(strides)};
    const uint64_t span = tensor::SpanBytes(spec.shape, spec.strides, ItemBytes(dtype));
    ASSERT_LE(offset + span, arena_.size());
    addresses_.push_back(span == 0 ? nullptr : arena_.data() + offset);
    tensors_.push_back(std::move(spec));
  }
  // A tensor in fresh memory; its offset.
  uint64_t AddStrided(DType dtype, tensor::Dims shape, tensor::Dims strides) {
    const uint64_t begin = (used_ + 15) / 16 * 16;
    used_ = begin + tensor::SpanBytes(shape, strides, ItemBytes(dtype));
    Add(dtype, std::move(shape), std::move(strides), begin);
    return begin;
  }
  uint64_t AddContiguous(DType dtype, tensor::Dims shape) {
    tensor::Dims strides = tensor::ContiguousStrides(shape);
    return AddStrided(dtype, std::move(shape), std::move(strides));
  }
  void AddBlob(std::string payload) { blobs_.push_back(std::move(payload)); }
  void FillArena(std::mt19937_64& random) {
    for (size_t i = 0; i + 8 <= arena_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(arena_.data() + i, &word, 8);
    }
  }
  uint64_t free_bytes() const { return arena_.size() - used_; }
  uint64_t used() const { return used_; }
  std::span<std::byte> arena() { return arena_; }
  size_t size() const { return tensors_.size(); }

  // Call once, after the last tensor and blob.
  void Build() {
    auto structure = std::make_shared<format::Structure>();
    structure->tensors = tensors_;
    structure->blob_count = static_cast<uint32_t>(blobs_.size());
    std::vector<uint64_t> blob_bytes;
    for (const std::string& blob : blobs_) blob_bytes.push_back(blob.size());
    absl::StatusOr<std::shared_ptr<const format::Layout>> layout =
        format::Layout::Build(structure, addresses_, format::GrowCapacities({}, values_.size(), blob_bytes));
    ASSERT_TRUE(layout.ok()) << layout.status();
    layout_ = *layout;
    views_.assign(blobs_.begin(), blobs_.end());
  }
  std::shared_ptr<const format::Layout> layout() const { return layout_; }
  CaptureInput input() const { return {addresses_, values_, views_}; }
  std::vector<const void*>& addresses() { return addresses_; }
  std::string& values() { return values_; }
  std::vector<std::string_view>& views() { return views_; }

  // Element by element, from the specs alone where a tensor is stored by itself.
  std::vector<std::byte> NaiveImage() const {
    std::vector<std::byte> image(layout_->image_bytes());
    EXPECT_TRUE(layout_->WriteHeader(values_, std::span(image).first(layout_->header_bytes())).ok());
    for (const format::StoredTensor& stored : layout_->stored()) {
      std::byte* const target = image.data() + stored.offset;
      if (stored.source == format::StoredTensor::Source::kBlob) {
        const std::string& blob = blobs_[stored.index];
        for (int i = 0; i < 8; ++i) target[i] = static_cast<std::byte>(blob.size() >> (8 * i));
        std::memcpy(target + 8, blob.data(), blob.size());
      } else if (stored.source == format::StoredTensor::Source::kBase) {
        std::memcpy(target, static_cast<const std::byte*>(addresses_[stored.index]) + stored.address_delta, stored.bytes);
      } else if (stored.bytes != 0) {
        uint64_t written = 0;
        NaiveLogical(tensors_[stored.index], 0, static_cast<const std::byte*>(addresses_[stored.index]), target, &written);
        EXPECT_EQ(written, stored.bytes);
      }
    }
    return image;
  }

 private:
  // Elements in row-major order; a dimension of stride 0 gives its one element once.
  static void NaiveLogical(const format::TensorSpec& spec, size_t dimension, const std::byte* source, std::byte* target,
                           uint64_t* written) {
    const uint64_t item = ItemBytes(spec.dtype);
    if (dimension == spec.shape.size()) {
      std::memcpy(target + *written, source, item);
      *written += item;
      return;
    }
    const int64_t extent = spec.strides[dimension] == 0 ? std::min<int64_t>(1, spec.shape[dimension]) : spec.shape[dimension];
    for (int64_t i = 0; i < extent; ++i) {
      NaiveLogical(spec, dimension + 1, source + i * spec.strides[dimension] * static_cast<int64_t>(item), target, written);
    }
  }

  std::vector<std::byte> arena_;
  uint64_t used_ = 0;
  std::vector<format::TensorSpec> tensors_;
  std::vector<const void*> addresses_;
  std::vector<std::string> blobs_;
  std::vector<std::string_view> views_;
  std::string values_ = "[1,0x1.8p+1]";
  std::shared_ptr<const format::Layout> layout_;
};

inline std::unique_ptr<State> RandomState(std::mt19937_64& random) {
  static constexpr DType kTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kF64, DType::kC128, DType::kBool};
  auto state = std::make_unique<State>(uint64_t{3} << 20);
  state->FillArena(random);
  const int count = static_cast<int>(random() % 40);
  for (int i = 0; i < count; ++i) {
    const DType dtype = kTypes[random() % std::size(kTypes)];
    const uint64_t item = ItemBytes(dtype);
    const uint64_t room = (state->free_bytes() - 32) / item;
    const auto extent = [&](uint64_t most) { return static_cast<int64_t>(1 + random() % most); };
    if (room < 200 * 64 * 2) break;
    switch (random() % 8) {
      case 0:   // large, across chunks
        state->AddContiguous(dtype, {extent(std::min<uint64_t>(room, 300'000 / item))});
        break;
      case 1:   // whole pages
        state->AddContiguous(dtype, {static_cast<int64_t>(4096 / item) * extent(8)});
        break;
      case 2:   // a scalar, or nothing at all
        random() % 2 == 0 ? state->AddContiguous(dtype, {}) : state->AddContiguous(dtype, {extent(5), 0, extent(5)});
        break;
      case 3: {   // transposed, alone or with a view that has its bytes as they lie
        const int64_t rows = extent(200), columns = extent(60);
        const uint64_t at = state->AddStrided(dtype, {columns, rows}, {1, columns});
        if (random() % 2 == 0) state->Add(DType::kU8, {rows * columns * static_cast<int64_t>(item)}, {1}, at);
        break;
      }
      case 4: {   // gapped, and at times a stride of 0 beside the gaps
        const int64_t rows = extent(200), columns = extent(30);
        if (random() % 2 == 0) {
          state->AddStrided(dtype, {rows, columns}, {columns + 7, 1});
        } else {
          state->AddStrided(dtype, {rows, extent(4), columns}, {columns + 7, 0, 1});
        }
        break;
      }
      case 5: {   // expanded
        const int64_t columns = extent(100);
        const uint64_t at = state->AddContiguous(dtype, {columns});
        state->Add(dtype, {extent(9), columns}, {0, 1}, at);
        break;
      }
      case 6: {   // a view of an earlier tensor's memory, whole or partial overlap
        const uint64_t items = random() % 2 == 0 ? 64 : 3000;
        if (state->used() < items * item + 16) break;
        const uint64_t at = random() % (state->used() - items * item) / 16 * 16;
        state->Add(dtype, {static_cast<int64_t>(items)}, {1}, at);
        break;
      }
      default:
        state->AddContiguous(dtype, {extent(7), extent(7), extent(7)});
    }
  }
  for (uint64_t blobs = random() % 4; blobs > 0; --blobs) {
    std::string payload(random() % 200'000, '\0');
    for (char& c : payload) c = static_cast<char>(random());
    state->AddBlob(std::move(payload));
  }
  state->Build();
  return state;
}

}  // namespace neve::capture

#endif  // NEVE_TESTS_CAPTURE_RANDOM_STATE_H_
