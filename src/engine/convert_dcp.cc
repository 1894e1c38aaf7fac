// A folder as torch.distributed.checkpoint writes it: dcp.load and dcp_to_torch_save read it.
//
//   __0_0.distcp, __0_1.distcp, ..   archives of torch, one behind the other: of each piece of a tensor, and of each leaf that is none
//   .metadata                        which there are, the boxes of the pieces, and where each lies; written last
//
// A state is taken apart as torch does it: dictionaries, and lists that hold a tensor or a dictionary somewhere; all else is one
// leaf. A leaf's name is its path joined by ".", keys that are no strings as str() gives them. A tensor larger than a file may be is
// cut along its first dimension. What torch itself loses there (empty dictionaries, which class a dictionary has) is told in a note.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/os/syscalls.h"
#include "engine/convert.h"
#include "engine/convert_pickle.h"
#include "engine/pickle_text.h"
#include "format/json_text.h"
#include "format/torch_zip_layout.h"

namespace neve::engine {
namespace {

using format::TreeNode;
using format::Value;

constexpr char kMetadataModule[] = "torch.distributed.checkpoint.metadata", kFileModule[] = "torch.distributed.checkpoint.filesystem";
constexpr char kVersion[] = "1.0.0";        // of DCP's metadata, as torch 2.13 writes it
constexpr char kArchiveRoot[] = "archive";  // as torch.save names what it writes into a stream

struct PathPart {
  std::string text;      // of a dictionary
  int64_t index = -1;    // of a list, where it is not negative
};

struct Place {
  size_t file = 0;
  uint64_t offset = 0, bytes = 0;
};

struct Rows {
  int64_t first = 0, count = 0;   // along the first dimension; a scalar has none
  Place place;
};

struct Leaf {
  std::string name;
  std::vector<PathPart> path;
  const TreeNode* node = nullptr;
  std::shared_ptr<const Value> value;                  // of a leaf within a value
  const format::LogicalTensor* tensor = nullptr;       // null: pickled as an object
  std::string dtype_name;
  bool gradient = false;
  std::optional<size_t> same;                          // an earlier leaf, which is the same tensor
  std::vector<Rows> rows;
  Place place;
};

std::string FileName(size_t number) { return absl::StrFormat("__0_%d.distcp", number); }

uint64_t BytesOf(const format::LogicalTensor& tensor) {
  uint64_t bytes = ItemBytes(tensor.dtype);
  for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
  return bytes;   // CheckLogicalSize has seen to it that it does not overflow
}

bool IsDict(const Value& value) {
  return value.kind == Value::Kind::kDict || value.kind == Value::Kind::kOrderedDict || value.kind == Value::Kind::kCounter;
}

bool IsTakenApart(const Value& value) {
  if (IsDict(value)) return true;
  return value.kind == Value::Kind::kList && std::any_of(value.items.begin(), value.items.end(), IsTakenApart);
}

// As torch decides it: a list counts when a tensor, a dictionary or such a list is in it.
bool IsTakenApart(const TreeNode& node) {
  switch (node.kind) {
    case TreeNode::Kind::kDict: return true;
    case TreeNode::Kind::kComposite: return node.type == "state" && node.children.size() == 1;
    case TreeNode::Kind::kValue: {
      format::ValuesReader reader(node.text);
      const absl::StatusOr<Value> value = reader.Next();
      return value.ok() && IsTakenApart(*value);
    }
    case TreeNode::Kind::kList:
      return node.type.empty() && std::any_of(node.children.begin(), node.children.end(), [](const TreeNode& child) {
        return child.kind == TreeNode::Kind::kTensor || child.kind == TreeNode::Kind::kSame || child.kind == TreeNode::Kind::kMeta ||
               child.kind == TreeNode::Kind::kComposite || IsTakenApart(child);
      });
    default: return false;
  }
}

// Finds the leaves.
class Splitter {
 public:
  Splitter(const Conversion& conversion, Refusals* refusals) : conversion_(conversion), refusals_(*refusals) {}

  absl::Status Run() {
    const TreeNode& root = conversion_.tree.root;
    if (root.kind != TreeNode::Kind::kDict && !(root.kind == TreeNode::Kind::kComposite && IsTakenApart(root))) {
      refusals_.Add("", "a folder of torch.distributed.checkpoint holds a dictionary");
      return absl::OkStatus();
    }
    FindTensors(root);
    return Visit(root, {});
  }

