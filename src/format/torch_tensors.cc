#include "format/torch_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

constexpr int kWrapsMax = 8;  // a Parameter of a moved tensor of ...: no more of these are looked through

class TensorReader {
 public:
  TensorReader(const PickleGraph& graph, const PickleValues& values) : graph_(graph), values_(values) {}

  absl::StatusOr<std::optional<TorchTensor>> Read(PickleNode node) {
    for (int wraps = 0; wraps < kWrapsMax; ++wraps) {
      if (graph_.kind(node) != PickleKind::kCall) break;
      const PickleCall& call = graph_.Call(node);
      if (graph_.kind(call.callable) != PickleKind::kGlobal || graph_.kind(call.args) != PickleKind::kTuple) break;
      PickleNode inner = 0;
      const Step step = ReadCall(call, graph_.Global(call.callable), graph_.Items(call.args), &inner);
      if (step == Step::kTensor) return std::optional(std::move(tensor_));
      if (step == Step::kBad) {
        return Damaged(
            absl::StrFormat("%s is called with arguments that it does not take", graph_.Global(call.callable).FullName()));
      }
      if (step == Step::kNone) break;
      node = inner;
    }
    return std::optional<TorchTensor>();
  }

 private:
  enum class Step : uint8_t { kNone, kTensor, kBad, kInner };
  using Args = std::span<const PickleNode>;

  Step ReadCall(const PickleCall& call, const PickleGlobal& global, Args args, PickleNode* inner) {
    if (global.module == "torch._utils") {
      if (call.state != 0 || !call.items.empty() || !call.pairs.empty()) return Step::kNone;
      return ReadUtils(global.name, args, inner);
    }
    if (global.module == "torch._tensor" && global.name == "_rebuild_from_type_v2") return ReadTyped(args, inner);
    if (global.name == "_reconstruct" && IsMultiarray(global.module)) return Is(ReadArray(call));
    if (global.name == "_frombuffer" && (global.module == "numpy.core.numeric" || global.module == "numpy._core.numeric")) {
      return Is(ReadFromBuffer(args));
    }
    return Step::kNone;
  }

  static bool IsMultiarray(std::string_view module) {
    return module == "numpy.core.multiarray" || module == "numpy._core.multiarray";
  }
  static Step Check(bool ok) { return ok ? Step::kTensor : Step::kBad; }
  static Step Is(bool ok) { return ok ? Step::kTensor : Step::kNone; }

