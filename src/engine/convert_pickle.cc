#include "engine/convert_pickle.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/pickle_text.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/read_box.h"
#include "format/tree_node.h"

namespace neve::engine {
namespace {

using format::LogicalTensor;
using format::TreeNode;
using format::Value;

struct TypeName {
  DType dtype;
  const char* torch;      // the dtype's name
  const char* storage;    // the typed storage that torch.save names; null: an untyped one
};
constexpr TypeName kTypes[] = {
    {DType::kBool, "bool", "BoolStorage"},          {DType::kU8, "uint8", "ByteStorage"},
    {DType::kI8, "int8", "CharStorage"},            {DType::kI16, "int16", "ShortStorage"},
    {DType::kI32, "int32", "IntStorage"},           {DType::kI64, "int64", "LongStorage"},
    {DType::kF16, "float16", "HalfStorage"},        {DType::kBF16, "bfloat16", "BFloat16Storage"},
    {DType::kF32, "float32", "FloatStorage"},       {DType::kF64, "float64", "DoubleStorage"},
    {DType::kC64, "complex64", "ComplexFloatStorage"}, {DType::kC128, "complex128", "ComplexDoubleStorage"},
    {DType::kU16, "uint16", nullptr},               {DType::kU32, "uint32", nullptr},
    {DType::kU64, "uint64", nullptr},               {DType::kC32, "complex32", nullptr},
    {DType::kF8E5M2, "float8_e5m2", nullptr},       {DType::kF8E4M3, "float8_e4m3fn", nullptr},
    {DType::kF8E8M0, "float8_e8m0fnu", nullptr},    {DType::kF8E4M3Fnuz, "float8_e4m3fnuz", nullptr},
    {DType::kF8E5M2Fnuz, "float8_e5m2fnuz", nullptr}, {DType::kF4E2M1x2, "float4_e2m1fn_x2", nullptr},
    {DType::kBits8, "bits8", nullptr},              {DType::kBits16, "bits16", nullptr},
};

const TypeName* TypeOf(DType dtype) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& type) { return type.dtype == dtype; });
  return found == std::end(kTypes) ? nullptr : found;
}

class Pickler {
 public:
  Pickler(const Conversion& conversion, Refusals* refusals, const TensorNodes* tensors)
      : conversion_(conversion), contents_(*conversion.contents), refusals_(*refusals), tensors_(tensors) {}

  absl::StatusOr<TorchPickle> RunPart(const TreeNode& node, const Value* value) {
    FindSharedTypes(node);
    if (value != nullptr) {
      WriteValue(*value, node.path);
    } else {
      NEVE_RETURN_IF_ERROR(Write(node));
    }
    return TorchPickle{std::move(out_).Finish(), std::move(storages_)};
  }

  absl::StatusOr<TorchPickle> Run() {
    FindSharedTypes(conversion_.tree.root);
    NEVE_RETURN_IF_ERROR(Write(conversion_.tree.root));
    NEVE_RETURN_IF_ERROR(refusals_.ToStatus("a .pt file"));
    const auto note = [&](uint64_t count, const char* what) {
      if (count > 0) conversion_.report->notes.push_back(absl::StrFormat("%d %s", count, what));
    };
    note(arrays_, "NumPy arrays were written as tensors");
    note(states_, "objects were written as their state_dict");
    note(sparse_gradients_, "sparse tensors required gradients, which torch's format does not say");
    return TorchPickle{std::move(out_).Finish(), std::move(storages_)};
  }

 private:
  // An entry is a typed storage only where all tensors of it have that one type.
  void FindSharedTypes(const TreeNode& node) {
    if (node.kind == TreeNode::Kind::kTensor) {
      const LogicalTensor& tensor = contents_.tensors()[node.index];
      const auto [found, is_new] = type_of_entry_.try_emplace(tensor.stored_index, tensor.dtype);
      if (!is_new && found->second != tensor.dtype) mixed_.insert({tensor.stored_index, true});
    }
    if (node.kind == TreeNode::Kind::kSame && tensors_ != nullptr && tensors_->contains(node.text)) {
      FindSharedTypes(*tensors_->at(node.text));
    }
    for (const TreeNode& child : node.children) FindSharedTypes(child);
    if (node.attributes != nullptr) FindSharedTypes(*node.attributes);
  }

