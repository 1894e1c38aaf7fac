#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/sync/crew.h"
#include "base/sync/mutex.h"
#include "engine/convert.h"
#include "engine/files_source.h"
#include "engine/places_choose.h"
#include "format/json_text.h"
#include "format/read_box.h"
#include "format/state_tree.h"
#include "format/values.h"
#include "neve/files.h"
#include "tensor/numbers.h"

namespace neve {
namespace {

using engine::Source;
using engine::SourceTensor;
using format::TreeNode;

constexpr uint64_t kPieceBytes = 4u << 20;
constexpr int kHelpersMax = 15;

std::string ShapeText(const tensor::Dims& shape) {
  std::string text;
  format::AppendNumbers(shape, &text);
  return text;
}

// ---- Tensors ----

struct Pair {
  const SourceTensor* a;
  const SourceTensor* b;
};

// One piece of one pair: pieces of all pairs are handed to the crew in one list, a batch at a time.
struct Piece {
  size_t pair;
  uint64_t first, count;   // elements
};

constexpr int kPrefixComponentsMax = 16;   // of names of any length, so that the search stays linear in them

// Components that wrappers put into the names of what they wrap.
constexpr std::string_view kWrappers[] = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"};

// A name without the components of wrappers; adds those that it had to `removed`.
std::string WithoutWrappers(std::string_view name, std::set<std::string_view>* removed) {
  std::string rest;
  while (true) {
    const size_t dot = name.find('.');
    const std::string_view component = name.substr(0, dot);
    if (std::ranges::find(kWrappers, component) != std::end(kWrappers)) {
      removed->insert(component);
    } else {
      if (!rest.empty()) rest += '.';
      rest += component;
    }
    if (dot == std::string_view::npos) return rest;
    name.remove_prefix(dot + 1);
  }
}

// The prefix, up to a ".", without which most of `longer` are names of `shorter`; "": none of them is.
std::string CommonPrefix(std::span<const std::string> longer, const std::unordered_set<std::string_view>& shorter) {
  std::map<std::string_view, size_t> counts;
  for (const std::string_view name : longer) {
    size_t dot = name.find('.');
    for (int depth = 0; depth < kPrefixComponentsMax && dot != std::string_view::npos; ++depth, dot = name.find('.', dot + 1)) {
      if (shorter.contains(name.substr(dot + 1))) ++counts[name.substr(0, dot + 1)];
    }
  }
  const auto best = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return best == counts.end() ? "" : std::string(best->first);
}

class TensorDiff {
 public:
  TensorDiff(const Source& a, const Source& b, const Progress& progress, DiffReport* report)
      : a_(a), b_(b), progress_(progress), report_(report) {}

  absl::Status Run() {
    Match();
    MatchRenamed();
    differences_.resize(pairs_.size());
    const uint64_t total = report_->compared_bytes;
    const auto crew = sync::Crew::Create(total < kPieceBytes ? 0 : std::min(sync::UsableCores() - 1, kHelpersMax));
    memory_.resize(static_cast<size_t>(crew->threads()));
    constexpr size_t kBatch = 256;
    std::vector<Piece> batch;
    for (size_t pair = 0; pair < pairs_.size(); ++pair) {
      const uint64_t step = kPieceBytes / ItemBytes(pairs_[pair].a->tensor->dtype);
      for (uint64_t first = 0; first < pairs_[pair].a->elements; first += step) {
        batch.push_back({pair, first, std::min(step, pairs_[pair].a->elements - first)});
        if (batch.size() == kBatch) NEVE_RETURN_IF_ERROR(Compare(*crew, total, &batch));
      }
    }
    NEVE_RETURN_IF_ERROR(Compare(*crew, total, &batch));
    Report();
    return absl::OkStatus();
  }

