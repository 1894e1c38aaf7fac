// From the header's entries and the differences that `neve.tree` lists to the tensors as the user knows them. What the tree
// says is checked against the header: it comes from the same file, but from another hand than the bytes.
#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/image_header.h"
#include "format/json_reader.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/name_order.h"
#include "format/tree_walk.h"

namespace neve::format {
namespace {

constexpr uint64_t kTreeVersion = 1;
constexpr int kTreeDepthMax = 1024;
constexpr uint32_t kNotLogical = UINT32_MAX;

bool ReadDims(JsonReader& in, tensor::Dims* dims) {
  if (!in.EnterArray()) return false;
  while (in.NextElement()) {
    uint64_t value = 0;
    if (!in.Unsigned(&value)) return false;
    if (value > INT64_MAX) return in.Fail(absl::StrFormat("the number %d overflows", value));
    dims->push_back(static_cast<int64_t>(value));
  }
  return in.ok();
}

bool ReadDType(JsonReader& in, DType* dtype) {
  std::string_view name;
  if (!in.StringView(&name)) return false;
  const std::optional<DType> found = DTypeFromName(name);
  if (!found) return in.Fail(absl::StrFormat("unknown dtype %s", Quoted(name)));
  *dtype = *found;
  return true;
}

class TreeReader {
 public:
  explicit TreeReader(const ImageHeader& header) : header_(header) {
    for (const HeaderTensor& tensor : header.tensors) names_.push_back(tensor.name);
    order_ = NameOrder(names_);
  }

  absl::StatusOr<std::vector<LogicalTensor>> Read(const std::string* tree) {
    AddOwn(tree != nullptr);
    if (tree != nullptr) {
      JsonReader in(*tree, kTreeDepthMax);
      ReadTree(in);
      if (absl::Status status = in.Finish(); !status.ok()) return Annotate(status, std::string(kTreeKey));
      if (version_ == 0) return Damaged(absl::StrFormat("%s has no version", std::string(kTreeKey)));
      if (version_ != kTreeVersion) {
        return Unsupported(absl::StrFormat("%s: its version is %d, this build reads %d; use a newer neve", kTreeKey, version_,
                                           kTreeVersion));
      }
    }
    for (LogicalTensor& tensor : own_) {
      if (tensor.strides.empty()) tensor.strides = tensor::ContiguousStrides(tensor.shape);
    }
    NEVE_RETURN_IF_ERROR(CheckAliases());
    return Merge();
  }

 private:
  // Every entry as it is when the tree says nothing of it.
  void AddOwn(bool hide) {
    logical_of_.assign(header_.tensors.size(), kNotLogical);
    for (size_t i = 0; i < header_.tensors.size(); ++i) {
      const HeaderTensor& stored = header_.tensors[i];
      if (hide && IsHiddenName(stored.name)) continue;
      logical_of_[i] = static_cast<uint32_t>(own_.size());
      LogicalTensor tensor{stored.name, stored.dtype, stored.shape, {}, stored.name};
      tensor.stored_index = static_cast<uint32_t>(i);
      if (stored.dtype == DType::kF4E2M1x2) tensor.shape.back() /= 2;   // the header counts values; it is even
      own_.push_back(std::move(tensor));
    }
  }

  const HeaderTensor* FindStored(std::string_view name) const {
    const auto at = std::lower_bound(order_.begin(), order_.end(), name,
                                     [&](uint32_t index, std::string_view wanted) { return names_[index] < wanted; });
    return at != order_.end() && names_[*at] == name ? &header_.tensors[*at] : nullptr;
  }
  LogicalTensor* FindOwn(std::string_view name) {
    const HeaderTensor* stored = FindStored(name);
    if (stored == nullptr) return nullptr;
    const uint32_t index = logical_of_[static_cast<size_t>(stored - header_.tensors.data())];
    return index == kNotLogical ? nullptr : &own_[index];
  }

  void ReadTree(JsonReader& in) {
    std::string_view key;
    if (!in.EnterObject()) return;
    while (in.NextKey(&key)) {
      if (key == "v") {
        in.Unsigned(&version_);
      } else if (key == "tensors") {
        ReadTensors(in);
      } else {
        in.Skip();   // the root: nesting is the caller's
      }
    }
  }

  void ReadTensors(JsonReader& in) {
    std::string_view key, strided, pieces;
    if (!in.EnterObject()) return;
    while (in.NextKey(&key)) {
      if (key == "strided") {
        in.Raw(&strided);   // read after the dtypes, which take a dimension off the header's shape
      } else if (key == "dtype") {
        ReadDTypes(in);
      } else if (key == "alias") {
        ReadAliases(in);
      } else if (key == "piece") {
        in.Raw(&pieces);    // read last, for the shapes
      } else {
        in.Skip();
      }
    }
    ReadPart("strided", strided, in, [this](JsonReader& part) { ReadStrided(part); });
    ReadPart("piece", pieces, in, [this](JsonReader& part) { ReadPieces(part); });
  }

