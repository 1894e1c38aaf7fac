// Tensors of an image by name: ordinary ones straight into the caller's memory, those that share or expand memory through
// format's box reader.
#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "engine/opened_image.h"
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
  ImageTensorsImpl(std::unique_ptr<OpenedContents> contents, OpenedImage* image) : contents_(std::move(contents)), image_(image) {
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
    for (const TensorTarget* target : boxes) {
      const format::LogicalTensor& tensor = contents_->tensors()[target->index];
      NEVE_RETURN_IF_ERROR(ReadByCopy(tensor, tensor::Dims(tensor.shape.size(), 0), tensor.shape, target->data, target->strides));
    }
    return absl::OkStatus();
  }

  absl::Status ReadBoxes(std::span<const BoxTarget> boxes, std::span<uint8_t> written) const override {
    if (!written.empty() && written.size() != boxes.size()) return Invalid("`written` needs one byte per box");
    std::vector<restore::BoxWant> wants;
    std::vector<size_t> of_box, copied;   // of each want its box; boxes that share memory in the image
    for (size_t i = 0; i < boxes.size(); ++i) {
      const BoxTarget& box = boxes[i];
      NEVE_ASSIGN_OR_RETURN(const bool empty, CheckBox(box));
      if (empty) continue;
      const format::LogicalTensor& tensor = contents_->tensors()[box.index];
      if (tensor.alias) {
        copied.push_back(i);
        continue;
      }
      const size_t rank = tensor.shape.size();
      restore::BoxWant want{tensor.stored_index, {box.offset, box.offset + rank}, {box.extent, box.extent + rank},
                            static_cast<std::byte*>(box.data), {}};
      want.strides = box.strides == nullptr ? tensor::ContiguousStrides(want.extent) : tensor::Dims(box.strides, box.strides + rank);
      for (int64_t& stride : want.strides) stride *= static_cast<int64_t>(ItemBytes(tensor.dtype));
      wants.push_back(std::move(want));
      of_box.push_back(i);
    }
    std::vector<uint8_t> touched(wants.size());
    const absl::Status status = image_->ReadWants(wants, touched);
    for (size_t i = 0; i < wants.size() && !written.empty(); ++i) written[of_box[i]] = touched[i];
    NEVE_RETURN_IF_ERROR(status);
    for (const size_t i : copied) {
      const format::LogicalTensor& tensor = contents_->tensors()[boxes[i].index];
      const size_t rank = tensor.shape.size();
      if (!written.empty()) written[i] = 1;
      NEVE_RETURN_IF_ERROR(ReadByCopy(tensor, {boxes[i].offset, boxes[i].offset + rank}, {boxes[i].extent, boxes[i].extent + rank},
                                      boxes[i].data, boxes[i].strides));
    }
    return absl::OkStatus();
  }

 private:
  static uint64_t BytesOf(const format::LogicalTensor& tensor) {
    return std::accumulate(tensor.shape.begin(), tensor.shape.end(), ItemBytes(tensor.dtype),
                           [](uint64_t product, int64_t extent) { return product * static_cast<uint64_t>(extent); });
  }
  // Whether the box has no elements. Invalid: it cannot be read.
  absl::StatusOr<bool> CheckBox(const BoxTarget& box) const {
    if (box.index >= count()) return Invalid(absl::StrFormat("tensor %d of %d", box.index, count()));
    const format::LogicalTensor& tensor = contents_->tensors()[box.index];
    const size_t rank = tensor.shape.size();
    if (rank > 0 && (box.offset == nullptr || box.extent == nullptr)) return Invalid("a box needs its offset and extent");
    const std::span offset(box.offset, rank), extent(box.extent, rank);
    const tensor::Dims start(rank, 0);
    const std::span<const int64_t> held = tensor.piece == nullptr ? std::span<const int64_t>(start) : tensor.piece->offset;
    for (size_t i = 0; i < rank; ++i) {
      // As differences: hostile numbers must not overflow.
      const bool inside = extent[i] >= 0 && offset[i] >= held[i] && offset[i] - held[i] <= tensor.shape[i] &&
                          extent[i] <= tensor.shape[i] - (offset[i] - held[i]);
      if (!inside && extent[i] != 0) {
        return Invalid(absl::StrFormat("the box %s of %s does not lie in the %s that this image holds%s", format::BoxText(offset, extent),
                                       tensor.logical_name(), format::BoxText(held, tensor.shape),
                                       tensor.piece == nullptr ? "" : "; the global image of the save has all of it"));
      }
    }
    if (tensor::IsEmptyBox(extent)) return true;
    if (box.data == nullptr) return Invalid(absl::StrFormat("no target for a box of tensor %s", tensor.name));
    if (box.strides == nullptr) return false;
    NEVE_ASSIGN_OR_RETURN(const tensor::Density density, tensor::Classify(extent, std::span(box.strides, rank)));
    if (density == tensor::Density::kExpanded || density == tensor::Density::kOverlapping) {
      return Invalid(absl::StrFormat("the strides for a box of tensor %s make elements share memory", tensor.name));
    }
    return false;
  }

  // A box of a tensor that shares or expands memory. Row-major targets take it at once, others by way of a copy.
  absl::Status ReadByCopy(const format::LogicalTensor& tensor, const tensor::Dims& begin, const tensor::Dims& shape, void* target,
                          const int64_t* strides) const {
    const uint64_t item = ItemBytes(tensor.dtype), bytes = *tensor::ElementCount(shape) * item;
    if (strides == nullptr) return format::ReadBox(*contents_, tensor, begin, shape, {static_cast<std::byte*>(target), bytes});
    const tensor::StridedCopy copy(shape, std::span(strides, shape.size()), item);
    // By slices of the first dimension, so that the copy stays small unless one slice is large.
    const uint64_t rows = shape.empty() ? 1 : static_cast<uint64_t>(shape[0]), row_bytes = bytes / rows;
    const uint64_t rows_once = std::max<uint64_t>(1, kPieceBytes / row_bytes);
    std::vector<std::byte> piece(std::min(rows, rows_once) * row_bytes);
    for (uint64_t row = 0; row < rows; row += rows_once) {
      tensor::Dims from = begin, extents = shape;
      const uint64_t taken = std::min(rows_once, rows - row);
      if (!from.empty()) {
        from[0] += static_cast<int64_t>(row);
        extents[0] = static_cast<int64_t>(taken);
      }
      const std::span<std::byte> part = std::span(piece).first(taken * row_bytes);
      NEVE_RETURN_IF_ERROR(format::ReadBox(*contents_, tensor, from, extents, part));
      copy.Scatter(static_cast<std::byte*>(target), row * row_bytes, (row + taken) * row_bytes, part.data());
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<OpenedContents> contents_;
  OpenedImage* const image_;
  std::unordered_map<std::string_view, const format::HeaderTensor*> stored_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ImageTensors>> ImageTensors::Of(Image* image) {
  if (image == nullptr) return Invalid("no image");
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<OpenedContents> contents, OpenedContents::Of(image));
  auto* opened = dynamic_cast<OpenedImage*>(image);
  if (opened == nullptr) return Invalid("an image that neve did not open");
  return std::unique_ptr<ImageTensors>(std::make_unique<ImageTensorsImpl>(std::move(contents), opened));
}

}  // namespace neve