 private:
  void Match() {
    std::unordered_map<std::string_view, const SourceTensor*> by_name;
    for (const SourceTensor& tensor : b_.tensors) by_name[tensor.name] = &tensor;
    for (const SourceTensor& a : a_.tensors) {
      const auto found = by_name.find(a.name);
      if (found == by_name.end()) {
        report_->only_a.push_back(a.name);
        continue;
      }
      const SourceTensor& b = *found->second;
      by_name.erase(found);
      ++report_->compared_tensors;
      if (a.tensor->dtype != b.tensor->dtype) {
        report_->changed.push_back({a.name, "dtype", std::string(Name(a.tensor->dtype)), std::string(Name(b.tensor->dtype))});
      }
      if (a.tensor->shape != b.tensor->shape) {
        report_->changed.push_back({a.name, "shape", ShapeText(a.tensor->shape), ShapeText(b.tensor->shape)});
      }
      if (a.tensor->dtype != b.tensor->dtype || a.tensor->shape != b.tensor->shape) continue;
      report_->compared_bytes += a.bytes;
      pairs_.push_back({&a, &b});
    }
    for (const SourceTensor& b : b_.tensors) {
      if (by_name.contains(b.name)) report_->only_b.push_back(b.name);
    }
  }

  // Names that only one side has are often the other's with what a wrapper put in front of them, or among them.
  void MatchRenamed() {
    first_renamed_ = pairs_.size();
    const std::vector<std::string>& only_a = report_->only_a;
    const std::vector<std::string>& only_b = report_->only_b;
    if (only_a.empty() || only_b.empty()) return;
    std::set<std::string_view> of_a, of_b;
    AddRenamed([&](const std::string& name) { return WithoutWrappers(name, &of_a); },
               [&](const std::string& name) { return WithoutWrappers(name, &of_b); });
    if (renamed_ > 0) {
      of_a.insert(of_b.begin(), of_b.end());
      for (const std::string_view component : of_a) {
        removed_ += absl::StrFormat("%s\"%s.\"", removed_.empty() ? "" : " and ", component);
      }
      return;
    }
    const std::string prefix_a = CommonPrefix(only_a, {only_b.begin(), only_b.end()});
    const std::string prefix_b = prefix_a.empty() ? CommonPrefix(only_b, {only_a.begin(), only_a.end()}) : "";
    const auto without = [](const std::string& prefix) {
      return [&prefix](const std::string& name) { return name.starts_with(prefix) ? name.substr(prefix.size()) : ""; };
    };
    AddRenamed(without(prefix_a), without(prefix_b));
    removed_ = '"' + prefix_a + prefix_b + '"';
  }

  // Pairs what is left under one name on both sides, once the functions have been at it. "" is no name; nor is what two are left under.
  template <typename OfA, typename OfB>
  void AddRenamed(OfA of_a, OfB of_b) {
    std::map<std::string, std::vector<const SourceTensor*>> left_a, left_b;
    const std::unordered_set<std::string_view> only_a(report_->only_a.begin(), report_->only_a.end());
    const std::unordered_set<std::string_view> only_b(report_->only_b.begin(), report_->only_b.end());
    for (const SourceTensor& a : a_.tensors) {
      if (only_a.contains(a.name)) left_a[of_a(a.name)].push_back(&a);
    }
    for (const SourceTensor& b : b_.tensors) {
      if (only_b.contains(b.name)) left_b[of_b(b.name)].push_back(&b);
    }
    for (const auto& [name, a] : left_a) {
      const auto found = left_b.find(name);
      if (name.empty() || found == left_b.end() || a.size() != 1 || found->second.size() != 1) continue;
      const SourceTensor& b = *found->second.front();
      ++renamed_;
      if (a.front()->tensor->dtype != b.tensor->dtype || a.front()->tensor->shape != b.tensor->shape) {
        renamed_changed_.push_back(name);
        continue;
      }
      ++report_->compared_tensors;
      report_->compared_bytes += b.bytes;
      pairs_.push_back({a.front(), &b});
    }
  }

  void ReportRenamed() {
    for (size_t i = first_renamed_; i < pairs_.size(); ++i) {
      if (differences_[i].count() > 0) renamed_changed_.push_back(pairs_[i].b->name);
    }
    if (renamed_ == 0) return;
    const std::string those = absl::StrFormat("%d of the tensors that only one side has are the same on both by name once %s is removed",
                                              renamed_, removed_);
    report_->notes.push_back(renamed_changed_.empty()
                                 ? those + ", and their values are equal"
                                 : absl::StrFormat("%s; %d of them differ, first %s", those, renamed_changed_.size(),
                                                   *std::ranges::min_element(renamed_changed_)));
  }