  Step ReadUtils(std::string_view name, Args args, PickleNode* inner) {
    if (name == "_rebuild_tensor" || name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3")
      return Check(ReadDense(name, args));
    if (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state") {
      if (args.size() < 2 || !ReadBool(args[1], &tensor_.gradient)) return Step::kBad;
      tensor_.parameter = true;
      gradient_is_set_ = true;
      if (name == "_rebuild_parameter_with_state" && args.size() > 3 && !IsNothing(args[3])) tensor_.attributes = args[3];
      *inner = args[0];
      return Step::kInner;
    }
    if (name == "_rebuild_sparse_tensor" || name == "_rebuild_sparse_csr_tensor") return Check(ReadSparse(args));
    if (name == "_rebuild_meta_tensor_no_storage") return Check(ReadMeta(args));
    if (name == "_rebuild_qtensor") return Check(ReadQuantized(args));
    if (name == "_rebuild_device_tensor_from_numpy" || name == "_rebuild_device_tensor_from_cpu_tensor") {
      // (data, dtype, device, requires_grad)
      if (args.size() < 4 || graph_.kind(args[2]) != PickleKind::kText || !ReadGradient(args[3])) return Step::kBad;
      tensor_.device = graph_.Bytes(args[2]);
      *inner = args[0];
      from_device_ = true;
      return Step::kInner;
    }
    return Step::kNone;
  }

  // (function, type, arguments, state): how tensors with attributes, and of classes of one's own, are rebuilt.
  Step ReadTyped(Args args, PickleNode* inner) {
    if (args.size() != 4 || graph_.kind(args[0]) != PickleKind::kGlobal || graph_.kind(args[1]) != PickleKind::kGlobal ||
        graph_.kind(args[2]) != PickleKind::kTuple) {
      return Step::kNone;
    }
    const PickleGlobal function = graph_.Global(args[0]), type = graph_.Global(args[1]);
    const bool parameter = type.name == "Parameter" && type.module.starts_with("torch.nn");
    if (function.module != "torch._utils" || !(parameter || (type.module == "torch" && type.name == "Tensor")))
      return Step::kNone;
    tensor_.parameter = tensor_.parameter || parameter;
    if (!IsNothing(args[3])) tensor_.attributes = args[3];
    return ReadUtils(function.name, graph_.Items(args[2]), inner);
  }

  bool IsNothing(PickleNode node) const {
    return graph_.kind(node) == PickleKind::kNone ||
           ((graph_.kind(node) == PickleKind::kDict || graph_.kind(node) == PickleKind::kTuple) && graph_.Items(node).empty());
  }
  bool ReadBool(PickleNode node, bool* flag) const {
    const PickleKind kind = graph_.kind(node);
    *flag = kind == PickleKind::kTrue || (kind == PickleKind::kInteger && graph_.Integer(node) == 1);
    return *flag || kind == PickleKind::kFalse || (kind == PickleKind::kInteger && graph_.Integer(node) == 0);
  }
  // What wraps it has the last word.
  bool ReadGradient(PickleNode node) {
    bool flag = false;
    if (!ReadBool(node, &flag)) return false;
    if (!gradient_is_set_) tensor_.gradient = flag;
    gradient_is_set_ = true;
    return true;
  }
  bool ReadDims(PickleNode node, tensor::Dims* dims) const {
    constexpr size_t kRankMax = 64;
    if (graph_.IsCallOf(node, "torch", "Size")) {
      const PickleNode args = graph_.Call(node).args;
      if (graph_.kind(args) != PickleKind::kTuple || graph_.Items(args).size() != 1) return false;
      node = graph_.Items(args)[0];
    }
    const PickleKind kind = graph_.kind(node);
    if (kind == PickleKind::kInteger) {  // a shape of one dimension, as NumPy may write it
      dims->assign(1, graph_.Integer(node));
      return dims->front() >= 0;
    }
    if ((kind != PickleKind::kTuple && kind != PickleKind::kList) || graph_.Items(node).size() > kRankMax) return false;
    dims->clear();
    for (const PickleNode item : graph_.Items(node)) {
      if (graph_.kind(item) != PickleKind::kInteger || graph_.Integer(item) < 0) return false;
      dims->push_back(graph_.Integer(item));
    }
    return true;
  }
  bool ReadGeometry(PickleNode offset, PickleNode shape, PickleNode strides) {
    if (graph_.kind(offset) != PickleKind::kInteger || graph_.Integer(offset) < 0) return false;
    tensor_.offset = static_cast<uint64_t>(graph_.Integer(offset));
    return ReadDims(shape, &tensor_.shape) && ReadDims(strides, &tensor_.strides) &&
           tensor_.shape.size() == tensor_.strides.size();
  }
  bool ReadDTypeName(PickleNode node) {
    if (graph_.kind(node) != PickleKind::kGlobal || graph_.Global(node).module != "torch") return false;
    const auto name = TorchDTypeNamed(graph_.Global(node).name);
    if (!name) return false;
    tensor_.dtype_name = *name;
    tensor_.dtype = TorchDType(*name);
    return true;
  }

  // (storage, offset, shape, strides[, requires_grad, hooks[, dtype][, metadata]])
  bool ReadDense(std::string_view name, Args args) {
    const bool third = name == "_rebuild_tensor_v3";
    if (args.size() < 4 || graph_.kind(args[0]) != PickleKind::kPersistent || !ReadGeometry(args[1], args[2], args[3]))
      return false;
    tensor_.storage = args[0];
    if (args.size() > 4 && !ReadGradient(args[4])) return false;
    if (third && (args.size() < 7 || !ReadDTypeName(args[6]))) return false;
    const size_t metadata = third ? 7 : 6;
    if (args.size() <= metadata || graph_.kind(args[metadata]) != PickleKind::kDict) return true;
    const Args pairs = graph_.Items(args[metadata]);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      bool flag = false;
      if (graph_.IsText(pairs[i], "conj") && ReadBool(pairs[i + 1], &flag)) tensor_.conjugated = flag;
      if (graph_.IsText(pairs[i], "neg") && ReadBool(pairs[i + 1], &flag)) tensor_.negated = flag;
    }
    return true;
  }