  template <typename Body>
  static void ReadPart(std::string_view name, std::string_view text, JsonReader& in, Body body) {
    if (text.empty() || !in.ok()) return;
    JsonReader part(text, kTreeDepthMax);
    body(part);
    if (const absl::Status status = part.Finish(); !status.ok()) {
      in.Fail(std::string(name) + ": " + std::string(status.message()));
    }
  }

  void ReadDTypes(JsonReader& in) {
    std::string_view name;
    if (!in.EnterObject()) return;
    while (in.NextKey(&name)) {
      LogicalTensor* tensor = FindOwn(name);
      DType dtype{};
      if (tensor == nullptr) {
        in.Fail(absl::StrFormat("a dtype of tensor %s, which the header lacks", Quoted(name)));
        return;
      }
      if (!ReadDType(in, &dtype)) return;
      if (HasSafetensorsName(dtype) || tensor->dtype != DType::kU8 || tensor->shape.empty() ||
          tensor->shape.back() != static_cast<int64_t>(ItemBytes(dtype))) {
        in.Fail(absl::StrFormat("the dtype %s does not fit the header's entry of tensor %s", Name(dtype), Quoted(name)));
        return;
      }
      tensor->dtype = dtype;
      tensor->shape.pop_back();
    }
  }

  void ReadStrided(JsonReader& in) {
    std::string_view name;
    if (!in.EnterObject()) return;
    while (in.NextKey(&name)) {
      LogicalTensor* tensor = FindOwn(name);
      tensor::Dims shape, strides;
      if (tensor == nullptr) {
        in.Fail(absl::StrFormat("strides of tensor %s, which the header lacks", Quoted(name)));
        return;
      }
      if (!in.EnterArray() || !in.NextElement() || !ReadDims(in, &shape) || !in.NextElement() || !ReadDims(in, &strides) ||
          in.NextElement() || !in.ok()) {
        in.Fail(absl::StrFormat("the strides of tensor %s are not [shape, strides]", Quoted(name)));
        return;
      }
      if (!FitsStored(*tensor, shape, strides)) {
        in.Fail(absl::StrFormat("the shape and strides of tensor %s do not fit its entry in the header", Quoted(name)));
        return;
      }
      tensor->shape = std::move(shape);
      tensor->strides = std::move(strides);
    }
  }

  void ReadPieces(JsonReader& in) {
    std::string_view name;
    if (!in.EnterObject()) return;
    while (in.NextKey(&name)) {
      LogicalTensor* tensor = FindOwn(name);
      if (tensor == nullptr) {
        in.Fail(absl::StrFormat("a piece %s, which is no tensor of the header", Quoted(name)));
        return;
      }
      auto piece = std::make_shared<Piece>();
      bool fits = in.EnterArray() && in.NextElement() && ReadDims(in, &piece->global_shape) && in.NextElement() &&
                  ReadDims(in, &piece->offset);
      if (fits && in.NextElement()) {
        fits = in.String(&piece->logical_name) && !piece->logical_name.empty() && !in.NextElement();
      }
      if (!fits || !in.ok()) {
        in.Fail(absl::StrFormat("what is said of piece %s is not [global shape, offset] or [global shape, offset, logical name]",
                                Quoted(name)));
        return;
      }
      if (const absl::Status status = CheckPiece(tensor->shape, tensor->dtype, *piece); !status.ok()) {
        in.Fail(absl::StrFormat("tensor %s: %s", Quoted(name), std::string(status.message())));
        return;
      }
      tensor->piece = std::move(piece);
    }
  }

  static bool FitsStored(const LogicalTensor& stored, const tensor::Dims& shape, const tensor::Dims& strides) {
    const absl::StatusOr<tensor::Density> density = tensor::Classify(shape, strides);
    if (!density.ok() || *density == tensor::Density::kOverlapping) return false;
    if (tensor::SpanBytes(shape, strides, 1) > kSpanBytesMax / ItemBytes(stored.dtype)) return false;
    tensor::Dims touched = shape;
    for (size_t i = 0; i < shape.size() && *density == tensor::Density::kExpanded; ++i) {
      if (strides[i] == 0 && shape[i] > 1) touched[i] = 1;
    }
    if (stored.dtype == DType::kF4E2M1x2 && touched.empty()) touched.push_back(1);   // a scalar pair
    return touched == stored.shape;
  }