  absl::Status Compare(sync::Crew& crew, uint64_t total, std::vector<Piece>* batch) {
    std::vector<absl::Status> statuses(batch->size());
    std::vector<tensor::NumberDifference> found(batch->size());
    auto work = [&](uint64_t part, int worker) {
      const Piece& piece = (*batch)[part];
      const Pair& pair = pairs_[piece.pair];
      const DType dtype = pair.a->tensor->dtype;
      const uint64_t bytes = piece.count * ItemBytes(dtype);
      auto& [memory_a, memory_b] = memory_[static_cast<size_t>(worker)];
      memory_a.resize(bytes);
      memory_b.resize(bytes);
      statuses[part] = format::ReadElements(*a_.contents, *pair.a->tensor, piece.first, piece.count, memory_a);
      if (!statuses[part].ok()) return;
      statuses[part] = format::ReadElements(*b_.contents, *pair.b->tensor, piece.first, piece.count, memory_b);
      if (!statuses[part].ok()) return;
      found[part].Add(dtype, piece.first * tensor::ValuesPerItem(dtype), memory_a, memory_b);
    };
    crew.Run(batch->size(), work);
    for (size_t i = 0; i < batch->size(); ++i) {
      NEVE_RETURN_IF_ERROR(statuses[i]);
      const Piece& piece = (*batch)[i];
      differences_[piece.pair].Merge(found[i]);
      done_ += piece.count * ItemBytes(pairs_[piece.pair].a->tensor->dtype);
    }
    if (progress_ && !batch->empty()) progress_(done_, total);
    batch->clear();
    return absl::OkStatus();
  }

  void Report() {
    ReportRenamed();
    for (size_t i = 0; i < first_renamed_; ++i) {
      const tensor::NumberDifference& difference = differences_[i];
      if (difference.count() == 0) continue;
      const format::LogicalTensor& tensor = *pairs_[i].a->tensor;
      Difference changed{pairs_[i].a->name, "values"};
      changed.count = difference.count();
      changed.not_finite = difference.not_finite();
      changed.max_abs = static_cast<double>(difference.max_abs());
      tensor::Dims values = tensor.shape;   // F4 packs two values of the last dimension
      if (tensor::ValuesPerItem(tensor.dtype) > 1) {
        if (values.empty()) values.push_back(1);
        values.back() *= static_cast<int64_t>(tensor::ValuesPerItem(tensor.dtype));
      }
      changed.first_index.resize(values.size());
      uint64_t left = difference.first();
      for (size_t dim = values.size(); dim-- > 0;) {
        changed.first_index[dim] = static_cast<int64_t>(left % static_cast<uint64_t>(values[dim]));
        left /= static_cast<uint64_t>(values[dim]);
      }
      report_->changed.push_back(std::move(changed));
    }
  }