  absl::Status Write(const TreeNode& node) {
    switch (node.kind) {
      case TreeNode::Kind::kValue: {
        format::ValuesReader reader(node.text);
        NEVE_ASSIGN_OR_RETURN(const Value value, reader.Next());
        WriteValue(value, node.path);
        return absl::OkStatus();
      }
      case TreeNode::Kind::kBlob: return WriteBlob(node);
      case TreeNode::Kind::kTensor: return WriteTensor(node);
      case TreeNode::Kind::kSame: {
        const auto found = memo_.find(node.text);
        if (found == memo_.end() && tensors_ != nullptr && tensors_->contains(node.text)) return WriteTensor(*tensors_->at(node.text));
        if (found == memo_.end()) return Damaged(absl::StrFormat("%s is %s again, which did not come before it",
                                                                 format::Quoted(node.path), format::Quoted(node.text)));
        out_.Get(found->second);
        return absl::OkStatus();
      }
      case TreeNode::Kind::kDict: return WriteDict(node);
      case TreeNode::Kind::kList: return WriteList(node);
      case TreeNode::Kind::kMeta: return WriteMeta(node);
      case TreeNode::Kind::kOpaque:
        refusals_.Add(node.path, absl::StrFormat("an object that only running %s would bring back", node.type));
        break;
      case TreeNode::Kind::kComposite: return WriteComposite(node);
    }
    return absl::OkStatus();
  }

  absl::Status WriteKey(const TreeNode& child) {
    if (conversion_.tree.flat) {
      out_.Text(child.key);
      return absl::OkStatus();
    }
    NEVE_ASSIGN_OR_RETURN(const Value key, format::KeyOf(child.key));
    WriteValue(key, child.path);
    return absl::OkStatus();
  }

  absl::Status WriteDict(const TreeNode& node) {
    if (node.type.empty()) {
      out_.EmptyDict();
    } else if (node.type == "O") {
      out_.Global("collections", "OrderedDict");
      out_.EmptyTuple();
      out_.Reduce();
    } else {
      const std::string_view factory = std::string_view(node.type).substr(std::min<size_t>(2, node.type.size()));
      if (!node.type.starts_with("D:") || !format::IsKnownDict(node.type)) {
        refusals_.Add(node.path, absl::StrFormat("a dict of the type %s", node.type));
        return absl::OkStatus();
      }
      out_.Global("collections", "defaultdict");
      if (factory == "None") {
        out_.None();
      } else {
        out_.Global("__builtin__", std::string(factory));
      }
      out_.Tuple(1);
      out_.Reduce();
    }
    if (!node.children.empty()) {
      out_.Mark();
      for (const TreeNode& child : node.children) {
        NEVE_RETURN_IF_ERROR(WriteKey(child));
        NEVE_RETURN_IF_ERROR(Write(child));
      }
      out_.SetItems();
    }
    if (node.attributes != nullptr) {   // the hidden version table of a state dict
      NEVE_RETURN_IF_ERROR(Write(*node.attributes));
      out_.Build();
    }
    return absl::OkStatus();
  }

  absl::Status WriteList(const TreeNode& node) {
    const bool named = node.type.starts_with("n:"), tuple = named || node.type == "tuple";
    if (!tuple && !node.type.empty()) {
      refusals_.Add(node.path, absl::StrFormat("a list of the type %s", node.type));
      return absl::OkStatus();
    }
    if (named && !WriteClass(node.type.substr(2), node.path)) return absl::OkStatus();
    if (tuple) {
      if (node.children.size() > 3) out_.Mark();
      for (const TreeNode& child : node.children) NEVE_RETURN_IF_ERROR(Write(child));
      out_.Tuple(node.children.size());
      if (named) out_.NewObject();
      return absl::OkStatus();
    }
    out_.EmptyList();
    if (node.children.empty()) return absl::OkStatus();
    out_.Mark();
    for (const TreeNode& child : node.children) NEVE_RETURN_IF_ERROR(Write(child));
    out_.Appends();
    return absl::OkStatus();
  }

