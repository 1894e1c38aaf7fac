#include "format/pickle_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/pickle_sharing.h"
#include "format/values.h"

namespace neve::format {
namespace {

constexpr uint64_t kValueBytesMax = 4096;        // a value whose text is longer becomes a blob
constexpr uint64_t kMemoryBytesMax = 64u << 20;  // of blobs and of arrays that lie in the pickle
constexpr uint64_t kTreeNodesMax = 8u << 20;     // each costs the tree at least a byte or two, and time

// Children of a dict or a list: tensors with nothing to say are counted, the others stand.
class Children {
 public:
  explicit Children(std::string* out) : out_(out) {}
  ~Children() { Flush(); }
  void Plain() { ++run_; }
  void Node(std::string_view text) {
    Flush();
    Separate();
    out_->append(text);
  }
  void Flush() {
    if (run_ == 0) return;
    Separate();
    AppendNumber(run_, out_);
    run_ = 0;
  }

 private:
  void Separate() {
    if (!first_) out_->push_back(',');
    first_ = false;
  }
  std::string* out_;
  uint64_t run_ = 0;
  bool first_ = true;
};

std::string Join(const std::string& prefix, std::string_view part) {
  return prefix.empty() ? std::string(part) : prefix + "." + std::string(part);
}

std::string_view FactoryName(const PickleGraph& graph, PickleNode node) {
  if (graph.kind(node) == PickleKind::kNone) return "None";
  if (graph.kind(node) != PickleKind::kGlobal) return "";
  const PickleGlobal global = graph.Global(node);
  if (global.module != "builtins" && global.module != "__builtin__") return "";
  static constexpr std::string_view kNames[] = {"dict", "list", "set", "int", "float", "str"};
  const auto found = std::ranges::find(kNames, global.name);
  return found == std::end(kNames) ? "" : *found;
}

}  // namespace

absl::Status PickleTree::At(const absl::Status& status, const std::string& name) const {
  return Annotate(status, name.empty() ? "the object itself" : Quoted(name));
}

absl::Status PickleTree::Charge(uint64_t bytes) {
  charged_ += bytes;
  if (charged_ <= kHeaderBytesMax) return absl::OkStatus();
  return Exhausted(absl::StrFormat("written out, its tree takes more than %d bytes (objects that stand in very many places?)",
                                   kHeaderBytesMax));
}

absl::Status PickleTree::Build() {
  NEVE_RETURN_IF_ERROR(CheckSharing());
  std::string root;
  bool plain = false;
  NEVE_RETURN_IF_ERROR(Emit(graph_.root(), "", 0, &root, &plain));
  maker_->SetTree(std::move(root), std::move(values_text_));
  return absl::OkStatus();
}

// A small file can hold containers of containers that written out are more than any memory.
absl::Status PickleTree::CheckSharing() {
  constexpr uint64_t kRepeatsMax = 64, kAlways = 1u << 16;
  const PickleSharing sharing = FindSharing(graph_);
  if (sharing.written_out > kAlways + kRepeatsMax * graph_.size()) {
    return Unsupported(absl::StrFormat("its lists and dictionaries stand in so many places that the %d objects of the file would be "
                                       "%d when written out: that has no form as an image",
                                       graph_.size(), sharing.written_out));
  }
  if (sharing.shares) maker_->SetShared();
  return absl::OkStatus();
}

absl::Status PickleTree::Emit(PickleNode node, const std::string& name, int depth, std::string* out, bool* plain) {
  *plain = false;
  if (++nodes_ > kTreeNodesMax) {
    return At(Exhausted(absl::StrFormat("written out, its tree has more than %d nodes (objects that stand in very many places?)",
                                        kTreeNodesMax)),
              name);
  }
  if (values_.IsValue(node)) return EmitValue(node, name, out);
  if (depth > kValuesDepthMax) {
    if (opaque_depth_ > 0) return EmitOpaqueLeaf("an object that is nested too deep to be shown", name, out);
    return At(Unsupported(absl::StrFormat("it nests more than %d deep, which no image holds", kValuesDepthMax)), name);
  }
  const PickleKind kind = graph_.kind(node);
  const bool container = kind == PickleKind::kDict || kind == PickleKind::kList || kind == PickleKind::kTuple ||
                         (kind == PickleKind::kCall && values_.IsOrderedDict(node));
  if (container && !active_.insert(node).second) {
    if (opaque_depth_ > 0) return EmitOpaqueLeaf("a container that contains itself", name, out);
    return At(Unsupported("it contains itself: a list or dictionary in a circle has no form as an image"), name);
  }
  absl::Status status;
  switch (kind) {
    case PickleKind::kDict:
      status = EmitDict(graph_.Items(node), "", 0, name, depth, out);
      break;
    case PickleKind::kList:
    case PickleKind::kTuple:
      status = EmitList(graph_.Items(node), kind == PickleKind::kTuple, name, depth, out);
      break;
    case PickleKind::kCall:
      status = EmitCall(node, name, depth, out, plain);
      break;
    case PickleKind::kPersistent:
      status = EmitPersistent(node, name, depth, out, plain);
      break;
    case PickleKind::kGlobal:
      status = EmitOpaqueLeaf(graph_.Global(node).FullName(), name, out);
      break;
    default:
      status = EmitOpaque(node, name, depth, out);  // sets of objects, numbers of too many digits
  }
  if (container) active_.erase(node);
  return status;
}

absl::Status PickleTree::EmitValue(PickleNode node, const std::string& name, std::string* out) {
  const PickleKind kind = graph_.kind(node);
  std::string payload;
  if (kind == PickleKind::kText && graph_.Bytes(node).size() > kValueBytesMax) {
    payload.append("s").append(graph_.Bytes(node));
  } else if (kind == PickleKind::kBytes && graph_.Bytes(node).size() > kValueBytesMax) {
    payload.append("y").append(graph_.Bytes(node));
  } else {
    std::string text;
    if (absl::Status status = values_.Encode(node, kMemoryBytesMax, &text); !status.ok()) return At(status, name);
    if (text.size() <= kValueBytesMax) {
      values_text_ += text;
      out->append("\"v\"");
      return Charge(text.size());
    }
    payload = "v" + text;
  }
  if (maker_->memory_bytes() + payload.size() > kMemoryBytesMax) {
    return At(Exhausted(absl::StrFormat("numbers and texts of more than %d bytes in all", kMemoryBytesMax)), name);
  }
  *out += absl::StrFormat("{\"b\":%d}", maker_->AddBlob(std::move(payload)));
  return absl::OkStatus();
}

absl::Status PickleTree::EmitDict(std::span<const PickleNode> pairs, std::string_view type, PickleNode attributes,
                                  const std::string& name, int depth, std::string* out) {
  // The last of equal keys counts, at the place of the first, as in Python.
  std::vector<std::pair<std::string, PickleNode>> children;
  std::unordered_map<std::string, size_t> place;
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    std::optional<std::string> key = values_.EscapeKey(pairs[i]);
    if (!key) {  // an object, by which nothing can be named
      maker_->AddOpaque({name, "builtins.dict"});
      out->append("{\"o\":\"opaque\",\"q\":\"builtins.dict\",\"c\":[");
      ++opaque_depth_;
      NEVE_RETURN_IF_ERROR(EmitList(pairs, false, name, depth + 1, out));
      --opaque_depth_;
      out->append("]}");
      return absl::OkStatus();
    }
    const auto [at, fresh] = place.emplace(*key, children.size());
    if (fresh) {
      children.emplace_back(*std::move(key), pairs[i + 1]);
    } else {
      children[at->second].second = pairs[i + 1];
    }
  }
  out->push_back('{');
  bool plain = false;
  if (attributes != 0) {
    out->append("\"a\":");
    NEVE_RETURN_IF_ERROR(Emit(attributes, Join(name, "~a"), depth + 1, out, &plain));
    out->push_back(',');
  }
  out->append("\"d\":[");
  {
    Children list(out);
    std::string text;
    for (const auto& [key, child] : children) {
      text.assign("[");
      AppendJsonString(key, &text);
      text.push_back(',');
      NEVE_RETURN_IF_ERROR(Emit(child, Join(name, key), depth + 1, &text, &plain));
      if (plain) {
        list.Plain();
        continue;
      }
      text.push_back(']');
      NEVE_RETURN_IF_ERROR(Charge(key.size() + 4));
      list.Node(text);
    }
  }
  out->push_back(']');
  if (!type.empty()) {
    out->append(",\"t\":");
    AppendJsonString(type, out);
  }
  out->push_back('}');
  return absl::OkStatus();
}

