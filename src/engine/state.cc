#include "engine/state.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "device/misdeclared.h"
#include "format/own_digests.h"
#include "format/tree_walk.h"

namespace neve {
namespace {

// At least what the image of a state takes, but for memory that several tensors share and more than they hold.
uint64_t ImageBytesExpected(const format::Structure& structure, const format::Capacities& capacities) {
  constexpr uint64_t kEntryBytes = 256, kMost = uint64_t{1} << 50;
  uint64_t bytes = 2 * kPageBytes + capacities.values_bytes + 2 * structure.tree.size();
  for (const uint64_t blob : capacities.blob_bytes) bytes += blob + kEntryBytes;
  for (const format::TensorSpec& spec : structure.tensors) {
    const absl::StatusOr<uint64_t> count = tensor::ElementCount(spec.shape);
    const uint64_t item = ItemBytes(spec.dtype), span = tensor::SpanBytes(spec.shape, spec.strides, item);
    bytes += 2 * spec.name.size() + kEntryBytes + (count.ok() ? std::min(*count * item, span) : 0);
    if (bytes > kMost) return kMost;   // the layout will say what is wrong with it
  }
  return bytes;
}

// A layout whose header has room for the digests of the file (format/own_digests.h).
absl::StatusOr<std::shared_ptr<const format::Layout>> LayoutWithDigests(const format::Structure& structure,
                                                                        std::span<const void* const> addresses,
                                                                        const format::Capacities& capacities) {
  uint64_t expected = ImageBytesExpected(structure, capacities);
  for (;;) {
    auto with = std::make_shared<format::Structure>(structure);
    const uint64_t room = format::OwnDigestsBytes(expected + format::OwnDigestsBytes(expected));
    with->metadata.emplace_back(format::kDigestsKey, format::OwnDigestsPlaceholder(room));
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<const format::Layout> layout, format::Layout::Build(std::move(with), addresses, capacities));
    if (format::OwnDigestsBytes(layout->image_bytes()) <= room) return layout;
    expected = layout->image_bytes();   // more than expected: what is shared took bytes of its own
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<State>> DescribeState(const TensorTable& tensors, std::string_view tree, uint32_t blob_count) {
  const size_t count = tensors.names.size();
  if (tensors.dtypes.size() != count || tensors.ranks.size() != count) {
    return Invalid(absl::StrFormat("a state needs as many dtypes (%d) and ranks (%d) as names (%d)", tensors.dtypes.size(),
                                   tensors.ranks.size(), count));
  }
  size_t dims = 0;
  for (uint8_t rank : tensors.ranks) dims += rank;
  if (tensors.extents.size() != dims || (!tensors.strides.empty() && tensors.strides.size() != dims)) {
    return Invalid(absl::StrFormat("the ranks ask for %d extents; %d extents and %d strides were given", dims,
                                   tensors.extents.size(), tensors.strides.size()));
  }
  const bool pieces = !tensors.pieces.empty();
  if (pieces && (tensors.pieces.size() != count || tensors.global_extents.size() != dims || tensors.offsets.size() != dims)) {
    return Invalid(absl::StrFormat("pieces need a flag a tensor (%d of %d), and as many global extents (%d) and offsets (%d) as "
                                   "extents (%d)",
                                   tensors.pieces.size(), count, tensors.global_extents.size(), tensors.offsets.size(), dims));
  }
  if (!tensors.logical_names.empty() && (!pieces || tensors.logical_names.size() != count)) {
    return Invalid(absl::StrFormat("%d logical names for %d tensors%s", tensors.logical_names.size(), count,
                                   pieces ? "" : " without pieces"));
  }
  auto structure = std::make_shared<format::Structure>();
  structure->tensors.reserve(count);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    format::TensorSpec spec;
    spec.name = std::string(tensors.names[i]);
    spec.dtype = tensors.dtypes[i];
    if (Name(spec.dtype).empty() || ItemBytes(spec.dtype) == 0) {
      return Invalid(absl::StrFormat("tensor \"%s\": unknown dtype %d", spec.name, static_cast<int>(spec.dtype)));
    }
    const auto shape = tensors.extents.subspan(at, tensors.ranks[i]);
    spec.shape.assign(shape.begin(), shape.end());
    if (tensors.strides.empty()) {
      spec.strides = tensor::ContiguousStrides(shape);
    } else {
      const auto strides = tensors.strides.subspan(at, tensors.ranks[i]);
      spec.strides.assign(strides.begin(), strides.end());
    }
    if (pieces && tensors.pieces[i] != 0) {
      auto piece = std::make_shared<format::Piece>();
      const auto global_shape = tensors.global_extents.subspan(at, tensors.ranks[i]);
      const auto offset = tensors.offsets.subspan(at, tensors.ranks[i]);
      piece->global_shape.assign(global_shape.begin(), global_shape.end());
      piece->offset.assign(offset.begin(), offset.end());
      if (!tensors.logical_names.empty()) piece->logical_name = std::string(tensors.logical_names[i]);
      if (absl::Status status = format::CheckPiece(shape, spec.dtype, *piece); !status.ok()) {
        return Annotate(status, absl::StrFormat("tensor \"%s\"", spec.name));
      }
      spec.piece = std::move(piece);
    }
    at += tensors.ranks[i];
    structure->tensors.push_back(std::move(spec));
  }
  structure->tree = std::string(tree);
  structure->blob_count = blob_count;
  NEVE_RETURN_IF_ERROR(format::CheckRoot(*structure));
  if (!tensors.devices.empty() && tensors.devices.size() != count) {
    return Invalid(absl::StrFormat("%d devices were given for %d tensors", tensors.devices.size(), count));
  }
  return std::make_shared<State>(std::move(structure), std::vector<int32_t>(tensors.devices.begin(), tensors.devices.end()));
}

State::State(std::shared_ptr<const format::Structure> structure, std::vector<int32_t> devices)
    : structure_(std::move(structure)), tensor_devices_(std::move(devices)) {
  const std::set<int32_t> used(tensor_devices_.begin(), tensor_devices_.end());
  std::copy_if(used.begin(), used.end(), std::back_inserter(used_devices_), [](int32_t device) { return device >= 0; });
}

absl::StatusOr<std::shared_ptr<const DevicePlans>> State::DevicePlansFor(const std::shared_ptr<const format::Layout>& layout,
                                                                         std::span<const uint8_t> fenced) {
  if (!fenced.empty() && fenced.size() != tensor_devices_.size()) {
    return Invalid(absl::StrFormat("%d marks of what is fenced were given for %d tensors", fenced.size(), tensor_devices_.size()));
  }
  sync::MutexLock lock(mutex_);
  if (device_plans_ != nullptr && device_plans_->layout == layout && std::ranges::equal(device_plans_->fenced, fenced)) {
    return device_plans_;
  }
  auto plans = std::make_shared<DevicePlans>(
      DevicePlans{layout, {fenced.begin(), fenced.end()}, capture::HostPlan(layout, tensor_devices_), {}});
  for (int32_t device : used_devices_) {
    NEVE_ASSIGN_OR_RETURN(auto plan, capture::DevicePlan::Build(layout, device, tensor_devices_, fenced));
    plans->devices.emplace_back(device, std::move(plan));
  }
  device_plans_ = plans;
  return device_plans_;
}

absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> State::PlanFor(std::span<const void* const> addresses,
                                                                           uint64_t values_bytes,
                                                                           std::span<const uint64_t> blob_bytes) {
  sync::MutexLock lock(mutex_);
  return Plan(addresses, values_bytes, blob_bytes, /*with_digests=*/false, &plan_);
}

absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> State::FilePlanFor(std::span<const void* const> addresses,
                                                                               uint64_t values_bytes,
                                                                               std::span<const uint64_t> blob_bytes) {
  sync::MutexLock lock(mutex_);
  return Plan(addresses, values_bytes, blob_bytes, /*with_digests=*/true, &file_plan_);
}

absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> State::Plan(std::span<const void* const> addresses, uint64_t values_bytes,
                                                                        std::span<const uint64_t> blob_bytes, bool with_digests,
                                                                        std::shared_ptr<const capture::CapturePlan>* last) {
  const format::Capacities* const have = *last == nullptr ? nullptr : &(*last)->layout().capacities();
  bool fits = have != nullptr && values_bytes <= have->values_bytes;
  for (size_t i = 0; fits && i < blob_bytes.size(); ++i) fits = blob_bytes[i] <= have->blob_bytes[i];
  if (fits && (*last)->layout().SameAliases(addresses)) return *last;
  // Once for a structure, as tensors seldom move to another kind of memory.
  for (size_t i = 0; i < addresses.size(); ++i) {
    if ((tensor_devices_.empty() || tensor_devices_[i] < 0) && device::HostCannotRead(addresses[i])) {
      return Invalid(absl::StrFormat("tensor \"%s\" is said to lie in host memory, and its address is memory of a CUDA device: say which "
                                     "device in `devices`",
                                     structure_->tensors[i].name));
    }
  }
  const format::Capacities grown = format::GrowCapacities(capacities_, values_bytes, blob_bytes);
  std::shared_ptr<const format::Layout> layout;
  if (with_digests) {
    NEVE_ASSIGN_OR_RETURN(layout, LayoutWithDigests(*structure_, addresses, grown));
  } else {
    NEVE_ASSIGN_OR_RETURN(layout, format::Layout::Build(structure_, addresses, grown));
  }
  *last = std::make_shared<const capture::CapturePlan>(std::move(layout), kDefaultChunkBytes);
  capacities_ = grown;
  return *last;
}

absl::Status State::Check(std::span<const void* const> addresses, std::string_view values,
                          std::span<const std::string_view> blobs) const {
  if (addresses.size() != structure_->tensors.size()) {
    return Invalid(
        absl::StrFormat("%d addresses were given for a state of %d tensors", addresses.size(), structure_->tensors.size()));
  }
  if (blobs.size() != structure_->blob_count) {
    return Invalid(absl::StrFormat("%d blobs were given for a state of %d", blobs.size(), structure_->blob_count));
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    const tensor::Dims& shape = structure_->tensors[i].shape;
    if (addresses[i] == nullptr && std::find(shape.begin(), shape.end(), 0) == shape.end()) {
      return Invalid(absl::StrFormat("tensor \"%s\" has no address", structure_->tensors[i].name));
    }
  }
  for (char c : values) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e || c == '"' || c == '\\') {
      return Invalid("the values text holds a byte that JSON would escape; write it as docs/format.md says");
    }
  }
  return absl::OkStatus();
}

}  // namespace neve