  const Source& a_;
  const Source& b_;
  const Progress& progress_;
  DiffReport* report_;
  std::vector<Pair> pairs_;                        // those of one name, then, from first_renamed_ on, of names made equal
  size_t first_renamed_ = 0, renamed_ = 0;         // the latter counts those too that differ in dtype or shape
  std::string removed_;                            // of the names, to make them equal
  std::vector<std::string> renamed_changed_;
  std::vector<tensor::NumberDifference> differences_;
  std::vector<std::pair<std::vector<std::byte>, std::vector<std::byte>>> memory_;   // one a worker
  uint64_t done_ = 0;
};

// ---- Objects ----

struct Leaf {
  std::string text;    // equal exactly when the objects are
  std::string words;
};
using Leaves = std::map<std::string, Leaf>;   // by path

// Values that stand in one node are told apart by the paths of their parts, since another kind of file may split them otherwise.
void AddValue(const format::Value& value, const std::string& path, Leaves* leaves);

// All of a value: equal for equal values only, whatever their size. DescribeValue is for people, and leaves out what is long.
void AppendWhole(const format::Value& value, std::string* out) {
  *out += absl::StrFormat("%d.%d:%a:%a:%d:", static_cast<int>(value.kind), value.flag ? 1 : 0, value.number, value.imaginary,
                          value.text.size());
  *out += value.text;
  std::vector<std::string> items(value.items.size());
  for (size_t i = 0; i < items.size(); ++i) AppendWhole(value.items[i], &items[i]);
  if (value.kind == format::Value::Kind::kSet || value.kind == format::Value::Kind::kFrozenSet) {
    std::sort(items.begin(), items.end());   // a set has no order
  }
  *out += absl::StrFormat("%d[", items.size());
  for (const std::string& item : items) *out += item;
  *out += ']';
}

std::string WholeDigest(const format::Value& value) {
  std::string whole;
  AppendWhole(value, &whole);
  return codec::DigestOf(std::as_bytes(std::span(whole))).ToHex();
}

// A key that is neither text nor a number, for a path: its words, and a digest where they do not say all of it.
std::string KeyWords(const format::Value& key) {
  constexpr size_t kWordsMax = 200;
  std::string words = format::DescribeValue(key, kWordsMax);
  bool short_of = words.size() >= kWordsMax;
  for (const char* hidden : {"bytes(", "bytearray(", "numpy("}) short_of = short_of || words.find(hidden) != std::string::npos;
  return short_of ? words + "~" + WholeDigest(key).substr(0, 16) : words;
}

bool IsDict(const format::Value& value) {
  using Kind = format::Value::Kind;
  return value.kind == Kind::kDict || value.kind == Kind::kOrderedDict || value.kind == Kind::kCounter;
}

void AddItems(const format::Value& value, const std::string& path, Leaves* leaves) {
  using Kind = format::Value::Kind;
  const bool dict = IsDict(value);
  const std::string prefix = path.empty() ? "" : path + ".";
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (!dict) {
      AddValue(value.items[i], prefix + std::to_string(i), leaves);
    } else if (i + 1 < value.items.size()) {
      const format::Value& key = value.items[i];
      const std::string component = key.kind == Kind::kText ? key.text
                                    : key.kind == Kind::kInteger ? "~i" + key.text
                                                                 : "~p" + KeyWords(key);
      AddValue(value.items[++i], prefix + component, leaves);
    }
  }
}

void AddValue(const format::Value& value, const std::string& path, Leaves* leaves) {
  using Kind = format::Value::Kind;
  const bool container = IsDict(value) || value.kind == Kind::kList || value.kind == Kind::kTuple;
  if (container && !value.items.empty()) return AddItems(value, path, leaves);
  (*leaves)[path] = {WholeDigest(value), format::DescribeValue(value, 60)};
}

absl::Status AddNode(const format::Contents& contents, const TreeNode& node, Leaves* leaves) {
  switch (node.kind) {
    case TreeNode::Kind::kTensor:
    case TreeNode::Kind::kSame: break;   // compared as tensors
    case TreeNode::Kind::kValue: {
      format::ValuesReader reader(node.text);
      NEVE_ASSIGN_OR_RETURN(const format::Value value, reader.Next());
      AddValue(value, node.path, leaves);
      break;
    }
    case TreeNode::Kind::kBlob: {
      NEVE_ASSIGN_OR_RETURN(const std::string payload, engine::ReadBlob(contents, node.index));
      if (payload.starts_with('v')) {
        format::ValuesReader reader(std::string_view(payload).substr(1));
        NEVE_ASSIGN_OR_RETURN(const format::Value value, reader.Next());
        AddValue(value, node.path, leaves);
      } else {
        const std::string digest = codec::DigestOf(std::as_bytes(std::span(payload))).ToHex();
        (*leaves)[node.path] = {node.type + payload.substr(0, 1) + digest,
                                node.type.empty() ? format::DescribeBlob(payload, 60) : "object " + node.type};
      }
      break;
    }
    case TreeNode::Kind::kMeta: (*leaves)[node.path] = {"meta" + node.extra.dump(), "a tensor on the meta device"}; break;
    case TreeNode::Kind::kDict:
    case TreeNode::Kind::kList:
      if (node.children.empty()) {
        const bool dict = node.kind == TreeNode::Kind::kDict;
        format::Value empty;
        empty.kind = dict ? node.type == "O" ? format::Value::Kind::kOrderedDict : format::Value::Kind::kDict
                          : node.type == "tuple" ? format::Value::Kind::kTuple : format::Value::Kind::kList;
        AddValue(empty, node.path, leaves);
      }
      break;
    case TreeNode::Kind::kComposite:
      // A generator or an object is its parts; what it is called is part of them.
      (*leaves)[node.path + (node.path.empty() ? "" : ".") + "~o"] = {node.type + ":" + node.text, node.text.empty() ? node.type
                                                                                                             : node.text};
      break;
    case TreeNode::Kind::kOpaque: (*leaves)[node.path] = {"opaque:" + node.type, "object " + node.type}; break;
  }
  for (const TreeNode& child : node.children) NEVE_RETURN_IF_ERROR(AddNode(contents, child, leaves));
  if (node.attributes != nullptr && node.kind != TreeNode::Kind::kDict) {
    NEVE_RETURN_IF_ERROR(AddNode(contents, *node.attributes, leaves));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AddSource(const Source& source, Leaves* leaves) {
  NEVE_ASSIGN_OR_RETURN(const format::StateTree tree, format::ReadStateTree(source.contents->header(), source.contents->tensors()));
  NEVE_RETURN_IF_ERROR(AddNode(*source.contents, tree.root, leaves));
  return !tree.flat;
}

absl::Status DiffObjects(const Source& a, const Source& b, DiffReport* report) {
  Leaves leaves_a, leaves_b;
  NEVE_ASSIGN_OR_RETURN(const bool tree_a, AddSource(a, &leaves_a));
  NEVE_ASSIGN_OR_RETURN(const bool tree_b, AddSource(b, &leaves_b));
  if (!tree_a || !tree_b) {
    const Source& without = tree_a ? b : a;
    const size_t count = tree_a ? leaves_a.size() : leaves_b.size();
    if (count > 0) {
      report->notes.push_back(absl::StrFormat("%s is of a kind that holds tensors only (%s): %d objects of the other are not "
                                              "compared", without.place, without.kind, count));
    }
    return absl::OkStatus();
  }
  for (const auto& [path, leaf] : leaves_a) {
    const auto found = leaves_b.find(path);
    const std::string name = path.empty() ? "~" : path;
    if (found == leaves_b.end()) {
      report->changed.push_back({name, "object", leaf.words, ""});
    } else if (found->second.text != leaf.text) {
      report->changed.push_back({name, "object", leaf.words, found->second.words});
    }
  }
  for (const auto& [path, leaf] : leaves_b) {
    if (!leaves_a.contains(path)) report->changed.push_back({path.empty() ? "~" : path, "object", "", leaf.words});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DiffReport> DiffPlaces(const std::string& a, const std::string& b, const SourceOptions& options,
                                      const Progress& progress) {
  NEVE_ASSIGN_OR_RETURN(const SourceOptions options_a, engine::OptionsOfPair(a, b, options));
  NEVE_ASSIGN_OR_RETURN(const SourceOptions options_b, engine::OptionsOfPair(b, a, options));
  NEVE_ASSIGN_OR_RETURN(const Source source_a, engine::OpenSource(a, options_a));
  NEVE_ASSIGN_OR_RETURN(const Source source_b, engine::OpenSource(b, options_b));
  NEVE_RETURN_IF_ERROR(engine::CheckLogicalSize(source_a));
  NEVE_RETURN_IF_ERROR(engine::CheckLogicalSize(source_b));
  DiffReport report;
  report.notes = source_a.notes;
  report.notes.insert(report.notes.end(), source_b.notes.begin(), source_b.notes.end());
  NEVE_RETURN_IF_ERROR(TensorDiff(source_a, source_b, progress, &report).Run());
  NEVE_RETURN_IF_ERROR(DiffObjects(source_a, source_b, &report));
  NEVE_RETURN_IF_ERROR(source_a.contents->CheckRead());
  NEVE_RETURN_IF_ERROR(source_b.contents->CheckRead());
  return report;
}

}  // namespace neve
