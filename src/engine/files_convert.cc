#include <fnmatch.h>

#include <algorithm>
#include <memory>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/convert.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/read_box.h"
#include "neve/files.h"

namespace neve {
namespace engine {

using format::TreeNode;

void Refusals::Add(const std::string& path, const std::string& why) {
  lines_.push_back(format::Quoted(path.empty() ? "the root" : path) + ": " + why);
}

void Refusals::AddUnlessTree(const std::string& path, const std::string& why) {
  Add(path, why);
  ++unless_tree_;
}

absl::Status Refusals::ToStatus(const std::string& target) const {
  if (lines_.empty()) return absl::OkStatus();
  constexpr size_t kShown = 10;
  std::string text = absl::StrFormat("%s cannot hold:", target);
  for (size_t i = 0; i < lines_.size() && i < kShown; ++i) text += "\n  " + lines_[i];
  if (lines_.size() > kShown) text += absl::StrFormat("\n  and %d more", lines_.size() - kShown);
  text += "\n";
  if (unless_tree_ > 0) text += "add --tree to write what it names, so that neve reads it back as it was; ";
  return Unsupported(text + "leave it out with --drop NAME (a glob such as 'optimizer.*' will do), or choose another format; nothing was "
                            "written");
}

namespace {

// A component of a name that stands for a string key, as it stands or escaped.
bool IsTextKey(const std::string& key) {
  return !key.starts_with('~') || key.starts_with("~~") || key.starts_with("~e") || key.starts_with("~j");
}

void RefuseKeys(const TreeNode& node, Refusals* refusals) {
  const bool composite = node.kind == TreeNode::Kind::kComposite;
  if (composite) {
    refusals->AddUnlessTree(node.path, absl::StrFormat("%s is made of parts, which plain readers see apart (--tree writes it so)",
                                                       node.text.empty() ? node.type + " tensor" : node.text));
  }
  if (node.kind == TreeNode::Kind::kMeta) refusals->AddUnlessTree(node.path, "a tensor without bytes (--tree keeps its shape)");
  for (const TreeNode& child : node.children) {
    if (node.kind == TreeNode::Kind::kDict && !IsTextKey(child.key)) {
      refusals->AddUnlessTree(child.path, "its key is no string (--tree writes it escaped)");
      continue;   // all below it has the same fault
    }
    RefuseKeys(child, refusals);
  }
}

}  // namespace

void RefuseMisread(const Conversion& conversion, bool keys_only, Refusals* refusals) {
  if (conversion.options->tree) return;
  if (!conversion.tree.flat) RefuseKeys(conversion.tree.root, refusals);
  if (keys_only) return;
  for (const SourceTensor* tensor : conversion.tensors) {
    if (HasSafetensorsName(tensor->tensor->dtype)) continue;
    refusals->AddUnlessTree(tensor->name, absl::StrFormat("plain readers have no type %s and would see bytes (--tree writes it so)",
                                                          Name(tensor->tensor->dtype)));
  }
}

void RefuseObjects(const TreeNode& node, Refusals* refusals) {
  switch (node.kind) {
    case TreeNode::Kind::kValue: {
      format::ValuesReader reader(node.text);
      const absl::StatusOr<format::Value> value = reader.Next();
      refusals->Add(node.path, "it is no tensor but " + (value.ok() ? format::DescribeValue(*value, 40) : std::string("a value")));
      return;
    }
    case TreeNode::Kind::kBlob: refusals->Add(node.path, "it is no tensor but an object"); return;
    case TreeNode::Kind::kMeta: refusals->Add(node.path, "it has no bytes"); return;
    case TreeNode::Kind::kComposite:
    case TreeNode::Kind::kOpaque:
      refusals->Add(node.path, absl::StrFormat("it is no tensor but %s", node.text.empty() ? node.type : node.text));
      return;
    case TreeNode::Kind::kTensor:
      if (node.attributes != nullptr) refusals->Add(node.path, "attributes are set on it");
      break;
    default: break;
  }
  for (const TreeNode& child : node.children) RefuseObjects(child, refusals);
}

void RefuseOpaque(const TreeNode& node, Refusals* refusals) {
  if (node.kind == TreeNode::Kind::kOpaque) {
    return refusals->Add(node.path, absl::StrFormat("an object that only running %s would bring back", node.type));
  }
  for (const TreeNode& child : node.children) RefuseOpaque(child, refusals);
  if (node.attributes != nullptr) RefuseOpaque(*node.attributes, refusals);
}

absl::StatusOr<std::string> ReadBlob(const format::Contents& contents, uint64_t number) {
  constexpr uint64_t kBlobMax = 64u << 20;
  const std::string name = std::string(format::kBlobPrefix) + std::to_string(number);
  const std::string& file = contents.files().front();
  const format::HeaderTensor* stored = contents.header().Find(name);
  if (stored == nullptr || stored->bytes < format::kBlobPrefixBytes) return Damaged(absl::StrFormat("%s has no %s", file, name));
  std::byte prefix[format::kBlobPrefixBytes];
  NEVE_RETURN_IF_ERROR(contents.Read(stored->offset, prefix));
  uint64_t bytes = 0;
  for (size_t i = 0; i < sizeof(prefix); ++i) bytes |= uint64_t{std::to_integer<uint8_t>(prefix[i])} << (8 * i);
  if (bytes > stored->bytes - sizeof(prefix)) {
    return Damaged(absl::StrFormat("%s: %s announces %d bytes of %d", file, name, bytes, stored->bytes));
  }
  if (bytes > kBlobMax) return Unsupported(absl::StrFormat("%s: the object in %s has %d bytes", file, name, bytes));
  std::string payload(bytes, '\0');
  NEVE_RETURN_IF_ERROR(contents.Read(stored->offset + sizeof(prefix), std::as_writable_bytes(std::span(payload))));
  return payload;
}

Fill LogicalBytes(const format::Contents& contents, const format::LogicalTensor& tensor) {
  const bool own = !tensor.alias && format::StoredExtents(tensor) == tensor.shape;
  if (own) {
    return [&contents, begin_of = contents.header().tensors[tensor.stored_index].offset](uint64_t begin, std::span<std::byte> to) {
      return contents.Read(begin_of + begin, to);
    };
  }
  return [&contents, &tensor](uint64_t begin, std::span<std::byte> target) {
    const uint64_t item = ItemBytes(tensor.dtype), first = begin / item, end = (begin + target.size() + item - 1) / item;
    if (begin % item == 0 && target.size() % item == 0) {
      return format::ReadElements(contents, tensor, first, end - first, target);
    }
    std::vector<std::byte> whole((end - first) * item);   // the range cuts elements
    NEVE_RETURN_IF_ERROR(format::ReadElements(contents, tensor, first, end - first, whole));
    std::copy_n(whole.begin() + static_cast<ptrdiff_t>(begin - first * item), target.size(), target.begin());
    return absl::OkStatus();
  };
}

namespace {

// ---- --drop ----

class Dropper {
 public:
  Dropper(const std::vector<std::string>& patterns, std::vector<std::string>* dropped)
      : patterns_(patterns), used_(patterns.size()), dropped_(dropped) {}