absl::Status PickleTree::EmitList(std::span<const PickleNode> items, bool tuple, const std::string& name, int depth,
                                  std::string* out) {
  out->append("{\"l\":[");
  {
    Children list(out);
    std::string text;
    size_t index = 0;
    for (const PickleNode item : items) {
      bool plain = false;
      text.clear();
      NEVE_RETURN_IF_ERROR(Emit(item, Join(name, std::to_string(index++)), depth + 1, &text, &plain));
      if (plain) {
        list.Plain();
      } else {
        list.Node(text);
      }
    }
  }
  out->append(tuple ? "],\"t\":\"tuple\"}" : "]}");
  return absl::OkStatus();
}

absl::Status PickleTree::EmitCall(PickleNode node, const std::string& name, int depth, std::string* out, bool* plain) {
  absl::StatusOr<std::optional<TorchTensor>> tensor = ReadTorchTensor(graph_, values_, node);
  if (!tensor.ok()) return At(tensor.status(), name);
  if (*tensor) return EmitTensor(node, **tensor, name, depth, out, plain);
  const PickleCall& call = graph_.Call(node);
  std::vector<PickleNode> pairs;
  if (values_.OrderedPairs(node, &pairs)) {
    const PickleKind state = graph_.kind(call.state);
    if (state == PickleKind::kNone || state == PickleKind::kDict) return EmitDict(pairs, "O", call.state, name, depth, out);
  }
  if (graph_.IsCallOf(node, "collections", "defaultdict") && call.state == 0 && call.items.empty() &&
      graph_.kind(call.args) == PickleKind::kTuple && graph_.Items(call.args).size() <= 1) {
    const std::span<const PickleNode> args = graph_.Items(call.args);
    const std::string_view factory = FactoryName(graph_, args.empty() ? 0 : args[0]);
    if (!factory.empty()) return EmitDict(call.pairs, absl::StrFormat("D:%s", factory), 0, name, depth, out);
  }
  bool emitted = false;
  NEVE_RETURN_IF_ERROR(EmitGenerator(node, name, out, &emitted));
  return emitted ? absl::OkStatus() : EmitOpaque(node, name, depth, out);
}