  // The name of a class; false: refused. A pickle names a module and a class in it: only by the habit that classes have capitals
  // can the one be told from the other where classes lie in classes.
  bool WriteClass(const std::string& name, const std::string& path) {
    const size_t dot = name.rfind('.');
    bool nested = dot == std::string::npos;
    for (size_t at = 0; !nested && at < dot; at = name.find('.', at) + 1) nested = name[at] >= 'A' && name[at] <= 'Z';
    if (nested || name.find_first_of("\n\r") != std::string::npos) {
      refusals_.Add(path, absl::StrFormat("the class %s, which lies in another class or in no module", name));
      return false;
    }
    out_.Global(name.substr(0, dot), name.substr(dot + 1));
    return true;
  }

  absl::Status WriteComposite(const TreeNode& node) {
    if (format::SparseParts(node.type) > 0) return WriteSparse(node);
    if (node.type == "state" && node.children.size() == 1) {
      ++states_;
      return Write(node.children.front());
    }
    if (node.type == "dataclass" && node.children.size() == 1) {
      if (!WriteClass(node.text, node.path)) return absl::OkStatus();
      out_.EmptyTuple();
      out_.NewObject();
      NEVE_RETURN_IF_ERROR(Write(node.children.front()));
      out_.Build();
      return absl::OkStatus();
    }
    refusals_.Add(node.path, absl::StrFormat("%s is made of parts, which a plain pickle cannot put together",
                                             node.text.empty() ? node.type : node.text));
    return absl::OkStatus();
  }

  static bool Flag(const TreeNode& node, const char* name) { return node.extra.is_object() && node.extra.contains(name); }

  // Damaged: the member is not a list of numbers.
  static absl::StatusOr<tensor::Dims> DimsOf(const TreeNode& node, const char* name) {
    tensor::Dims dims;
    if (!Flag(node, name) || !node.extra[name].is_array()) return Damaged(format::Quoted(node.path) + " has no " + name);
    for (const nlohmann::json& item : node.extra[name]) {
      if (!item.is_number_integer()) return Damaged(absl::StrFormat("the %s of %s is no list of numbers", name, format::Quoted(node.path)));
      dims.push_back(item.get<int64_t>());
    }
    return dims;
  }

  void WriteSize(const tensor::Dims& shape) {
    out_.Global("torch", "Size");
    WriteDims(shape);
    out_.Tuple(1);
    out_.Reduce();
  }

  // torch._utils._rebuild_sparse_tensor(layout, (indices.., values, size[, is_coalesced]))
  absl::Status WriteSparse(const TreeNode& node) {
    const bool parameter = Flag(node, "param"), gradient = Flag(node, "grad"), coo = node.type == "coo";
    if (node.children.size() != format::SparseParts(node.type)) return Damaged(format::Quoted(node.path) + " lacks parts");
    NEVE_ASSIGN_OR_RETURN(const tensor::Dims shape, DimsOf(node, "sh"));
    if (gradient && !parameter) ++sparse_gradients_;
    if (parameter) out_.Global("torch._utils", "_rebuild_parameter");
    out_.Global("torch._utils", "_rebuild_sparse_tensor");
    out_.Global("torch.serialization", "_get_layout");
    out_.Text("torch.sparse_" + node.type);
    out_.Tuple(1);
    out_.Reduce();
    out_.Mark();
    for (const TreeNode& part : node.children) NEVE_RETURN_IF_ERROR(Write(part));
    WriteSize(shape);
    if (coo) out_.Bool(Flag(node, "co"));
    out_.Tuple(4);   // any number over three
    out_.Tuple(2);
    out_.Reduce();
    if (parameter) WriteParameterEnd(gradient);
    return absl::OkStatus();
  }

  void WriteParameterEnd(bool gradient) {
    out_.Bool(gradient);
    WriteHooks();
    out_.Tuple(3);
    out_.Reduce();
  }

