// Tensors of an image by name: ordinary ones straight into the caller's memory, those that share or expand memory through
// format's box reader.
#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "format/contents.h"
#include "neve/engine.h"
#include "tensor/view.h"

namespace neve {
namespace {

constexpr uint64_t kPieceBytes = 8u << 20;

// An image that is open already, for what format reads from Contents.
class OpenedContents final : public format::Contents {
 public:
  static absl::StatusOr<std::unique_ptr<OpenedContents>> Of(Image* image) {
    auto contents = std::unique_ptr<OpenedContents>(new OpenedContents(image));
    NEVE_ASSIGN_OR_RETURN(contents->header_, format::ParseImageHeader(image->header(), image->image_bytes()));
    NEVE_ASSIGN_OR_RETURN(contents->tensors_, format::LogicalTensors(contents->header_));
    for (const format::LogicalTensor& tensor : contents->tensors_) {
      uint64_t bytes = ItemBytes(tensor.dtype);
      for (const int64_t extent : tensor.shape) {
        if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
          return Damaged(absl::StrFormat("tensor %s has a shape that no memory can hold", tensor.name));
        }
      }
    }
    return contents;
  }
  format::ContentsKind kind() const override { return format::ContentsKind::kSafetensors; }
  std::span<const std::string> files() const override { return {}; }
  std::string_view header_text() const override { return image_->header(); }
  const format::ImageHeader& header() const override { return header_; }
  uint64_t image_bytes() const override { return image_->image_bytes(); }
  std::span<const format::LogicalTensor> tensors() const override { return tensors_; }
  std::span<const format::OpaqueObject> opaque() const override { return {}; }
  std::span<const std::string> notes() const override { return {}; }
  std::vector<format::Extent> Locate(uint64_t, uint64_t) const override { return {}; }
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override {
    const ReadRange range{.offset = offset, .bytes = target.size(), .target = target.data()};
    return image_->Read({&range, 1});
  }
  absl::Status Check(const std::function<void(uint64_t)>&, std::vector<format::ContentsProblem>*) const override {
    return image_->VerifyAll();
  }
  Image* image() const { return image_; }

 private:
  explicit OpenedContents(Image* image) : image_(image) {}
  Image* const image_;
  format::ImageHeader header_;
  std::vector<format::LogicalTensor> tensors_;
};

bool IsExpanded(const format::LogicalTensor& tensor) {
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.strides[i] == 0 && tensor.shape[i] > 1) return true;
  }
  return false;
}