// ---- objects ----

std::string PickleTree::ObjectName(PickleNode node) const {
  const PickleKind kind = graph_.kind(node);
  if (kind == PickleKind::kSet) return "builtins.set";
  if (kind == PickleKind::kFrozenSet) return "builtins.frozenset";
  if (kind == PickleKind::kLong) return "builtins.int";
  if (kind != PickleKind::kCall) return "an object";
  // How Python's own protocol makes an object of a class that has no way of its own.
  const PickleCall& call = graph_.Call(node);
  const bool through = graph_.IsCallOf(node, "copyreg", "_reconstructor") ||
                       graph_.IsCallOf(node, "copy_reg", "_reconstructor") || graph_.IsCallOf(node, "copyreg", "__newobj__") ||
                       graph_.IsCallOf(node, "copy_reg", "__newobj__");
  if (through && graph_.kind(call.args) == PickleKind::kTuple && !graph_.Items(call.args).empty()) {
    const PickleNode type = graph_.Items(call.args)[0];
    if (graph_.kind(type) == PickleKind::kGlobal) return graph_.Global(type).FullName();
  }
  return graph_.CallableName(node);
}

absl::Status PickleTree::EmitOpaqueLeaf(std::string callable, const std::string& name, std::string* out) {
  out->append("{\"o\":\"opaque\",\"q\":");
  const size_t before = out->size();
  std::string text;
  AppendJsonText(callable, &text);  // of unknown origin: perhaps no UTF-8
  *out += text + ",\"c\":[]}";
  maker_->AddOpaque({name, std::move(callable)});
  return Charge(out->size() - before + 32);
}