  // (storage, offset, shape, strides, quantizer, requires_grad, hooks)
  bool ReadQuantized(Args args) {
    if (args.size() < 5 || graph_.kind(args[0]) != PickleKind::kPersistent || !ReadGeometry(args[1], args[2], args[3]))
      return false;
    tensor_.kind = TorchTensor::Kind::kQuantized;
    tensor_.storage = args[0];
    return true;
  }

  // (dtype, shape, strides, requires_grad)
  bool ReadMeta(Args args) {
    tensor_.kind = TorchTensor::Kind::kMeta;
    return args.size() >= 4 && ReadDTypeName(args[0]) && ReadDims(args[1], &tensor_.shape) &&
           ReadDims(args[2], &tensor_.strides) && tensor_.shape.size() == tensor_.strides.size() && ReadGradient(args[3]);
  }

  // (layout, (components.., shape[, is_coalesced]))
  bool ReadSparse(Args args) {
    tensor_.kind = TorchTensor::Kind::kSparse;
    if (args.size() != 2 || graph_.kind(args[1]) != PickleKind::kTuple) return false;
    PickleNode layout = args[0];
    if (graph_.IsCallOf(layout, "torch.serialization", "_get_layout")) {
      const PickleNode inner = graph_.Call(layout).args;
      if (graph_.kind(inner) != PickleKind::kTuple || graph_.Items(inner).size() != 1) return false;
      layout = graph_.Items(inner)[0];
    }
    std::string name;
    if (graph_.kind(layout) == PickleKind::kText) name = graph_.Bytes(layout);
    if (graph_.kind(layout) == PickleKind::kGlobal) name = graph_.Global(layout).FullName();
    if (!name.starts_with("torch.sparse_")) return false;
    tensor_.layout = name.substr(std::string_view("torch.sparse_").size());
    static constexpr std::string_view kLayouts[] = {"coo", "csr", "csc", "bsr", "bsc"};
    if (std::ranges::find(kLayouts, tensor_.layout) == std::end(kLayouts)) return false;
    const size_t count = tensor_.layout == "coo" ? 2 : 3;
    const Args data = graph_.Items(args[1]);
    if (data.size() <= count || !ReadDims(data[count], &tensor_.shape)) return false;
    tensor_.parts.assign(data.begin(), data.begin() + static_cast<ptrdiff_t>(count));
    return tensor_.layout != "coo" || data.size() <= count + 1 || graph_.kind(data[count + 1]) == PickleKind::kNone ||
           ReadBool(data[count + 1], &tensor_.coalesced);
  }

  // _reconstruct(ndarray, (0,), b'b') with the state (version, shape, dtype, is_fortran, bytes).
  bool ReadArray(const PickleCall& call) {
    if (call.state == 0 || graph_.kind(call.state) != PickleKind::kTuple) return false;
    const Args first = graph_.Items(call.args), state = graph_.Items(call.state);
    bool fortran = false;
    if (first.empty() || graph_.kind(first[0]) != PickleKind::kGlobal || graph_.Global(first[0]).FullName() != "numpy.ndarray")
      return false;
    return state.size() == 5 && ReadBool(state[3], &fortran) && FinishArray(state[1], state[2], fortran, state[4]);
  }

  // (buffer, dtype, shape, order)
  bool ReadFromBuffer(Args args) {
    if (args.size() != 4 || graph_.kind(args[3]) != PickleKind::kText) return false;
    return FinishArray(args[2], args[1], graph_.IsText(args[3], "F"), args[0]);
  }

