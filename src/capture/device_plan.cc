#include "capture/device_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace neve::capture {

using format::StoredTensor;

// Builds one phase after the other.
class DevicePlanBuilder {
 public:
  DevicePlanBuilder(DevicePlan* plan, std::vector<DevicePlan::Piece>* pieces) : plan_(*plan), pieces_(*pieces) {}

  absl::Status Add(uint32_t index) {
    const StoredTensor& tensor = plan_.layout_->stored()[index];
    const DevicePlanOptions& options = plan_.options_;
    plan_.bytes_ += tensor.bytes;
    if (tensor.source == StoredTensor::Source::kTensor && !tensor.contiguous) return AddStrided(index);
    if (tensor.bytes >= options.direct_bytes_min) {
      for (uint64_t from = 0; from < tensor.bytes; from += options.piece_bytes) {
        const uint64_t to = std::min(from + options.piece_bytes, tensor.bytes);
        pieces_.push_back({.kind = DevicePlan::Kind::kDirect, .bytes = to - from, .first = NextPart(), .count = 1});
        plan_.parts_.push_back({index, from, to, 0});
      }
    } else if (tensor.bytes > options.gather_bytes_max) {
      batch_.push_back(index);
    } else {
      gather_.push_back(index);
    }
    return absl::OkStatus();
  }

  void Finish() {
    AddBatches();
    AddWindows();
  }

 private:
  uint32_t NextPart() const { return static_cast<uint32_t>(plan_.parts_.size()); }

  absl::Status AddStrided(uint32_t index) {
    const StoredTensor& tensor = plan_.layout_->stored()[index];
    const format::TensorSpec& spec = plan_.layout_->structure().tensors[tensor.index];
    if (tensor.shape.size() > kernels::kStridedRankMax) {
      return Unsupported(
          absl::StrFormat("tensor \"%s\" is strided in %d dimensions; from a device at most %d can be: make it contiguous",
                          spec.name, tensor.shape.size(), kernels::kStridedRankMax));
    }
    kernels::StridedView view{};
    view.rank = static_cast<uint32_t>(tensor.shape.size());
    view.item_bytes = static_cast<uint32_t>(ItemBytes(spec.dtype));
    for (uint32_t d = 0; d < view.rank; ++d) {
      view.extents[d] = tensor.shape[d];
      view.strides[d] = tensor.strides[d] * view.item_bytes;
    }
    plan_.views_.push_back(view);
    const uint64_t window = plan_.options_.window_bytes / view.item_bytes * view.item_bytes;
    for (uint64_t from = 0; from < tensor.bytes; from += window) {
      const uint64_t to = std::min(from + window, tensor.bytes);
      pieces_.push_back({.kind = DevicePlan::Kind::kStrided,
                         .bytes = to - from,
                         .first = NextPart(),
                         .count = 1,
                         .view = static_cast<int32_t>(plan_.views_.size()) - 1});
      plan_.parts_.push_back({index, from, to, 0});
      plan_.scratch_bytes_ = std::max(plan_.scratch_bytes_, to - from);
    }
    return absl::OkStatus();
  }

  void AddBatches() {
    DevicePlan::Piece piece{.kind = DevicePlan::Kind::kBatch};
    const auto flush = [&] {
      if (piece.count != 0) pieces_.push_back(piece);
      piece = {.kind = DevicePlan::Kind::kBatch, .first = NextPart()};
    };
    flush();
    for (uint32_t index : batch_) {
      const uint64_t bytes = plan_.layout_->stored()[index].bytes;
      if (piece.bytes + bytes > plan_.options_.piece_bytes || piece.count >= plan_.options_.batch_count_max) flush();
      plan_.parts_.push_back({index, 0, bytes, 0});
      piece.bytes += bytes;
      ++piece.count;
    }
    flush();
  }

  // Neighbours in the image stay neighbours in the window, so that they leave it in one copy.
  void AddWindows() {
    constexpr uint64_t kRunAlignment = 16;
    DevicePlan::Piece piece{.kind = DevicePlan::Kind::kGather};
    uint64_t packed = 0;
    const auto flush = [&] {
      if (piece.count != 0) {
        pieces_.push_back(piece);
        plan_.scratch_bytes_ = std::max(plan_.scratch_bytes_, packed);
        plan_.list_items_ += piece.count;
      }
      piece = {.kind = DevicePlan::Kind::kGather, .first = NextPart(), .first_run = static_cast<uint32_t>(plan_.runs_.size())};
      packed = 0;
    };
    flush();
    for (uint32_t index : gather_) {
      const StoredTensor& tensor = plan_.layout_->stored()[index];
      uint64_t at = 0;
      const auto place = [&] {
        const bool follows = piece.run_count != 0 && plan_.runs_.back().image + plan_.runs_.back().bytes == tensor.offset;
        at = follows ? packed : (packed + kRunAlignment - 1) / kRunAlignment * kRunAlignment;
        return follows;
      };
      bool follows = place();
      if (at + tensor.bytes > plan_.options_.window_bytes || piece.count >= plan_.options_.window_items_max) {
        flush();
        follows = place();
      }
      if (follows) {
        plan_.runs_.back().bytes += tensor.bytes;
      } else {
        plan_.runs_.push_back({at, tensor.offset, tensor.bytes});
        ++piece.run_count;
      }
      plan_.parts_.push_back({index, 0, tensor.bytes, static_cast<uint32_t>(at)});
      packed = at + tensor.bytes;
      piece.bytes += tensor.bytes;
      ++piece.count;
    }
    flush();
  }

  DevicePlan& plan_;
  std::vector<DevicePlan::Piece>& pieces_;
  std::vector<uint32_t> batch_, gather_;  // stored tensors, by ascending offset
};

absl::StatusOr<std::shared_ptr<const DevicePlan>> DevicePlan::Build(std::shared_ptr<const format::Layout> layout, int32_t device,
                                                                    std::span<const int32_t> devices,
                                                                    std::span<const uint8_t> fenced,
                                                                    const DevicePlanOptions& options) {
  auto plan = std::make_shared<DevicePlan>();
  plan->layout_ = std::move(layout);
  plan->options_ = options;
  for (size_t phase = 0; phase < plan->phases_.size(); ++phase) {
    DevicePlanBuilder builder(plan.get(), &plan->phases_[phase]);
    const std::span<const StoredTensor> stored = plan->layout_->stored();
    for (uint32_t i = 0; i < stored.size(); ++i) {
      const StoredTensor& tensor = stored[i];
      if (tensor.bytes == 0 || tensor.source == StoredTensor::Source::kBlob || devices[tensor.index] != device) continue;
      const bool rest = fenced.empty() || fenced[tensor.index] != 0;
      if (rest == (phase == 1)) NEVE_RETURN_IF_ERROR(builder.Add(i));
    }
    builder.Finish();
  }
  return plan;
}

kernels::StridedView DevicePlan::view(const Piece& piece, const void* address) const {
  kernels::StridedView view = views_[static_cast<size_t>(piece.view)];
  view.address = reinterpret_cast<uint64_t>(address);
  return view;
}

const std::byte* DevicePlan::AddressOf(const Part& part, std::span<const void* const> addresses) const {
  const StoredTensor& tensor = layout_->stored()[part.stored];
  const auto* base = static_cast<const std::byte*>(addresses[tensor.index]);
  if (tensor.source == StoredTensor::Source::kBase) base += tensor.address_delta;
  return base + part.from;
}

}  // namespace neve::capture
