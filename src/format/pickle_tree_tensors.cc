// The tensors of a tree: their nodes, and what the maker is told of them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/pickle_tree.h"

namespace neve::format {
namespace {

constexpr uint64_t kMemoryBytesMax = 64u << 20;
constexpr std::string_view kRootName = "~tensor";

// Bytes in order, but strides that torch itself would not have given: where an extent is 1, or nothing is there.
bool HasOddStrides(const tensor::Dims& shape, const tensor::Dims& strides) {
  int64_t step = 1;
  bool odd = false, empty = false;
  for (size_t i = shape.size(); i-- > 0;) {
    empty = empty || shape[i] == 0;
    if (strides[i] != step) {
      odd = true;
      if (shape[i] > 1) return std::find(shape.begin(), shape.end(), 0) != shape.end();
    }
    if (__builtin_mul_overflow(step, std::max<int64_t>(shape[i], 1), &step)) return odd;
  }
  return odd;
}

std::string DimsText(const tensor::Dims& dims) {
  std::string text;
  AppendNumbers(dims, &text);
  return text;
}

}  // namespace

std::string PickleTree::Unique(const std::string& name, bool* natural) {
  const std::string wanted = name.empty() ? std::string(kRootName) : name;
  const bool reserved = wanted == "__metadata__" || wanted.starts_with("neve.") || !codec::IsValidUtf8(wanted);
  *natural = !reserved && names_.insert(wanted).second;
  if (*natural) return wanted;
  std::string base = wanted;
  if (!codec::IsValidUtf8(base)) {
    base.clear();
    AppendJsonText(wanted, &base);
  }
  for (uint64_t number = 2;; ++number) {
    std::string unique = absl::StrFormat("%s~#%d", base, number);
    if (names_.insert(unique).second) return unique;
  }
}

absl::Status PickleTree::AddTensor(PickleNode node, const TorchTensor& tensor, DType dtype, uint32_t storage,
                                   uint64_t byte_offset, const std::string& name, std::string* unique) {
  NEVE_RETURN_IF_ERROR(Charge(2 * unique->size() + 80));
  tensors_[node] = *unique;
  return maker_->AddTensor({*unique, dtype, tensor.shape, tensor.strides, storage, byte_offset});
}

absl::Status PickleTree::EmitTensor(PickleNode node, const TorchTensor& tensor, const std::string& name, int depth,
                                    std::string* out, bool* plain) {
  if (const auto seen = tensors_.find(node); seen != tensors_.end()) {
    out->append("{\"r\":");
    AppendJsonString(seen->second, out);
    out->push_back('}');
    return Charge(seen->second.size() + 8);
  }
  switch (tensor.kind) {
    case TorchTensor::Kind::kMeta:
      return EmitMeta(tensor, out);
    case TorchTensor::Kind::kSparse:
      return EmitSparse(tensor, name, depth, out);
    case TorchTensor::Kind::kArray:
      return EmitArray(node, tensor, name, out, plain);
    case TorchTensor::Kind::kQuantized: {
      // Its integers are a tensor; the scales are part of what would have to be called.
      maker_->AddOpaque({name, "torch._utils._rebuild_qtensor"});
      out->append("{\"o\":\"opaque\",\"q\":\"torch._utils._rebuild_qtensor\",\"c\":[");
      TorchTensor integers = tensor;
      integers.kind = TorchTensor::Kind::kDense;
      std::string text;
      NEVE_RETURN_IF_ERROR(EmitDense(node, integers, name, depth, &text, plain));
      out->append(*plain ? "{\"T\":1}" : text).append("]}");
      *plain = false;
      return absl::OkStatus();
    }
    case TorchTensor::Kind::kDense:
      break;
  }
  return EmitDense(node, tensor, name, depth, out, plain);
}

absl::Status PickleTree::EmitDense(PickleNode node, const TorchTensor& tensor, const std::string& name, int depth,
                                   std::string* out, bool* plain) {
  TorchStorages::Found found;
  if (tensor.storage != 0) {
    absl::StatusOr<TorchStorages::Found> at = storages_->Find(tensor.storage, tensor.dtype ? WordBytes(*tensor.dtype) : 0);
    if (absl::IsNotFound(at.status())) {  // told by name, never zeros in its place
      maker_->AddNote(absl::StrFormat("%s: %s", Quoted(name), std::string(at.status().message())));
      return EmitOpaqueLeaf("a tensor whose bytes are missing", name, out);
    }
    if (!at.ok()) return At(at.status(), name);
    found = *std::move(at);
    if (!tensor.dtype && !tensor.dtype_name.empty()) {
      return EmitOpaqueLeaf("a tensor of torch." + tensor.dtype_name, name, out);
    }
  } else {
    absl::StatusOr<uint32_t> storage = BytesStorage(tensor);
    if (!storage.ok()) return At(storage.status(), name);
    found.storage = *storage;
    found.untyped = true;
  }
  const DType dtype = tensor.dtype ? *tensor.dtype : found.dtype;
  if (found.meta) {
    TorchTensor meta = tensor;
    meta.dtype_name = TorchName(dtype);
    return EmitMeta(meta, out);
  }
  // Offsets are in elements of what rebuilds it: of the tensor's own dtype when it names one.
  uint64_t byte_offset = 0;
  if (__builtin_mul_overflow(tensor.offset, ItemBytes(dtype), &byte_offset) ||
      __builtin_add_overflow(byte_offset, found.offset, &byte_offset)) {
    return At(Damaged("its offset overflows"), name);
  }
  TorchTensor stored = tensor;
  const bool lazy = tensor.conjugated || tensor.negated;
  if (lazy) {
    absl::StatusOr<uint32_t> storage = storages_->Resolve(found, tensor, dtype, byte_offset);
    if (!storage.ok()) return At(storage.status(), name);
    found.storage = *storage;
    byte_offset = 0;
    stored.strides = tensor::ContiguousStrides(tensor.shape);
  }
  bool natural = false;
  std::string unique = Unique(name, &natural);
  if (absl::Status status = AddTensor(node, stored, dtype, found.storage, byte_offset, name, &unique); !status.ok()) {
    return status;
  }
  std::string extra;
  if (tensor.parameter) extra += ",\"param\":1";
  if (tensor.gradient) extra += ",\"grad\":1";
  const std::string& device = tensor.device.empty() ? found.device : tensor.device;
  if (!device.empty() && device != "cpu") {
    extra += ",\"dev\":";
    AppendJsonText(device, &extra);
  }
  if (HasOddStrides(stored.shape, stored.strides)) extra += ",\"st\":" + DimsText(stored.strides);
  if (tensor.attributes != 0 && graph_.kind(tensor.attributes) == PickleKind::kDict) {
    bool inner = false;
    extra += ",\"py\":";
    NEVE_RETURN_IF_ERROR(
        Emit(tensor.attributes, (name.empty() ? std::string(kRootName) : name) + ".~py", depth + 1, &extra, &inner));
  }
  *plain = natural && extra.empty() && !name.empty();
  out->append("{\"T\":1").append(extra).append("}");
  return absl::OkStatus();
}

// Bytes that stand in the pickle: where they lie in the file when they lie there as they are, else a copy.
absl::StatusOr<uint32_t> PickleTree::BytesStorage(const TorchTensor& tensor) {
  const PickleKind kind = graph_.kind(tensor.bytes);
  uint64_t offset = 0;
  Backing backing;
  if (kind != PickleKind::kCall && graph_.BytesOffset(tensor.bytes, &offset) && storages_->LocatePickle(offset, &backing)) {
    const uint64_t bytes = graph_.Bytes(tensor.bytes).size();
    if (bytes % tensor.swap == 0) backing.swap = tensor.swap;
    return maker_->AddStorage(bytes, backing);
  }
  std::string bytes;
  if (kind == PickleKind::kByteArray) {
    bytes = graph_.Bytes(tensor.bytes);
  } else if (!values_.BytesOf(tensor.bytes, &bytes)) {
    return Damaged("the bytes of an array are a text that cannot be bytes");
  }
  if (maker_->memory_bytes() + bytes.size() > kMemoryBytesMax) {
    return Exhausted(absl::StrFormat("arrays in the pickle take more than %d bytes", kMemoryBytesMax));
  }
  for (size_t at = 0; tensor.swap > 1 && at + tensor.swap <= bytes.size(); at += tensor.swap) {
    std::reverse(bytes.data() + at, bytes.data() + at + tensor.swap);
  }
  return maker_->AddMemory(std::move(bytes));
}

absl::Status PickleTree::EmitArray(PickleNode node, const TorchTensor& tensor, const std::string& name, std::string* out,
                                   bool* plain) {
  absl::StatusOr<uint32_t> storage = BytesStorage(tensor);
  if (!storage.ok()) return At(storage.status(), name);
  bool natural = false;
  std::string unique = Unique(name, &natural);
  NEVE_RETURN_IF_ERROR(AddTensor(node, tensor, *tensor.dtype, *storage, 0, name, &unique));
  out->append("{\"T\":1,\"np\":");
  if (tensor.numpy.empty()) {
    out->push_back('1');
  } else {
    AppendJsonString(tensor.numpy, out);
  }
  out->push_back('}');
  *plain = false;
  return absl::OkStatus();
}

absl::Status PickleTree::EmitMeta(const TorchTensor& tensor, std::string* out) {
  out->append("{\"T\":1,\"meta\":1,\"dt\":");
  AppendJsonString(tensor.dtype_name, out);
  out->append(",\"sh\":" + DimsText(tensor.shape) + ",\"st\":" + DimsText(tensor.strides));
  if (tensor.parameter) out->append(",\"param\":1");
  if (tensor.gradient) out->append(",\"grad\":1");
  out->push_back('}');
  return absl::OkStatus();
}

absl::Status PickleTree::EmitSparse(const TorchTensor& tensor, const std::string& name, int depth, std::string* out) {
  static constexpr std::string_view kCoo[] = {"indices", "values"};
  static constexpr std::string_view kRows[] = {"crow_indices", "col_indices", "values"};
  static constexpr std::string_view kColumns[] = {"ccol_indices", "row_indices", "values"};
  std::span<const std::string_view> names = kCoo;
  if (tensor.layout == "csr" || tensor.layout == "bsr") names = kRows;
  if (tensor.layout == "csc" || tensor.layout == "bsc") names = kColumns;
  *out += absl::StrFormat("{\"o\":\"%s\",\"sh\":%s", tensor.layout, DimsText(tensor.shape));
  if (tensor.coalesced) out->append(",\"co\":1");
  if (tensor.parameter) out->append(",\"param\":1");
  if (tensor.gradient) out->append(",\"grad\":1");
  out->append(",\"c\":[");
  const std::string base = name.empty() ? std::string(kRootName) : name;
  for (size_t i = 0; i < tensor.parts.size(); ++i) {
    if (i > 0) out->push_back(',');
    bool plain = false;
    std::string text;
    NEVE_RETURN_IF_ERROR(Emit(tensor.parts[i], base + "." + std::string(names[i]), depth + 1, &text, &plain));
    out->append(text);
  }
  out->append("]}");
  return absl::OkStatus();
}

// A storage that stands on its own: its elements are shown as a tensor of one dimension.
absl::Status PickleTree::EmitPersistent(PickleNode node, const std::string& name, int depth, std::string* out, bool* plain) {
  const absl::StatusOr<std::optional<TorchStorages::Named>> named = storages_->FindTensor(node);
  if (!named.ok()) return At(named.status(), name);
  if (!named->has_value()) return EmitStorage(node, name, out);
  return EmitTensor((*named)->node, (*named)->tensor, name, depth, out, plain);
}

absl::Status PickleTree::EmitStorage(PickleNode node, const std::string& name, std::string* out) {
  absl::StatusOr<TorchStorages::Found> found = storages_->Find(node, 0);
  if (!found.ok() && !absl::IsNotFound(found.status())) return At(found.status(), name);
  NEVE_ASSIGN_OR_RETURN(const TorchStorageId id, storages_->IdOf(graph_, node));
  if (!found.ok() || found->meta) return EmitOpaqueLeaf(id.type_name, name, out);
  maker_->AddOpaque({name, id.type_name});
  out->append("{\"o\":\"opaque\",\"q\":");
  AppendJsonText(id.type_name, out);
  out->append(",\"c\":[");
  if (const auto seen = tensors_.find(node); seen != tensors_.end()) {
    out->append("{\"r\":");
    AppendJsonString(seen->second, out);
    out->append("}]}");
    return absl::OkStatus();
  }
  TorchTensor tensor;
  tensor.shape = {static_cast<int64_t>(id.count)};
  tensor.strides = {1};
  bool natural = false;
  std::string unique = Unique(name, &natural);
  NEVE_RETURN_IF_ERROR(AddTensor(node, tensor, found->dtype, found->storage, found->offset, name, &unique));
  out->append("{\"T\":1}]}");
  return absl::OkStatus();
}

}  // namespace neve::format