  bool FinishArray(PickleNode shape, PickleNode dtype_node, bool fortran, PickleNode bytes) {
    const auto dtype = values_.DTypeOf(dtype_node);
    if (!dtype || !ReadDims(shape, &tensor_.shape) || !(values_.IsBytes(bytes) || graph_.kind(bytes) == PickleKind::kByteArray)) {
      return false;
    }
    tensor_.kind = from_device_ ? TorchTensor::Kind::kDense : TorchTensor::Kind::kArray;
    tensor_.bytes = bytes;
    tensor_.strides = tensor::ContiguousStrides(tensor_.shape);
    if (fortran) {
      int64_t step = 1;
      for (size_t i = 0; i < tensor_.shape.size(); ++i) {
        tensor_.strides[i] = step;
        if (__builtin_mul_overflow(step, std::max<int64_t>(tensor_.shape[i], 1), &step)) return false;
      }
    }
    std::string text = dtype->text;
    if (text[0] == '>') {   // NumPy brings what it unpickles into the order of the machine
      text[0] = '<';
      tensor_.swap = static_cast<uint32_t>(text[1] == 'U' ? 4 : text[1] == 'c' ? dtype->item_bytes / 2 : dtype->item_bytes);
    }
    tensor_.dtype = NumpyDType(text);
    if (tensor_.dtype) return true;
    if (from_device_) return false;
    // Stored by the bytes of its items.
    tensor_.numpy = text;
    tensor_.dtype = DType::kU8;
    for (int64_t& stride : tensor_.strides) {
      if (__builtin_mul_overflow(stride, static_cast<int64_t>(dtype->item_bytes), &stride)) return false;
    }
    tensor_.shape.push_back(static_cast<int64_t>(dtype->item_bytes));
    tensor_.strides.push_back(1);
    return true;
  }

  const PickleGraph& graph_;
  const PickleValues& values_;
  TorchTensor tensor_;
  bool gradient_is_set_ = false, from_device_ = false;
};

}  // namespace

absl::StatusOr<std::optional<TorchTensor>> ReadTorchTensor(const PickleGraph& graph, const PickleValues& values,
                                                           PickleNode node) {
  return TensorReader(graph, values).Read(node);
}

absl::StatusOr<TorchStorageId> ReadStorageId(const PickleGraph& graph, PickleNode persistent) {
  const PickleNode id = graph.PersistentId(persistent);
  const auto bad = [](const std::string& what) { return Damaged("a persistent id is no storage of torch: " + what); };
  if (graph.kind(id) != PickleKind::kTuple) return bad("it is no tuple");
  const std::span<const PickleNode> parts = graph.Items(id);
  if (parts.size() < 5 || !graph.IsText(parts[0], "storage")) return bad("it is not ('storage', type, key, location, count)");
  if (graph.kind(parts[1]) != PickleKind::kGlobal || graph.kind(parts[2]) != PickleKind::kText ||
      graph.kind(parts[3]) != PickleKind::kText || graph.kind(parts[4]) != PickleKind::kInteger || graph.Integer(parts[4]) < 0) {
    return bad("its parts have other types");
  }
  TorchStorageId storage;
  const PickleGlobal type = graph.Global(parts[1]);
  storage.type_name = type.FullName();
  const auto known = TorchStorage(type.module, type.name);
  if (!known) return Unsupported(absl::StrFormat("storages of type %s are not read", Quoted(storage.type_name)));
  storage.type = *known;
  storage.key = graph.Bytes(parts[2]);
  storage.location = graph.Bytes(parts[3]);
  storage.count = static_cast<uint64_t>(graph.Integer(parts[4]));
  if (storage.count > UINT64_MAX / 64) return bad("its count overflows");
  if (parts.size() > 5 && graph.kind(parts[5]) != PickleKind::kNone) storage.view = parts[5];
  return storage;
}

}  // namespace neve::format
