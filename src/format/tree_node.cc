#include "format/tree_node.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_format.h"
#include "format/checked_json.h"
#include "format/json_reader.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

constexpr int64_t kOddStrideMax = int64_t{1} << 40;         // of an extent of 1, where it does not matter
constexpr uint64_t kMetaElementsMax = uint64_t{1} << 58;    // so that its bytes fit 63 bits, whatever the type

absl::Status NotOfItsType(std::string_view key) {
  return Damaged(absl::StrFormat("the member %s of a node is not of its type", Quoted(key)));
}

bool ReadText(std::string_view value, std::string* text) { return IsString(value) && JsonReader(value).String(text); }

bool ReadFlag(std::string_view value, bool* flag) {
  *flag = value == "1" || value == "true";
  return *flag || value == "0" || value == "false";
}

bool ReadCounts(std::string_view value, tensor::Dims* dims) {
  if (!IsArray(value)) return false;
  std::string_view element;
  for (CheckedJson elements(value); elements.NextElement(&element);) {
    int64_t number = 0;
    if (!IsNumber(element) || !JsonReader(element).Integer(&number) || number < 0) return false;
    dims->push_back(number);
  }
  return true;
}

bool CanHaveGradients(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64: return false;
    default: return true;
  }
}

bool IsRowMajor(const tensor::Dims& shape, const tensor::Dims& strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

absl::Status ReadNode(std::string_view object, NodeText* node) {
  std::string_view key, value;
  int kinds = 0;
  for (CheckedJson members(object); members.NextMember(&key, &value);) {
    bool fits = true;
    if (key == "T") {
      node->tensor = value;
      fits = IsNumber(value);
      ++kinds;
    } else if (key == "d" || key == "l") {
      (key == "d" ? node->dict : node->list) = value;
      fits = IsArray(value);
      ++kinds;
    } else if (key == "b") {
      node->blob = value;
      fits = IsNumber(value);
      ++kinds;
    } else if (key == "r") {
      node->reference = value;
      fits = IsString(value);
      ++kinds;
    } else if (key == "o") {
      node->composite = true;
      fits = ReadText(value, &node->node.type);
      ++kinds;
    } else if (key == "t") {
      if (!node->composite) fits = ReadText(value, &node->node.type);
    } else if (key == "c") {
      node->children = value;
      fits = IsArray(value);
    } else if (key == "py" || key == "a") {
      node->attributes = value;
      node->node.attributes = true;
    } else if (key == "q") {
      fits = ReadText(value, &node->node.class_name);
    } else if (key == "dt") {
      fits = ReadText(value, &node->node.dtype);
    } else if (key == "dev") {
      fits = ReadText(value, &node->node.device) && IsDeviceName(node->node.device);
    } else if (key == "np") {
      node->node.array = true;
      fits = value == "1" || ReadText(value, &node->node.numpy);
    } else if (key == "param") {
      fits = ReadFlag(value, &node->node.parameter);
    } else if (key == "grad") {
      fits = ReadFlag(value, &node->node.gradient);
    } else if (key == "meta") {
      fits = ReadFlag(value, &node->meta);
    } else if (key == "sh") {
      node->node.has_shape = true;
      fits = ReadCounts(value, &node->node.shape);
    } else if (key == "st") {
      node->has_strides = true;
      fits = ReadCounts(value, &node->strides);
    }
    if (!fits) return NotOfItsType(key);
  }
  return kinds <= 1 ? absl::OkStatus() : Damaged("a node of two kinds");
}

uint64_t SparseParts(std::string_view kind) {
  if (kind == "coo") return 2;
  return kind == "csr" || kind == "csc" || kind == "bsr" || kind == "bsc" ? 3 : 0;
}

std::optional<uint64_t> PartsOf(std::string_view kind) {
  if (const uint64_t parts = SparseParts(kind); parts > 0) return parts;
  constexpr std::array<std::string_view, 5> kWhole = {"state", "dataclass", "generator", "RandomState", "Generator"};
  return std::find(kWhole.begin(), kWhole.end(), kind) != kWhole.end() ? std::optional<uint64_t>(1) : std::nullopt;
}

bool IsKnownDict(std::string_view type) {
  if (type.empty() || type == "O") return true;
  if (!type.starts_with("D:")) return false;
  constexpr std::array<std::string_view, 7> kFactories = {"None", "dict", "list", "set", "int", "float", "str"};
  return std::find(kFactories.begin(), kFactories.end(), type.substr(2)) != kFactories.end();
}

absl::Status CheckTensorNode(const NodeText& text, const LogicalTensor& tensor) {
  const NodeMembers& node = text.node;
  const auto damaged = [&](const std::string& why) { return Damaged(absl::StrFormat("tensor %s %s", Quoted(tensor.name), why)); };
  if (node.device == "meta" || node.device.starts_with("meta:")) return damaged("has bytes, which the device \"meta\" cannot hold");
  if (node.gradient && !CanHaveGradients(tensor.dtype)) {
    return damaged(absl::StrFormat("requires gradients, which its dtype %s cannot have", std::string(Name(tensor.dtype))));
  }
  if (node.array && (node.parameter || node.gradient || node.attributes)) {
    return damaged("is a NumPy array with attributes of torch's");
  }
  if (!node.dtype.empty() && (tensor.dtype != DType::kBits8 ||
                              (node.dtype != "bits1x8" && node.dtype != "bits2x4" && node.dtype != "bits4x2"))) {
    return damaged(absl::StrFormat("cannot be %s", Quoted(node.dtype)));
  }
  if (!node.numpy.empty()) {
    const std::optional<uint64_t> item_bytes = NumpyItemBytes(node.numpy);
    if (!item_bytes.has_value() || tensor.dtype != DType::kU8 || tensor.shape.empty() ||
        static_cast<uint64_t>(tensor.shape.back()) != *item_bytes) {
      return damaged(absl::StrFormat("cannot hold the NumPy dtype %s", Quoted(node.numpy)));
    }
  }
  if (!text.has_strides || (!tensor.alias && !IsRowMajor(tensor.shape, tensor.strides))) return absl::OkStatus();
  const bool plain = text.strides.size() == tensor.shape.size() &&
                     std::all_of(text.strides.begin(), text.strides.end(), [](int64_t stride) { return stride < kOddStrideMax; });
  return plain && IsRowMajor(tensor.shape, text.strides) ? absl::OkStatus() : damaged("has strides that its bytes do not have");
}

absl::Status CheckMeta(const NodeText& text) {
  const NodeMembers& node = text.node;
  if (node.dtype.empty() || !node.has_shape || !text.has_strides || text.attributes.size() > 0) {
    return Damaged("a meta tensor without its dtype, shape and strides");
  }
  const absl::StatusOr<tensor::Density> density = tensor::Classify(node.shape, text.strides);
  if (!density.ok()) return Damaged("a meta tensor: " + std::string(density.status().message()));
  if (tensor::SpanBytes(node.shape, text.strides, 1) > kMetaElementsMax || *tensor::ElementCount(node.shape) > kMetaElementsMax) {
    return Damaged("a meta tensor larger than any memory");
  }
  return absl::OkStatus();
}

absl::Status CheckComposite(const NodeText& text) {
  const NodeMembers& node = text.node;
  const bool sparse = SparseParts(node.type) > 0;
  if (sparse && !node.has_shape) return Damaged("a sparse tensor without a shape");
  if (sparse && !tensor::ElementCount(node.shape).ok()) return Damaged("a sparse tensor whose elements overflow");
  if (node.type == "dataclass" && node.class_name.empty()) return Damaged("a dataclass without its name");
  if (PartsOf(node.type).has_value() && text.children.empty()) return Damaged("a composite without its parts");
  return absl::OkStatus();
}

}  // namespace neve::format