  std::vector<Leaf> leaves;
  TensorNodes tensors;                  // by name
  std::vector<std::string> empty;       // names of empty dictionaries
  uint64_t other_keys = 0, classes = 0; // keys that are no strings; dictionaries of a class or with attributes

 private:
  void FindTensors(const TreeNode& node) {
    if (node.kind == TreeNode::Kind::kTensor) tensors[conversion_.contents->tensors()[node.index].name] = &node;
    for (const TreeNode& child : node.children) FindTensors(child);
    if (node.attributes != nullptr) FindTensors(*node.attributes);
  }

  // What str() gives of a key; none: refused.
  std::optional<std::string> TextOf(const Value& key, const std::string& path) {
    if (key.kind == Value::Kind::kText) return key.text;
    ++other_keys;
    if (key.kind == Value::Kind::kInteger && !key.text.starts_with("0x") && !key.text.starts_with("-0x")) return key.text;
    if (key.kind == Value::Kind::kBool) return key.flag ? "True" : "False";
    if (key.kind == Value::Kind::kNone) return "None";
    refusals_.Add(path, "its key is neither text nor a whole number");
    return std::nullopt;
  }

  static std::string NameOf(const std::vector<PathPart>& path) {
    return absl::StrJoin(path, ".", [](std::string* out, const PathPart& part) {
      out->append(part.index < 0 ? part.text : std::to_string(part.index));
    });
  }

  void Emit(Leaf leaf) {
    leaf.name = NameOf(leaf.path);
    if (!names_.insert(leaf.name).second) {
      refusals_.Add(leaf.node->path, absl::StrFormat("two things would be called %s there", format::Quoted(leaf.name)));
    }
    leaves.push_back(std::move(leaf));
  }

  absl::Status Visit(const TreeNode& node, std::vector<PathPart> path) {
    if (!IsTakenApart(node)) return VisitLeaf(node, std::move(path));
    switch (node.kind) {
      case TreeNode::Kind::kComposite: return Visit(node.children.front(), std::move(path));   // its state_dict
      case TreeNode::Kind::kValue: {
        format::ValuesReader reader(node.text);
        NEVE_ASSIGN_OR_RETURN(Value value, reader.Next());
        return VisitValue(node, std::make_shared<const Value>(std::move(value)), std::move(path));
      }
      case TreeNode::Kind::kList:
        for (size_t i = 0; i < node.children.size(); ++i) {
          std::vector<PathPart> below = path;
          below.push_back({"", static_cast<int64_t>(i)});
          NEVE_RETURN_IF_ERROR(Visit(node.children[i], std::move(below)));
        }
        return absl::OkStatus();
      default: break;
    }
    if (node.children.empty()) empty.push_back(NameOf(path));
    if (!node.type.empty() || node.attributes != nullptr) ++classes;
    for (const TreeNode& child : node.children) {
      std::vector<PathPart> below = path;
      if (conversion_.tree.flat) {
        below.push_back({child.key});
      } else {
        NEVE_ASSIGN_OR_RETURN(const Value key, format::KeyOf(child.key));
        const std::optional<std::string> text = TextOf(key, child.path);
        if (!text) continue;
        below.push_back({*text});
      }
      NEVE_RETURN_IF_ERROR(Visit(child, std::move(below)));
    }
    return absl::OkStatus();
  }

  absl::Status VisitValue(const TreeNode& node, std::shared_ptr<const Value> value, std::vector<PathPart> path) {
    if (!IsTakenApart(*value)) {
      Emit({.path = std::move(path), .node = &node, .value = std::move(value)});
      return absl::OkStatus();
    }
    const size_t step = IsDict(*value) ? 2 : 1;
    if (step == 2 && value->items.empty()) empty.push_back(NameOf(path));
    if (step == 2 && value->kind != Value::Kind::kDict) ++classes;
    for (size_t i = 0; i + step <= value->items.size(); i += step) {
      std::vector<PathPart> below = path;
      if (step == 1) {
        below.push_back({"", static_cast<int64_t>(i)});
      } else {
        const std::optional<std::string> text = TextOf(value->items[i], node.path);
        if (!text) continue;
        below.push_back({*text});
      }
      // A part of the value, which lives as long as all of it.
      NEVE_RETURN_IF_ERROR(VisitValue(node, std::shared_ptr<const Value>(value, &value->items[i + step - 1]), std::move(below)));
    }
    return absl::OkStatus();
  }