  void ReadAliases(JsonReader& in) {
    if (!in.EnterArray()) return;
    while (in.NextElement()) {
      uint64_t position = 0;
      LogicalTensor alias;
      alias.alias = true;
      if (!in.EnterArray() || !in.NextElement() || !in.Unsigned(&position) || !in.NextElement() || !in.String(&alias.name) ||
          !in.NextElement() || !in.String(&alias.stored) || !in.NextElement() || !in.Unsigned(&alias.byte_offset) ||
          !in.NextElement() || !ReadDType(in, &alias.dtype) || !in.NextElement() || !ReadDims(in, &alias.shape) ||
          !in.NextElement() || !ReadDims(in, &alias.strides) || in.NextElement() || !in.ok()) {
        in.Fail("an alias is not [position, name, base, byte offset, dtype, shape, strides]");
        return;
      }
      aliases_.emplace_back(position, std::move(alias));
    }
  }

  absl::Status CheckAliases() {
    for (auto& [position, alias] : aliases_) {
      const auto damaged = [&, &alias = alias](const std::string& what) {
        return Damaged(absl::StrFormat("%s: alias %s: %s", kTreeKey, Quoted(alias.name), what));
      };
      const HeaderTensor* base = FindStored(alias.stored);
      if (base == nullptr || IsBlobName(base->name)) {
        return damaged(absl::StrFormat("its base %s is not in the header", Quoted(alias.stored)));
      }
      if (const LogicalTensor* own = FindOwn(alias.stored); own != nullptr && own->piece != nullptr) {
        return damaged(absl::StrFormat("its base %s is a piece", Quoted(alias.stored)));
      }
      alias.stored_index = static_cast<uint32_t>(base - header_.tensors.data());
      if (const absl::StatusOr<tensor::Density> density = tensor::Classify(alias.shape, alias.strides); !density.ok()) {
        return damaged(std::string(density.status().message()));
      }
      const uint64_t item_bytes = ItemBytes(alias.dtype);
      const uint64_t elements = tensor::SpanBytes(alias.shape, alias.strides, 1);
      // Bases are dense, so the base's memory has as many bytes as its entry.
      if (alias.byte_offset > base->bytes || elements > (base->bytes - alias.byte_offset) / item_bytes) {
        return damaged(absl::StrFormat("%d elements of %d bytes at byte %d reach past its base's %d bytes", elements, item_bytes,
                                       alias.byte_offset, base->bytes));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<LogicalTensor>> Merge() {
    const size_t count = own_.size() + aliases_.size();
    std::vector<LogicalTensor> all;
    all.reserve(count);
    auto own = own_.begin();
    for (auto& [position, alias] : aliases_) {
      if (position >= count || position < all.size() || position - all.size() > static_cast<uint64_t>(own_.end() - own)) {
        return Damaged(
            absl::StrFormat("%s: alias %s has the position %d, which does not fit", kTreeKey, Quoted(alias.name), position));
      }
      while (all.size() < position) all.push_back(std::move(*own++));
      all.push_back(std::move(alias));
    }
    std::move(own, own_.end(), std::back_inserter(all));
    if (aliases_.empty()) return all;   // the header's names are unique already
    std::vector<std::string_view> names;
    for (const LogicalTensor& tensor : all) names.push_back(tensor.name);
    const std::vector<uint32_t> order = NameOrder(names);
    for (size_t i = 1; i < order.size(); ++i) {
      if (names[order[i]] == names[order[i - 1]]) {
        return Damaged(absl::StrFormat("%s: the name %s is given to two tensors", kTreeKey, Quoted(names[order[i]])));
      }
    }
    return all;
  }

  const ImageHeader& header_;
  std::vector<std::string_view> names_;                           // of the header's tensors
  std::vector<uint32_t> order_;                                   // of those, by name
  std::vector<uint32_t> logical_of_;                              // index into own_ for each
  std::vector<LogicalTensor> own_;
  std::vector<std::pair<uint64_t, LogicalTensor>> aliases_;       // with their positions
  uint64_t version_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<LogicalTensor>> LogicalTensors(const ImageHeader& header) {
  const std::string* format = header.FindMetadata(kFormatKey);
  if (format != nullptr && *format != "1") {
    return Unsupported(absl::StrFormat("%s is %s, this build reads 1; use a newer neve", kFormatKey, Quoted(*format)));
  }
  const std::string* tree = header.FindMetadata(kTreeKey);
  if (format != nullptr && tree == nullptr) return Damaged(absl::StrFormat("%s is missing", kTreeKey));
  return TreeReader(header).Read(tree);
}

}  // namespace neve::format