  void Run(TreeNode* node, std::set<uint64_t>* tensors) {
    const bool list = node->kind == TreeNode::Kind::kList;
    if (node->kind != TreeNode::Kind::kDict && !list) return;   // what is composed stays whole
    std::vector<TreeNode> kept;
    for (TreeNode& child : node->children) {
      if (!Matches(child.path)) {
        Run(&child, tensors);
        kept.push_back(std::move(child));
        continue;
      }
      dropped_->push_back(child.path);
      Collect(child, tensors);
      if (!list) continue;
      TreeNode none;   // the places of a list are its keys
      none.key = child.key;
      none.path = child.path;
      none.text = "n";
      kept.push_back(std::move(none));
    }
    node->children = std::move(kept);
  }

  absl::Status CheckAllUsed() const {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (used_[i]) continue;
      return Invalid(absl::StrFormat("--drop %s: nothing of that name is there (`neve inspect --tree` shows the names)", patterns_[i]));
    }
    return absl::OkStatus();
  }

 private:
  bool Matches(const std::string& path) {
    bool any = false;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (patterns_[i] != path && ::fnmatch(patterns_[i].c_str(), path.c_str(), FNM_NOESCAPE) != 0) continue;
      used_[i] = any = true;
    }
    return any;
  }

  static void Collect(const TreeNode& node, std::set<uint64_t>* tensors) {
    if (node.kind == TreeNode::Kind::kTensor) tensors->insert(node.index);
    for (const TreeNode& child : node.children) Collect(child, tensors);
    if (node.attributes != nullptr) Collect(*node.attributes, tensors);
  }