  absl::Status VisitLeaf(const TreeNode& node, std::vector<PathPart> path) {
    Leaf leaf{.path = std::move(path), .node = &node};
    const TreeNode* tensor = node.kind == TreeNode::Kind::kTensor ? &node : nullptr;
    if (node.kind == TreeNode::Kind::kSame) {
      const auto found = tensors.find(node.text);
      if (found == tensors.end()) return Damaged(absl::StrFormat("%s is the tensor %s, which is not there", format::Quoted(node.path),
                                                                 format::Quoted(node.text)));
      tensor = found->second;
    }
    if (tensor != nullptr) {
      leaf.tensor = &conversion_.contents->tensors()[tensor->index];
      if (tensor->extra.is_object()) {
        leaf.gradient = tensor->extra.contains("grad");
        leaf.dtype_name = tensor->extra.value("dt", "");
      }
      if (leaf.dtype_name.empty()) leaf.dtype_name = TorchTypeName(leaf.tensor->dtype);
      if (leaf.dtype_name.empty()) {
        refusals_.Add(node.path, absl::StrFormat("the type %s needs a scale, which the file does not hold", Name(leaf.tensor->dtype)));
      }
      if (tensor->attributes != nullptr) refusals_.Add(node.path, "attributes are set on it");
      const auto [first, is_new] = first_.try_emplace(tensor->index, leaves.size());
      if (!is_new) leaf.same = first->second;
    }
    Emit(std::move(leaf));
    return absl::OkStatus();
  }

  const Conversion& conversion_;
  Refusals& refusals_;
  std::set<std::string> names_;
  std::map<uint64_t, size_t> first_;    // the first leaf of a tensor, by its index
};

// Lays the leaves out in files.
class Writer {
 public:
  Writer(const Conversion& conversion, Splitter* split, Refusals* refusals)
      : conversion_(conversion), split_(*split), refusals_(*refusals) {}

  absl::Status Run() {
    streams_.push_back(std::make_unique<OutputStream>());
    for (Leaf& leaf : split_.leaves) {   // what is no tensor comes first, as torch has it
      if (leaf.tensor == nullptr) NEVE_RETURN_IF_ERROR(AddObject(&leaf));
    }
    if (!refusals_.ToStatus("").ok()) return absl::OkStatus();
    for (Leaf& leaf : split_.leaves) {
      if (leaf.tensor != nullptr && !leaf.same) NEVE_RETURN_IF_ERROR(AddTensor(&leaf));
    }
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<OutputStream>>& streams() { return streams_; }

 private:
  Place Add(const MakeLayout& make_layout, std::vector<Fill> storages, uint64_t bytes) {
    if (in_file_ > 0 && bytes > conversion_.options->shard_bytes - std::min(in_file_, conversion_.options->shard_bytes)) {
      streams_.push_back(std::make_unique<OutputStream>());
      in_file_ = 0;
    }
    in_file_ += bytes;
    OutputStream* const stream = streams_.back().get();
    Place place{streams_.size() - 1, stream->bytes(), 0};
    AddTorchArchive(make_layout, std::move(storages), stream);
    place.bytes = stream->bytes() - place.offset;
    return place;
  }

  // Layouts and pickles are made again when they are written: all of them together would be too much memory.
  absl::Status AddObject(Leaf* leaf) {
    const auto pickle_of = [this, node = leaf->node, value = leaf->value](Refusals* refusals) {
      return PickleOfPart(conversion_, *node, value.get(), split_.tensors, refusals);
    };
    NEVE_ASSIGN_OR_RETURN(const TorchPickle pickle, pickle_of(&refusals_));
    std::vector<Fill> storages;
    std::vector<uint64_t> sizes;
    uint64_t bytes = 0;
    for (const TorchStorage& storage : pickle.storages) {
      storages.push_back(StorageBytes(*conversion_.contents, storage.entry));
      sizes.push_back(storage.bytes);
      bytes += storage.bytes;
    }
    NEVE_RETURN_IF_ERROR(format::TorchZipLayout::Build(kArchiveRoot, format::kTorchZipAlignment, pickle.pickle, sizes).status());
    leaf->place = Add([pickle_of, sizes] {
      Refusals none;
      return std::make_shared<const format::TorchZipLayout>(
          *format::TorchZipLayout::Build(kArchiveRoot, format::kTorchZipAlignment, pickle_of(&none)->pickle, sizes));
    }, std::move(storages), bytes);
    return absl::OkStatus();
  }

  absl::Status AddTensor(Leaf* leaf) {
    const format::LogicalTensor& tensor = *leaf->tensor;
    const uint64_t bytes = BytesOf(tensor);
    const int64_t extent = tensor.shape.empty() ? 1 : tensor.shape[0];
    const uint64_t row_bytes = extent == 0 ? 0 : bytes / static_cast<uint64_t>(extent);
    int64_t together = std::max<int64_t>(extent, 1);
    if (bytes > conversion_.options->shard_bytes) {
      together = static_cast<int64_t>(std::max<uint64_t>(1, conversion_.options->shard_bytes / std::max<uint64_t>(row_bytes, 1)));
    }
    const Fill all = LogicalBytes(*conversion_.contents, tensor);
    int64_t first = 0;
    do {
      Rows rows{first, std::min(together, extent - first), {}};
      tensor::Dims shape = tensor.shape;
      if (!shape.empty()) shape[0] = rows.count;
      const uint64_t begin = static_cast<uint64_t>(first) * row_bytes, piece = static_cast<uint64_t>(rows.count) * row_bytes;
      const MakeLayout make_layout = [dtype = tensor.dtype, name = leaf->dtype_name, shape, piece] {
        const uint64_t sizes[] = {piece};
        return std::make_shared<const format::TorchZipLayout>(*format::TorchZipLayout::Build(
            kArchiveRoot, format::kTorchZipAlignment, PickleOfTensor(dtype, name, shape, piece), sizes));
      };
      std::vector<Fill> storage;
      storage.push_back([all, begin](uint64_t at, std::span<std::byte> target) { return all(begin + at, target); });
      rows.place = Add(make_layout, std::move(storage), piece);
      leaf->rows.push_back(rows);
      first += rows.count;
    } while (first < extent);
    return absl::OkStatus();
  }

  const Conversion& conversion_;
  Splitter& split_;
  Refusals& refusals_;
  std::vector<std::unique_ptr<OutputStream>> streams_;   // a file each
  uint64_t in_file_ = 0;                                 // bytes of tensors in the last one
};

// The pickle of torch.distributed.checkpoint.metadata.Metadata.
class MetadataPickle {
 public:
  explicit MetadataPickle(const std::vector<Leaf>& leaves) : leaves_(leaves) {}