  // torch._utils._rebuild_meta_tensor_no_storage(dtype, size, strides, requires_grad)
  absl::Status WriteMeta(const TreeNode& node) {
    const bool parameter = Flag(node, "param"), gradient = Flag(node, "grad");
    NEVE_ASSIGN_OR_RETURN(const tensor::Dims shape, DimsOf(node, "sh"));
    NEVE_ASSIGN_OR_RETURN(const tensor::Dims strides, DimsOf(node, "st"));
    const std::string dtype = Flag(node, "dt") && node.extra["dt"].is_string() ? node.extra["dt"].get<std::string>() : "";
    if (dtype.empty() || dtype.find_first_of("\n\r.") != std::string::npos) {
      return Damaged(format::Quoted(node.path) + " has no dtype of torch");
    }
    if (parameter) out_.Global("torch._utils", "_rebuild_parameter");
    out_.Global("torch._utils", "_rebuild_meta_tensor_no_storage");
    out_.Mark();
    out_.Global("torch", dtype);
    WriteDims(shape);
    WriteDims(strides);
    out_.Bool(gradient && !parameter);
    out_.Tuple(4);
    out_.Reduce();
    if (parameter) WriteParameterEnd(gradient);
    return absl::OkStatus();
  }

  absl::Status WriteBlob(const TreeNode& node) {
    if (!node.type.empty()) {
      refusals_.Add(node.path, absl::StrFormat("an object of the class %s, pickled", node.type));
      return absl::OkStatus();
    }
    NEVE_ASSIGN_OR_RETURN(const std::string payload, ReadBlob(contents_, node.index));
    const std::string_view rest = std::string_view(payload).substr(std::min<size_t>(1, payload.size()));
    switch (payload.empty() ? '\0' : payload[0]) {
      case 'v': {
        format::ValuesReader reader(rest);
        NEVE_ASSIGN_OR_RETURN(const Value value, reader.Next());
        WriteValue(value, node.path);
        return absl::OkStatus();
      }
      case 'y': out_.Bytes(rest); return absl::OkStatus();
      case 's': out_.Text(rest); return absl::OkStatus();
      default: refusals_.Add(node.path, "a pickled object"); return absl::OkStatus();
    }
  }

  void WriteItems(const Value& value, const std::string& path) {
    for (const Value& item : value.items) WriteValue(item, path);
  }

  void WriteCall(const char* module, const char* name, const Value& value, const std::string& path, bool as_list) {
    out_.Global(module, name);
    if (as_list) {
      out_.EmptyList();
      out_.Mark();
      WriteItems(value, path);
      out_.Appends();
    } else {
      if (value.items.size() > 3) out_.Mark();
      WriteItems(value, path);
      out_.Tuple(value.items.size());
    }
    out_.Tuple(1);
    out_.Reduce();
  }

  void WriteValue(const Value& value, const std::string& path) {
    switch (value.kind) {
      case Value::Kind::kNone: return out_.None();
      case Value::Kind::kBool: return out_.Bool(value.flag);
      case Value::Kind::kInteger: return out_.Integer(value.text);
      case Value::Kind::kFloat: return out_.Float(value.number);
      case Value::Kind::kComplex:
        out_.Global("__builtin__", "complex");
        out_.Float(value.number);
        out_.Float(value.imaginary);
        out_.Tuple(2);
        return out_.Reduce();
      case Value::Kind::kText: return out_.Text(value.text);
      case Value::Kind::kBytes: return out_.Bytes(value.text);
      case Value::Kind::kByteArray:
        out_.Global("__builtin__", "bytearray");
        out_.Bytes(value.text);
        out_.Tuple(1);
        return out_.Reduce();
      case Value::Kind::kList:
        out_.EmptyList();
        out_.Mark();
        WriteItems(value, path);
        return out_.Appends();
      case Value::Kind::kTuple:
        if (value.items.size() > 3) out_.Mark();
        WriteItems(value, path);
        return out_.Tuple(value.items.size());
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
        if (value.kind == Value::Kind::kDict) {
          out_.EmptyDict();
        } else {
          out_.Global("collections", "OrderedDict");
          out_.EmptyTuple();
          out_.Reduce();
        }
        out_.Mark();
        WriteItems(value, path);   // key, value, key, value
        return out_.SetItems();
      case Value::Kind::kCounter:
        out_.Global("collections", "Counter");
        out_.EmptyDict();
        out_.Mark();
        WriteItems(value, path);
        out_.SetItems();
        out_.Tuple(1);
        return out_.Reduce();
      case Value::Kind::kSet: return WriteCall("__builtin__", "set", value, path, true);
      case Value::Kind::kFrozenSet: return WriteCall("__builtin__", "frozenset", value, path, true);
      case Value::Kind::kTorchSize: return WriteCall("torch", "Size", value, path, false);
      case Value::Kind::kTorchDType: return out_.Global("torch", value.text);
      case Value::Kind::kTorchDevice:
        out_.Global("torch", "device");
        out_.Text(value.text);
        out_.Tuple(1);
        return out_.Reduce();
      case Value::Kind::kNumpyScalar:
        return refusals_.Add(path, absl::StrFormat("a NumPy scalar of the type %s", value.text));
      case Value::Kind::kTyped: return WriteTyped(value, path);
    }
  }