  const std::vector<std::string>& patterns_;
  std::vector<bool> used_;
  std::vector<std::string>* dropped_;
};

void CollectSame(const TreeNode& node, std::vector<const TreeNode*>* same) {
  if (node.kind == TreeNode::Kind::kSame) same->push_back(&node);
  for (const TreeNode& child : node.children) CollectSame(child, same);
  if (node.attributes != nullptr) CollectSame(*node.attributes, same);
}

absl::Status Drop(const ConvertOptions& options, Conversion* conversion) {
  std::set<uint64_t> gone;
  Dropper dropper(options.drop, &conversion->report->dropped);
  dropper.Run(&conversion->tree.root, &gone);
  NEVE_RETURN_IF_ERROR(dropper.CheckAllUsed());
  std::set<std::string_view> names;
  std::map<std::string_view, const SourceTensor*> again;
  for (uint64_t i = 0; i < conversion->source->tensors.size(); ++i) {
    const SourceTensor& tensor = conversion->source->tensors[i];
    if (tensor.again) again.emplace(tensor.name, &tensor);
    if (tensor.again || gone.contains(i)) continue;
    conversion->tensors.push_back(&tensor);
    if (!gone.empty()) names.insert(tensor.name);
  }
  conversion->names = conversion->tensors;
  std::vector<const TreeNode*> same;
  CollectSame(conversion->tree.root, &same);
  for (const TreeNode* node : same) {
    if (const auto found = again.find(node->path); found != again.end()) conversion->names.push_back(found->second);
    if (gone.empty() || names.contains(node->text)) continue;
    return Invalid(absl::StrFormat("--drop: %s is the same tensor as %s; drop it too", format::Quoted(node->path),
                                   format::Quoted(node->text)));
  }
  return absl::OkStatus();
}

// ---- Which target ----

bool EndsWith(std::string_view text, std::string_view end) { return text.ends_with(end); }

absl::StatusOr<TargetKind> TargetOf(const std::string& out, const std::string& to) {
  if (to == "pt") return TargetKind::kTorch;
  if (to == "safetensors") return TargetKind::kSafetensors;
  if (to == "hf") return TargetKind::kHuggingFace;
  if (to == "step") return TargetKind::kStep;
  if (to == "npz") return TargetKind::kNpz;
  if (to == "dcp") return TargetKind::kDcp;
  if (!to.empty()) return Invalid(absl::StrFormat("--to %s: it is pt, safetensors, hf, dcp, step or npz", to));
  for (const char* end : {".pt", ".pth", ".ckpt", ".bin"}) {
    if (EndsWith(out, end)) return TargetKind::kTorch;
  }
  if (EndsWith(out, ".safetensors")) return TargetKind::kSafetensors;
  if (EndsWith(out, ".npz")) return TargetKind::kNpz;
  return Invalid(absl::StrFormat("the name %s does not tell the format; say --to pt, safetensors, hf, dcp, step or npz", out));
}

const char* WordsOf(TargetKind kind) {
  switch (kind) {
    case TargetKind::kTorch: return "torch zip";
    case TargetKind::kSafetensors: return "safetensors";
    case TargetKind::kHuggingFace: return "huggingface";
    case TargetKind::kStep: return "neve step";
    case TargetKind::kNpz: return "npz";
    case TargetKind::kDcp: return "dcp";
  }
  return "?";
}

std::string PathOf(const std::string& place) { return place.starts_with("file:") ? place.substr(5) : place; }

absl::Status RefuseSame(const Source& source, const std::string& out) {
  const absl::StatusOr<struct ::stat> target = os::Stat(out);
  if (!target.ok()) return absl::OkStatus();   // not there yet
  std::vector<std::string> inputs = {PathOf(source.place)};
  inputs.insert(inputs.end(), source.contents->files().begin(), source.contents->files().end());
  for (const std::string& input : inputs) {
    const absl::StatusOr<struct ::stat> facts = os::Stat(input);
    if (facts.ok() && facts->st_dev == target->st_dev && facts->st_ino == target->st_ino) {
      return Invalid(absl::StrFormat("%s is what is read; write under another name", out));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace engine

absl::StatusOr<ConvertReport> ConvertPlace(const std::string& in, const std::string& out, const ConvertOptions& options,
                                           const Progress& progress) {
  using namespace engine;   // NOLINT: the parts of this very function
  const std::string path = PathOf(out);
  NEVE_ASSIGN_OR_RETURN(const TargetKind kind, TargetOf(path, options.to));
  SourceOptions from = options.source;
  if (kind == TargetKind::kStep && from.step >= 0) {   // what has no steps to choose from: the number of the one that is made
    NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(in));
    if (!CheckSelection(info, in, from.step, -1).ok()) from.step = -1;
  }
  NEVE_ASSIGN_OR_RETURN(const Source source, OpenSource(in, from));
  NEVE_RETURN_IF_ERROR(RefuseSame(source, path));
  ConvertReport report;
  report.from = source.kind;
  report.to = WordsOf(kind);
  report.notes = source.notes;
  Conversion conversion;
  conversion.source = &source;
  conversion.contents = source.contents.get();
  conversion.report = &report;
  conversion.options = &options;
  NEVE_ASSIGN_OR_RETURN(conversion.tree, format::ReadStateTree(conversion.contents->header(), conversion.contents->tensors()));
  NEVE_RETURN_IF_ERROR(Drop(options, &conversion));
  report.tensors = conversion.tensors.size();
  const auto crew = sync::Crew::Create(source.bytes < kDefaultChunkBytes ? 0 : std::min(sync::UsableCores() - 1, 7));
  uint64_t done = 0;
  Target target{path, crew.get(), {}, [&conversion] { return conversion.contents->CheckRead(); }};
  if (progress) {
    target.advance = [&](uint64_t bytes) {
      done += bytes;
      progress(std::min(done, source.bytes), source.bytes);
    };
  }
  switch (kind) {
    case TargetKind::kTorch: NEVE_RETURN_IF_ERROR(ConvertToTorch(conversion, target)); break;
    case TargetKind::kSafetensors: NEVE_RETURN_IF_ERROR(ConvertToImage(conversion, target)); break;
    case TargetKind::kStep: NEVE_RETURN_IF_ERROR(ConvertToStep(conversion, target)); break;
    case TargetKind::kHuggingFace: NEVE_RETURN_IF_ERROR(ConvertToHuggingFace(conversion, target)); break;
    case TargetKind::kNpz: NEVE_RETURN_IF_ERROR(ConvertToNpz(conversion, target)); break;
    case TargetKind::kDcp: NEVE_RETURN_IF_ERROR(ConvertToDcp(conversion, target)); break;
  }
  return report;
}

}  // namespace neve