  std::string Make() && {
    Begin(kMetadataModule, "Metadata");
    out_.Text("state_dict_metadata");
    Dict([&] {
      for (const Leaf& leaf : leaves_) {
        out_.Text(leaf.name);
        leaf.tensor != nullptr ? Tensor(leaf) : Plain(kMetadataModule, "BytesStorageMetadata");
      }
    });
    out_.Text("planner_data");
    Dict([&] {
      for (const Leaf& leaf : leaves_) {
        out_.Text(leaf.name);
        Path(leaf.path);
      }
    });
    out_.Text("storage_data");
    Dict([&] {
      for (const Leaf& leaf : leaves_) {
        if (leaf.tensor == nullptr) Entry(leaf, nullptr, 0, leaf.place);
        const std::vector<Rows>& rows = RowsOf(leaf);
        for (size_t i = 0; i < rows.size(); ++i) Entry(leaf, &rows[i], i, rows[i].place);
      }
    });
    out_.Text("version");
    out_.Text(kVersion);
    End();
    return std::move(out_).Finish();
  }

 private:
  // An object of a class, and its fields between Begin and End.
  void Plain(const char* module, const char* name) {
    out_.Global(module, name);
    out_.EmptyTuple();
    out_.NewObject();
  }
  void Begin(const char* module, const char* name) {
    Plain(module, name);
    out_.EmptyDict();
    out_.Mark();
  }
  void End() {
    out_.SetItems();
    out_.Build();
  }
  template <typename Items>
  void Dict(Items items) {
    out_.EmptyDict();
    out_.Mark();
    items();
    out_.SetItems();
  }
  void Size(const tensor::Dims& dims) {
    out_.Global("torch", "Size");
    if (dims.size() > 3) out_.Mark();
    for (const int64_t dim : dims) out_.Integer(dim);
    out_.Tuple(dims.size());
    out_.Tuple(1);
    out_.Reduce();
  }
  static tensor::Dims Offset(const Leaf& leaf, const Rows& rows) {
    tensor::Dims offset(leaf.tensor->shape.size(), 0);
    if (!offset.empty()) offset[0] = rows.first;
    return offset;
  }
  static tensor::Dims Extents(const Leaf& leaf, const Rows& rows) {
    tensor::Dims extents = leaf.tensor->shape;
    if (!extents.empty()) extents[0] = rows.count;
    return extents;
  }
  const std::vector<Rows>& RowsOf(const Leaf& leaf) const { return leaf.same ? leaves_[*leaf.same].rows : leaf.rows; }