  // A namedtuple of its items, a dataclass of its fields, a flag of its number. A member of an Enum is known by name only, and a
  // pickle wants its value.
  void WriteTyped(const Value& value, const std::string& path) {
    const Value::Kind content = value.items.size() == 1 ? value.items.front().kind : Value::Kind::kNone;
    if (content != Value::Kind::kTuple && content != Value::Kind::kDict && content != Value::Kind::kInteger) {
      return refusals_.Add(path, absl::StrFormat("a value of the class %s", value.text));
    }
    if (!WriteClass(value.text, path)) return;
    if (content == Value::Kind::kDict) out_.EmptyTuple();
    if (content == Value::Kind::kDict) out_.NewObject();
    WriteValue(value.items.front(), path);
    if (content == Value::Kind::kDict) return out_.Build();
    if (content == Value::Kind::kTuple) return out_.NewObject();
    out_.Tuple(1);
    out_.Reduce();
  }

  // ---- Tensors ----

  // Strides in a storage that holds the stored elements in the order of their memory, without gaps.
  static tensor::Dims StorageStrides(const LogicalTensor& tensor) {
    if (tensor.alias) return tensor.strides;   // counts in its base's memory
    const tensor::Dims extents = format::StoredExtents(tensor);
    std::vector<size_t> order(extents.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensor.strides[a] < tensor.strides[b]; });
    tensor::Dims strides = tensor.strides;
    int64_t next = 1;
    for (const size_t dim : order) {
      if (extents[dim] <= 1) continue;   // any stride is right; expanded ones stay 0
      strides[dim] = next;
      next *= extents[dim];
    }
    return strides;
  }

  void WriteDims(const tensor::Dims& dims) {
    if (dims.size() > 3) out_.Mark();
    for (const int64_t dim : dims) out_.Integer(dim);
    out_.Tuple(dims.size());
  }

  uint64_t StorageOf(uint32_t entry) {
    const auto [found, is_new] = storage_of_entry_.try_emplace(entry, storages_.size());
    if (is_new) storages_.push_back({entry, contents_.header().tensors[entry].bytes});
    return found->second;
  }

  void WriteStorage(const LogicalTensor& tensor, const TypeName& type, bool typed) {
    const uint64_t storage = StorageOf(tensor.stored_index), bytes = storages_[storage].bytes;
    out_.Mark();
    out_.Text("storage");
    if (typed) {
      out_.Global("torch", type.storage);
    } else {
      out_.Global("torch.storage", "UntypedStorage");
    }
    out_.Text(std::to_string(storage));
    out_.Text("cpu");
    out_.Integer(static_cast<int64_t>(typed ? bytes / ItemBytes(tensor.dtype) : bytes));
    out_.Tuple(5);
    out_.PersistentId();
  }

  absl::Status WriteTensor(const TreeNode& node) {
    const LogicalTensor& tensor = contents_.tensors()[node.index];
    const TypeName* type = TypeOf(tensor.dtype);
    if (type == nullptr) {
      refusals_.Add(tensor.name, absl::StrFormat("the type %s needs a scale, which the file does not hold", Name(tensor.dtype)));
      return absl::OkStatus();
    }
    const uint64_t item_bytes = ItemBytes(tensor.dtype);
    if (tensor.byte_offset % item_bytes != 0) {
      refusals_.Add(tensor.name, absl::StrFormat("it begins at byte %d of the memory it shares, which is no whole element",
                                                 tensor.byte_offset));
      return absl::OkStatus();
    }
    if (Flag(node, "np")) ++arrays_;
    const bool parameter = Flag(node, "param"), gradient = Flag(node, "grad"), attributes = node.attributes != nullptr;
    const bool typed = type->storage != nullptr && !mixed_.contains(tensor.stored_index) &&
                       contents_.header().tensors[tensor.stored_index].bytes % item_bytes == 0;
    // With attributes: _rebuild_parameter_with_state(tensor, gradient, hooks, state), or _rebuild_from_type_v2(function, type,
    // arguments, state), whose function is the one that makes the tensor.
    if (parameter) out_.Global("torch._utils", attributes ? "_rebuild_parameter_with_state" : "_rebuild_parameter");
    if (!parameter && attributes) out_.Global("torch._tensor", "_rebuild_from_type_v2");
    if (attributes) out_.Mark();
    out_.Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    if (!parameter && attributes) out_.Global("torch", "Tensor");
    out_.Mark();
    WriteStorage(tensor, *type, typed);
    out_.Integer(static_cast<int64_t>(tensor.byte_offset / item_bytes));
    WriteDims(tensor.shape);
    WriteDims(StorageStrides(tensor));
    out_.Bool(gradient && !parameter);
    WriteHooks();
    if (!typed) out_.Global("torch", Flag(node, "dt") ? node.extra["dt"].get<std::string>() : type->torch);   // bits1x8 and the like
    out_.Tuple(7);   // any number over three
    if (parameter || !attributes) out_.Reduce();
    if (attributes) {
      if (parameter) {
        out_.Bool(gradient);
        WriteHooks();
      }
      NEVE_RETURN_IF_ERROR(Write(*node.attributes));
      out_.Tuple(4);
      out_.Reduce();
    } else if (parameter) {
      WriteParameterEnd(gradient);
    }
    memo_[tensor.name] = out_.Memoize();
    return absl::OkStatus();
  }

  void WriteHooks() {
    out_.Global("collections", "OrderedDict");
    out_.EmptyTuple();
    out_.Reduce();
  }

  const Conversion& conversion_;
  const format::Contents& contents_;
  PickleText out_;
  Refusals& refusals_;
  const TensorNodes* const tensors_;   // null: the whole state is written, in which a tensor comes before it comes again
  std::vector<TorchStorage> storages_;
  std::map<uint32_t, uint64_t> storage_of_entry_;
  std::map<uint32_t, DType> type_of_entry_;
  std::map<uint32_t, bool> mixed_;
  std::map<std::string, uint32_t> memo_;   // of tensors, by name
  uint64_t arrays_ = 0, states_ = 0, sparse_gradients_ = 0;   // told in notes
};

}  // namespace