class ImageTensorsImpl final : public ImageTensors {
 public:
  explicit ImageTensorsImpl(std::unique_ptr<OpenedContents> contents) : contents_(std::move(contents)) {
    for (const format::HeaderTensor& stored : contents_->header().tensors) stored_.emplace(stored.name, &stored);
    for (size_t i = 0; i < contents_->tensors().size(); ++i) by_name_.emplace(contents_->tensors()[i].name, i);
  }
  size_t count() const override { return contents_->tensors().size(); }
  TensorInfo at(size_t index) const override {
    const format::LogicalTensor& tensor = contents_->tensors()[index];
    TensorInfo info{tensor.name, tensor.dtype, tensor.shape, tensor.strides, BytesOf(tensor)};
    if (tensor.piece == nullptr) return info;
    info.piece = true;
    info.global_shape = tensor.piece->global_shape;
    info.offset = tensor.piece->offset;
    info.logical_name = tensor.logical_name();
    return info;
  }
  std::optional<size_t> Find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : std::optional<size_t>(found->second);
  }
  absl::Status Read(std::span<const TensorTarget> targets) const override {
    std::vector<ReadRange> ranges;
    std::vector<const TensorTarget*> boxes;
    std::unordered_set<size_t> taken;   // one read takes each byte of the image once: a tensor asked for twice is read again
    for (const TensorTarget& target : targets) {
      if (target.index >= count()) return Invalid(absl::StrFormat("tensor %d of %d", target.index, count()));
      const format::LogicalTensor& tensor = contents_->tensors()[target.index];
      const uint64_t bytes = BytesOf(tensor);
      if (bytes == 0) continue;
      if (target.data == nullptr) return Invalid(absl::StrFormat("no target for tensor %s", tensor.name));
      if (target.strides != nullptr) {
        NEVE_ASSIGN_OR_RETURN(const tensor::Density density,
                              tensor::Classify(tensor.shape, std::span(target.strides, tensor.shape.size())));
        if (density == tensor::Density::kExpanded || density == tensor::Density::kOverlapping) {
          return Invalid(absl::StrFormat("the strides for tensor %s make elements share memory", tensor.name));
        }
      }
      if (tensor.alias || IsExpanded(tensor) || !taken.insert(target.index).second) {
        boxes.push_back(&target);
        continue;
      }
      ReadRange& range = ranges.emplace_back();
      range.offset = stored_.at(tensor.stored)->offset;
      range.bytes = bytes;
      range.target = target.data;
      if (target.strides == nullptr) continue;
      range.rank = static_cast<int>(tensor.shape.size());
      range.extents = tensor.shape.data();
      range.strides = target.strides;
      range.item_bytes = ItemBytes(tensor.dtype);
    }
    NEVE_RETURN_IF_ERROR(contents_->image()->Read(ranges));
    for (const TensorTarget* target : boxes) NEVE_RETURN_IF_ERROR(ReadBoxes(*target));
    return absl::OkStatus();
  }

 private:
  static uint64_t BytesOf(const format::LogicalTensor& tensor) {
    return std::accumulate(tensor.shape.begin(), tensor.shape.end(), ItemBytes(tensor.dtype),
                           [](uint64_t product, int64_t extent) { return product * static_cast<uint64_t>(extent); });
  }
  // All of a tensor that shares or expands memory. Row-major targets take it at once, others by way of a copy.
  absl::Status ReadBoxes(const TensorTarget& target) const {
    const format::LogicalTensor& tensor = contents_->tensors()[target.index];
    const uint64_t bytes = BytesOf(tensor);
    const tensor::Dims begin(tensor.shape.size(), 0);
    if (target.strides == nullptr) {
      return format::ReadBox(*contents_, tensor, begin, tensor.shape, {static_cast<std::byte*>(target.data), bytes});
    }
    const uint64_t item = ItemBytes(tensor.dtype);
    const tensor::StridedCopy copy(tensor.shape, std::span(target.strides, tensor.shape.size()), item);
    // By slices of the first dimension, so that the copy stays small unless one slice is large.
    const uint64_t rows = tensor.shape.empty() ? 1 : static_cast<uint64_t>(tensor.shape[0]), row_bytes = bytes / rows;
    const uint64_t rows_once = std::max<uint64_t>(1, kPieceBytes / row_bytes);
    std::vector<std::byte> piece(std::min(rows, rows_once) * row_bytes);
    for (uint64_t row = 0; row < rows; row += rows_once) {
      tensor::Dims from = begin, extents = tensor.shape;
      const uint64_t taken = std::min(rows_once, rows - row);
      if (!from.empty()) {
        from[0] = static_cast<int64_t>(row);
        extents[0] = static_cast<int64_t>(taken);
      }
      const std::span<std::byte> part = std::span(piece).first(taken * row_bytes);
      NEVE_RETURN_IF_ERROR(format::ReadBox(*contents_, tensor, from, extents, part));
      copy.Scatter(static_cast<std::byte*>(target.data), row * row_bytes, (row + taken) * row_bytes, part.data());
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<OpenedContents> contents_;
  std::unordered_map<std::string_view, const format::HeaderTensor*> stored_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ImageTensors>> ImageTensors::Of(Image* image) {
  if (image == nullptr) return Invalid("no image");
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<OpenedContents> contents, OpenedContents::Of(image));
  return std::unique_ptr<ImageTensors>(std::make_unique<ImageTensorsImpl>(std::move(contents)));
}

}  // namespace neve
