#include "format/tree_facts.h"

#include "format/json_text.h"
#include "tensor/view.h"

namespace neve::format {
namespace {

void AppendName(std::string_view name, std::string* out) {
  if (!out->empty()) out->push_back(',');
  AppendJsonString(name, out);
  out->push_back(':');
}

void AppendPair(std::span<const int64_t> first, std::span<const int64_t> second, std::string* out) {
  AppendNumbers(first, out);
  out->push_back(',');
  AppendNumbers(second, out);
}

void AppendAlias(size_t position, const LogicalTensor& tensor, std::string* out) {
  out->append(out->empty() ? "[" : ",[");
  AppendNumber(uint64_t{position}, out);
  out->push_back(',');
  AppendJsonString(tensor.name, out);
  out->push_back(',');
  AppendJsonString(tensor.stored, out);
  out->push_back(',');
  AppendNumber(tensor.byte_offset, out);
  out->push_back(',');
  AppendJsonString(Name(tensor.dtype), out);
  out->push_back(',');
  AppendPair(tensor.shape, tensor.strides, out);
  out->push_back(']');
}

}  // namespace

std::string TreeTextOf(std::string_view root, std::span<const LogicalTensor> tensors) {
  std::string tree = "{\"v\":1", strided, dtypes, aliases, pieces;
  if (!root.empty()) tree.append(",\"root\":").append(root);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const LogicalTensor& tensor = tensors[i];
    if (tensor.alias) {
      AppendAlias(i, tensor, &aliases);
      continue;
    }
    // A scalar pair of F4 is two values, for which the header needs a dimension.
    const bool scalar_pair = tensor.dtype == DType::kF4E2M1x2 && tensor.shape.empty();
    const absl::StatusOr<tensor::Density> density = tensor::Classify(tensor.shape, tensor.strides);
    if (scalar_pair || !density.ok() || *density != tensor::Density::kContiguous) {
      AppendName(tensor.name, &strided);
      strided.push_back('[');
      AppendPair(tensor.shape, tensor.strides, &strided);
      strided.push_back(']');
    }
    if (!HasSafetensorsName(tensor.dtype)) {
      AppendName(tensor.name, &dtypes);
      AppendJsonString(Name(tensor.dtype), &dtypes);
    }
    if (tensor.piece == nullptr) continue;
    AppendName(tensor.name, &pieces);
    pieces.push_back('[');
    AppendPair(tensor.piece->global_shape, tensor.piece->offset, &pieces);
    if (tensor.logical_name() != tensor.name) {
      pieces.push_back(',');
      AppendJsonString(tensor.logical_name(), &pieces);
    }
    pieces.push_back(']');
  }
  std::string parts;
  if (!strided.empty()) parts += ",\"strided\":{" + strided + "}";
  if (!dtypes.empty()) parts += ",\"dtype\":{" + dtypes + "}";
  if (!aliases.empty()) parts += ",\"alias\":[" + aliases + "]";
  if (!pieces.empty()) parts += ",\"piece\":{" + pieces + "}";
  if (!parts.empty()) tree += ",\"tensors\":{" + parts.substr(1) + "}";
  return tree + "}";
}

}  // namespace neve::format