absl::StatusOr<TorchPickle> PickleOf(const Conversion& conversion) {
  Refusals refusals;
  return Pickler(conversion, &refusals, nullptr).Run();
}

absl::StatusOr<TorchPickle> PickleOfPart(const Conversion& conversion, const format::TreeNode& node, const format::Value* value,
                                         const TensorNodes& tensors, Refusals* refusals) {
  return Pickler(conversion, refusals, &tensors).RunPart(node, value);
}

std::string TorchTypeName(DType dtype) {
  const TypeName* type = TypeOf(dtype);
  return type == nullptr ? "" : type->torch;
}

std::string PickleOfTensor(DType dtype, const std::string& dtype_name, const tensor::Dims& shape, uint64_t bytes) {
  const TypeName* type = TypeOf(dtype);
  if (type == nullptr) return "";
  PickleText out;
  const auto dims = [&](const tensor::Dims& numbers) {
    if (numbers.size() > 3) out.Mark();
    for (const int64_t number : numbers) out.Integer(number);
    out.Tuple(numbers.size());
  };
  const bool typed = type->storage != nullptr;
  out.Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.Mark();
  out.Mark();
  out.Text("storage");
  out.Global(typed ? "torch" : "torch.storage", typed ? type->storage : "UntypedStorage");
  out.Text("0");
  out.Text("cpu");
  out.Integer(static_cast<int64_t>(typed ? bytes / ItemBytes(dtype) : bytes));
  out.Tuple(5);
  out.PersistentId();
  out.Integer(0);
  dims(shape);
  dims(tensor::ContiguousStrides(shape));
  out.Bool(false);
  out.Global("collections", "OrderedDict");
  out.EmptyTuple();
  out.Reduce();
  if (!typed) out.Global("torch", dtype_name.empty() ? type->torch : dtype_name);
  out.Tuple(7);   // any number over three
  out.Reduce();
  return std::move(out).Finish();
}

}  // namespace neve::engine