  void Tensor(const Leaf& leaf) {
    Begin(kMetadataModule, "TensorStorageMetadata");
    out_.Text("properties");
    Plain(kMetadataModule, "TensorProperties");
    out_.Mark();   // (dtype, layout, requires_grad, memory format, pinned)
    out_.Global("torch", leaf.dtype_name);
    out_.Global("torch.serialization", "_get_layout");
    out_.Text("torch.strided");
    out_.Tuple(1);
    out_.Reduce();
    out_.Bool(leaf.gradient);
    out_.Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
    out_.Integer(0);
    out_.Tuple(1);
    out_.Reduce();
    out_.Bool(false);
    out_.Tuple(5);
    out_.Build();
    out_.Text("size");
    Size(leaf.tensor->shape);
    out_.Text("chunks");
    out_.EmptyList();
    out_.Mark();
    for (const Rows& rows : RowsOf(leaf)) {
      Begin(kMetadataModule, "ChunkStorageMetadata");
      out_.Text("offsets");
      Size(Offset(leaf, rows));
      out_.Text("sizes");
      Size(Extents(leaf, rows));
      End();
    }
    out_.Appends();
    End();
  }

  void Path(const std::vector<PathPart>& path) {
    if (path.size() > 3) out_.Mark();
    for (const PathPart& part : path) {
      if (part.index < 0) {
        out_.Text(part.text);
      } else {
        out_.Integer(part.index);
      }
    }
    out_.Tuple(path.size());
  }

  // rows: null for what is no tensor.
  void Entry(const Leaf& leaf, const Rows* rows, size_t index, const Place& place) {
    Begin(kMetadataModule, "MetadataIndex");
    out_.Text("fqn");
    out_.Text(leaf.name);
    out_.Text("index");
    if (rows == nullptr) {
      out_.None();
    } else {
      out_.Integer(static_cast<int64_t>(index));
      out_.Text("offset");
      Size(Offset(leaf, *rows));
    }
    End();
    Begin(kFileModule, "_StorageInfo");
    out_.Text("relative_path");
    out_.Text(FileName(place.file));
    out_.Text("offset");
    out_.Integer(static_cast<int64_t>(place.offset));
    out_.Text("length");
    out_.Integer(static_cast<int64_t>(place.bytes));
    End();
  }

  const std::vector<Leaf>& leaves_;
  PickleText out_;
};

void AddNotes(const Splitter& split, ConvertReport* report) {
  if (split.other_keys > 0) {
    report->notes.push_back(absl::StrFormat("%d keys that are no strings became text, as torch.distributed.checkpoint writes them",
                                            split.other_keys));
  }
  if (split.classes > 0) {
    report->notes.push_back(absl::StrFormat("%d dictionaries of a class of their own became plain ones", split.classes));
  }
  for (size_t i = 0; i < split.empty.size(); ++i) {
    if (i == 8) {
      report->notes.push_back(absl::StrFormat("and %d more empty dictionaries", split.empty.size() - i));
      break;
    }
    report->notes.push_back(absl::StrFormat("%s is an empty dictionary, for which such a folder has no place",
                                            format::Quoted(split.empty[i].empty() ? "the root" : split.empty[i])));
  }
}

}  // namespace

absl::Status ConvertToDcp(const Conversion& conversion, const Target& target) {
  NEVE_RETURN_IF_ERROR(CheckLogicalSize(*conversion.source));
  Refusals refusals;
  Splitter split(conversion, &refusals);
  NEVE_RETURN_IF_ERROR(split.Run());
  Writer writer(conversion, &split, &refusals);
  NEVE_RETURN_IF_ERROR(writer.Run());
  NEVE_RETURN_IF_ERROR(refusals.ToStatus("a folder of torch.distributed.checkpoint"));
  AddNotes(split, conversion.report);
  std::string metadata = MetadataPickle(split.leaves).Make();
  conversion.report->bytes = metadata.size();
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFolder> folder, OutputFolder::Begin(target.out));
  for (size_t i = 0; i < writer.streams().size(); ++i) {
    Target file = target;
    file.out = folder->Add(FileName(i));
    NEVE_RETURN_IF_ERROR(WriteFileFrom(file, writer.streams()[i].get()));
    conversion.report->bytes += writer.streams()[i]->bytes();
  }
  // Last: without it the folder is no checkpoint to anybody, should what follows be cut short.
  NEVE_RETURN_IF_ERROR(os::WriteFileExclusive(folder->Add(".metadata"), metadata));
  return folder->Finish();
}

}  // namespace neve::engine