absl::Status PickleTree::EmitOpaque(PickleNode node, const std::string& name, int depth, std::string* out) {
  const std::string callable = ObjectName(node);
  if (!objects_.insert(node).second) return EmitOpaqueLeaf(callable, name, out);
  maker_->AddOpaque({name, callable});
  out->append("{\"o\":\"opaque\",\"q\":");
  AppendJsonText(callable, out);
  out->append(",\"c\":[");
  std::vector<std::pair<std::string_view, PickleNode>> parts;
  std::vector<PickleNode> items, pairs;
  if (graph_.kind(node) == PickleKind::kCall) {
    const PickleCall& call = graph_.Call(node);
    const bool bare = callable != graph_.CallableName(node) && graph_.Items(call.args).size() <= 3;  // (class, object, None)
    const bool nothing = graph_.kind(call.args) == PickleKind::kTuple && graph_.Items(call.args).empty();
    if (!bare && !nothing) parts.emplace_back("args", call.args);
    if (call.state != 0) parts.emplace_back("state", call.state);
    items = call.items;
    pairs = call.pairs;
  } else if (graph_.kind(node) == PickleKind::kSet || graph_.kind(node) == PickleKind::kFrozenSet) {
    items.assign(graph_.Items(node).begin(), graph_.Items(node).end());
  }
  ++opaque_depth_;
  bool plain = false;
  if (parts.size() == 1 && parts[0].first == "state" && items.empty() && pairs.empty()) {
    NEVE_RETURN_IF_ERROR(Emit(parts[0].second, name, depth + 1, out, &plain));
  } else if (!parts.empty() || !items.empty() || !pairs.empty()) {
    bool first = true;
    const auto key = [&](std::string_view part) {
      *out += absl::StrFormat("%s[\"%s\",", first ? "{\"d\":[" : ",", part);
      first = false;
      return Join(name, part);
    };
    for (const auto& [part, content] : parts) {
      NEVE_RETURN_IF_ERROR(Emit(content, key(part), depth + 1, out, &plain));
      out->push_back(']');
    }
    if (!items.empty()) {
      NEVE_RETURN_IF_ERROR(EmitList(items, false, key("items"), depth + 1, out));
      out->push_back(']');
    }
    if (!pairs.empty()) {
      NEVE_RETURN_IF_ERROR(EmitDict(pairs, "", 0, key("pairs"), depth + 1, out));
      out->push_back(']');
    }
    out->append("]}");
  }
  --opaque_depth_;
  out->append("]}");
  return absl::OkStatus();
}

// torch.Generator: (device,) and the state (seed, offset, tensor).
absl::Status PickleTree::EmitGenerator(PickleNode node, const std::string& name, std::string* out, bool* emitted) {
  constexpr uint64_t kStateBytesMax = 64u << 10;
  if (!graph_.IsCallOf(node, "torch._C", "Generator") && !graph_.IsCallOf(node, "torch", "Generator")) return absl::OkStatus();
  const PickleNode state = graph_.Call(node).state;
  if (state == 0 || graph_.kind(state) != PickleKind::kTuple || graph_.Items(state).size() != 3) return absl::OkStatus();
  NEVE_ASSIGN_OR_RETURN(const auto tensor, ReadTorchTensor(graph_, values_, graph_.Items(state)[2]));
  if (!tensor || tensor->kind != TorchTensor::Kind::kDense || tensor->storage == 0 || tensor->offset != 0)
    return absl::OkStatus();
  absl::StatusOr<TorchStorages::Found> found = storages_->Find(tensor->storage, 1);
  if (!found.ok()) return At(found.status(), name);
  std::string bytes;
  if (!storages_->ReadSmall(*found, kStateBytesMax, &bytes).ok()) return absl::OkStatus();
  std::string device = "cpu";
  const PickleNode args = graph_.Call(node).args;
  if (graph_.kind(args) == PickleKind::kTuple && graph_.Items(args).size() == 1 && values_.IsValue(graph_.Items(args)[0])) {
    std::string text;
    NEVE_RETURN_IF_ERROR(values_.Encode(graph_.Items(args)[0], kValueBytesMax, &text));
    if (text.starts_with("D'")) device = text.substr(2, text.size() - 3);
  }
  out->append("{\"o\":\"generator\",\"dev\":");
  AppendJsonText(device, out);
  *out += absl::StrFormat(",\"c\":[{\"b\":%d}]}", maker_->AddBlob("y" + bytes));
  *emitted = true;
  return absl::OkStatus();
}

}  // namespace neve::format
