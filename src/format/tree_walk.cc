#include "format/tree_walk.h"

#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "format/checked_json.h"
#include "format/json_reader.h"
#include "format/json_text.h"
#include "format/key_escapes.h"
#include "format/layout.h"
#include "format/name_order.h"
#include "format/tree_node.h"

namespace neve::format {
namespace {

using Role = TreePlace::Role;
using Container = TreeVisitor::Container;

constexpr int kTreeJsonDepthMax = 1000;   // of all brackets; a node has up to three
constexpr std::string_view kJsonSpace = " \t\r\n";

class TreeWalker {
 public:
  // `values`: null where they are not known yet, so that none is read.
  TreeWalker(const ImageHeader& header, std::span<const LogicalTensor> tensors, const std::string* values, TreeVisitor* visitor)
      : header_(header),
        tensors_(tensors),
        values_text_(values),
        values_(values == nullptr ? std::string_view() : std::string_view(*values)),
        visitor_(visitor) {}

  absl::Status Run(std::string_view tree) {
    std::string_view key, value, root;
    for (CheckedJson members(tree); members.NextMember(&key, &value);) {
      if (key == "root") root = value;
    }
    if (root.empty()) return absl::OkStatus();   // flat: the header's names are all there is
    return RunRoot(root);
  }

  absl::Status RunRoot(std::string_view root) {
    names_left_ = kTreeNamesBytesMax + 64 * root.size();
    NEVE_RETURN_IF_ERROR(Visit(root, {}, 0));
    if (next_tensor_ < tensors_.size()) {
      return Malformed(absl::StrFormat("it has no place for tensor %s", Quoted(tensors_[next_tensor_].name)));
    }
    if (values_text_ != nullptr && !values_.AtEnd()) {
      return Damaged(absl::StrFormat("%s: something follows the last value, at byte %d", std::string(kValuesKey),
                                     values_.position()));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Malformed(const std::string& why) const {
    const std::string where = name_.empty() ? "" : absl::StrFormat("at %s: ", Quoted(name_));
    return Damaged(absl::StrFormat("%s is malformed: %s%s", std::string(kTreeKey), where, why));
  }
  absl::Status Unknown(const std::string& what) const {
    const std::string where = name_.empty() ? "" : absl::StrFormat("at %s: ", Quoted(name_));
    return Unsupported(absl::StrFormat("%s: %s%s, which this version does not know; use a newer neve", std::string(kTreeKey), where,
                                       what));
  }

  // Makes name_ the name of a component of what it names; returns what to cut it to afterwards.
  absl::StatusOr<size_t> Descend(std::string_view component) {
    const size_t before = name_.size();
    if (component.size() + before + 1 > names_left_) {
      return Damaged(absl::StrFormat("%s is malformed: the names of its places take more than %d bytes", std::string(kTreeKey),
                                     kTreeNamesBytesMax));
    }
    names_left_ -= component.size() + before + 1;
    if (!name_.empty()) name_.push_back('.');
    name_.append(component);
    return before;
  }

  TreePlace At(const TreePlace& place) const {
    TreePlace now = place;
    now.name = name_;
    return now;
  }

  absl::StatusOr<const LogicalTensor*> NextTensor() {
    if (next_tensor_ >= tensors_.size()) return Malformed("it has places for more tensors than the header");
    return &tensors_[next_tensor_++];
  }

  // `depth`: containers around the node.
  absl::Status Visit(std::string_view node, const TreePlace& place, int depth) {
    if (node == "\"v\"") return VisitValue(place);
    if (IsNumber(node)) {
      if (place.role != Role::kRoot || node != "1") return Malformed("a number stands where a node was expected");
      NEVE_ASSIGN_OR_RETURN(const LogicalTensor* const tensor, NextTensor());
      if (visitor_ != nullptr) visitor_->OnTensor(At(place), NodeMembers(), *tensor);
      return absl::OkStatus();
    }
    if (!IsObject(node)) return Malformed("a node is neither \"v\" nor an object");
    NodeText text;
    if (absl::Status status = ReadNode(node, &text); !status.ok()) return Malformed(std::string(status.message()));
    if (!text.tensor.empty()) return VisitTensor(text, place, depth);
    if (!text.blob.empty()) return VisitBlob(text, place);
    if (!text.reference.empty()) return VisitReference(text, place);
    const bool sparse = text.composite && SparseParts(text.node.type) > 0;
    if (!sparse && depth >= kValuesDepthMax) return Malformed(absl::StrFormat("nested more than %d deep", kValuesDepthMax));
    if (!text.dict.empty()) return VisitDict(text, place, depth);
    if (!text.list.empty()) return VisitList(text, place, depth);
    if (text.composite) return VisitComposite(text, place, depth);
    return Unknown("a node of another kind");
  }

  absl::Status VisitValue(const TreePlace& place) {
    if (values_text_ == nullptr) return absl::OkStatus();
    if (visitor_ == nullptr) return values_.Skip();
    NEVE_ASSIGN_OR_RETURN(Value value, values_.Next());
    visitor_->OnValue(At(place), std::move(value));
    return absl::OkStatus();
  }

  absl::Status VisitTensor(const NodeText& text, const TreePlace& place, int depth) {
    if (text.meta) {
      if (absl::Status status = CheckMeta(text); !status.ok()) return Malformed(std::string(status.message()));
      if (visitor_ != nullptr) visitor_->OnMeta(At(place), text.node);
      return absl::OkStatus();
    }
    NEVE_ASSIGN_OR_RETURN(const LogicalTensor* const tensor, NextTensor());
    if (absl::Status status = CheckTensorNode(text, *tensor); !status.ok()) return Malformed(std::string(status.message()));
    if (visitor_ != nullptr) visitor_->OnTensor(At(place), text.node, *tensor);
    if (text.attributes.empty()) return absl::OkStatus();
    if (visitor_ != nullptr) visitor_->Enter(At(place), Container::kTensor, text.node);
    NEVE_RETURN_IF_ERROR(VisitAttributes(text.attributes, "~py", place, depth));
    if (visitor_ != nullptr) visitor_->Leave();
    return absl::OkStatus();
  }

  // A dictionary, as its own node or as a value: nothing else gives an object its attributes.
  absl::Status VisitAttributes(std::string_view node, std::string_view component, const TreePlace& place, int depth) {
    NEVE_ASSIGN_OR_RETURN(const size_t before, Descend(component));
    if (node == "\"v\"") {
      const bool dictionary = values_text_ == nullptr || values_text_->compare(values_.position(), 1, "{") == 0;
      if (!dictionary) return Malformed("attributes that are no dictionary");
    } else {
      NodeText text;
      if (!IsObject(node) || !ReadNode(node, &text).ok() || (text.dict.empty() && text.blob.empty()) ||
          !text.node.class_name.empty()) {
        return Malformed("attributes that are no dictionary");
      }
    }
    NEVE_RETURN_IF_ERROR(Visit(node, {Role::kAttributes, {}, nullptr, 0, place.depth + 1}, depth));
    name_.resize(before);
    return absl::OkStatus();
  }

  absl::Status VisitBlob(const NodeText& text, const TreePlace& place) {
    uint64_t number = 0;
    if (!JsonReader(text.blob).Unsigned(&number)) return Malformed("a blob without a number");
    const std::string name = absl::StrFormat("%s%d", std::string(kBlobPrefix), number);
    if (blobs_.empty()) {
      for (const HeaderTensor& stored : header_.tensors) {
        if (IsBlobName(stored.name)) blobs_.emplace(stored.name, &stored);
      }
    }
    const auto stored = blobs_.find(name);
    if (stored == blobs_.end()) return Malformed(absl::StrFormat("the header has no %s", name));
    if (stored->second == nullptr) return Malformed(absl::StrFormat("%s is named twice", name));
    if (stored->second->dtype != DType::kU8 || stored->second->bytes <= kBlobPrefixBytes) {
      return Malformed(absl::StrFormat("%s is no blob", name));
    }
    if (visitor_ != nullptr) visitor_->OnBlob(At(place), text.node, *stored->second);
    stored->second = nullptr;
    return absl::OkStatus();
  }

  absl::Status VisitReference(const NodeText& text, const TreePlace& place) {
    std::string target;
    if (!JsonReader(text.reference).String(&target)) return Malformed("a reference that is no name");
    if (place_of_.empty()) {
      for (size_t i = 0; i < tensors_.size(); ++i) place_of_.emplace(tensors_[i].name, i);
    }
    const auto found = place_of_.find(target);
    if (found == place_of_.end() || found->second >= next_tensor_) {
      return Malformed(absl::StrFormat("a reference to %s, which is no tensor that stands before it", Quoted(target)));
    }
    if (visitor_ != nullptr) visitor_->OnReference(At(place), target);
    return absl::OkStatus();
  }

  absl::Status VisitDict(const NodeText& text, const TreePlace& place, int depth) {
    if (!IsKnownDict(text.node.type)) return Unknown(absl::StrFormat("a dictionary of type %s", Quoted(text.node.type)));
    if (visitor_ != nullptr) visitor_->Enter(At(place), Container::kDict, text.node);
    if (!text.attributes.empty()) {
      if (text.node.type != "O") return Malformed("attributes of what has none");
      NEVE_RETURN_IF_ERROR(VisitAttributes(text.attributes, "~a", place, depth + 1));
    }
    std::vector<std::string_view> of_runs;   // components; unique among themselves, as the names of the header are
    std::deque<std::string> of_pairs;
    std::string_view child;
    for (CheckedJson children(text.dict); children.NextElement(&child);) {
      if (IsNumber(child)) {
        NEVE_RETURN_IF_ERROR(VisitRun(child, &of_runs, nullptr, place));
        continue;
      }
      std::string_view quoted, node, more;
      CheckedJson pair(child);
      if (!IsArray(child) || !pair.NextElement(&quoted) || !IsString(quoted) || !pair.NextElement(&node) ||
          pair.NextElement(&more)) {
        return Malformed("a dictionary's child is no pair of a key and a node");
      }
      std::string& component = of_pairs.emplace_back();
      JsonReader(quoted).String(&component);
      const absl::StatusOr<Value> key = KeyOfComponent(component);
      if (!key.ok()) return Malformed(std::string(key.status().message()));
      NEVE_ASSIGN_OR_RETURN(const size_t before, Descend(component));
      NEVE_RETURN_IF_ERROR(Visit(node, {Role::kKey, {}, &*key, 0, place.depth + 1}, depth + 1));
      name_.resize(before);
    }
    if (!of_pairs.empty()) {
      of_runs.insert(of_runs.end(), of_pairs.begin(), of_pairs.end());
      NEVE_RETURN_IF_ERROR(CheckKeysUnique(of_runs));
    }
    if (visitor_ != nullptr) visitor_->Leave();
    return absl::OkStatus();
  }

  absl::Status CheckKeysUnique(const std::vector<std::string_view>& components) const {
    const std::vector<uint32_t> order = NameOrder(components);
    for (size_t i = 1; i < order.size(); ++i) {
      if (components[order[i]] == components[order[i - 1]]) {
        return Malformed(absl::StrFormat("the key %s stands twice", Quoted(components[order[i]])));
      }
    }
    return absl::OkStatus();
  }

  // Tensors that follow each other: of a dictionary, whose components it adds, or of a list, whose index it moves.
  absl::Status VisitRun(std::string_view number, std::vector<std::string_view>* components, uint64_t* index,
                        const TreePlace& place) {
    uint64_t count = 0;
    if (!JsonReader(number).Unsigned(&count)) return Malformed("a run that is no count of tensors");
    if (count > tensors_.size() - next_tensor_) return Malformed("it has places for more tensors than the header");
    for (; count > 0; --count) {
      const LogicalTensor& tensor = tensors_[next_tensor_++];
      TreePlace at{Role::kIndex, tensor.name, nullptr, 0, place.depth + 1};
      absl::StatusOr<Value> key = Value();
      if (components == nullptr) {
        at.index = (*index)++;
      } else {
        NEVE_ASSIGN_OR_RETURN(const std::string_view component, ComponentOf(tensor.name));
        components->push_back(component);
        if (visitor_ != nullptr || component.empty() || component[0] == '~') key = KeyOfComponent(component);
        if (!key.ok()) return Malformed(std::string(key.status().message()));
        at.role = Role::kKey;
        at.key = &*key;
      }
      if (visitor_ != nullptr) visitor_->OnTensor(at, NodeMembers(), tensor);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string_view> ComponentOf(std::string_view tensor) const {
    if (name_.empty()) return tensor;
    if (tensor.size() <= name_.size() || !tensor.starts_with(name_) || tensor[name_.size()] != '.') {
      return Malformed(absl::StrFormat("tensor %s does not lie there", Quoted(tensor)));
    }
    return tensor.substr(name_.size() + 1);
  }

  absl::Status VisitList(const NodeText& text, const TreePlace& place, int depth) {
    const std::string& type = text.node.type;
    const bool named = type.starts_with("n:") && type.size() > 2;
    if (!type.empty() && type != "tuple" && !named) return Unknown(absl::StrFormat("a list of type %s", Quoted(type)));
    if (visitor_ != nullptr) visitor_->Enter(At(place), Container::kList, text.node);
    uint64_t index = 0;
    std::string_view child;
    for (CheckedJson children(text.list); children.NextElement(&child);) {
      if (IsNumber(child)) {
        NEVE_RETURN_IF_ERROR(VisitRun(child, nullptr, &index, place));
        continue;
      }
      NEVE_ASSIGN_OR_RETURN(const size_t before, Descend(std::to_string(index)));
      NEVE_RETURN_IF_ERROR(Visit(child, {Role::kIndex, {}, nullptr, index, place.depth + 1}, depth + 1));
      name_.resize(before);
      ++index;
    }
    if (visitor_ != nullptr) visitor_->Leave();
    return absl::OkStatus();
  }

  static bool IsTensor(std::string_view node) {
    NodeText text;
    if (!IsObject(node) || !ReadNode(node, &text).ok()) return false;
    return (!text.tensor.empty() && !text.meta) || !text.reference.empty();
  }

  // A part of the boxes that stand in one place, which are all of one logical tensor.
  absl::Status CheckPart(std::string_view child, uint64_t index, std::string_view* logical_name) {
    NodeText text;
    if (!IsObject(child) || !ReadNode(child, &text).ok() || text.tensor.empty() || text.meta) {
      return Malformed("a part of a composite of pieces is no tensor");
    }
    if (next_tensor_ >= tensors_.size()) return absl::OkStatus();   // refused when it is taken
    const LogicalTensor& tensor = tensors_[next_tensor_];
    if (tensor.piece == nullptr) return Malformed(absl::StrFormat("its part %s is no piece", Quoted(tensor.name)));
    if (index > 0 && tensor.logical_name() != *logical_name) {
      return Malformed(absl::StrFormat("its parts are of %s and of %s", Quoted(*logical_name), Quoted(tensor.logical_name())));
    }
    *logical_name = tensor.logical_name();
    return absl::OkStatus();
  }

  absl::Status VisitComposite(const NodeText& text, const TreePlace& place, int depth) {
    if (absl::Status status = CheckComposite(text); !status.ok()) return Malformed(std::string(status.message()));
    const bool sparse = SparseParts(text.node.type) > 0;
    if (visitor_ != nullptr) visitor_->Enter(At(place), Container::kComposite, text.node);
    uint64_t index = 0;
    std::string_view child, logical_name;
    if (!text.children.empty()) {
      for (CheckedJson children(text.children); children.NextElement(&child); ++index) {
        if (sparse && !IsTensor(child)) return Malformed("a part of a sparse tensor is no tensor");
        if (text.node.type == kPiecesKind) NEVE_RETURN_IF_ERROR(CheckPart(child, index, &logical_name));
        NEVE_RETURN_IF_ERROR(Visit(child, {Role::kPart, {}, nullptr, index, place.depth + 1}, sparse ? depth : depth + 1));
      }
    }
    const std::optional<uint64_t> parts = PartsOf(text.node.type);
    if (parts.has_value() && index != *parts) {
      return Malformed(absl::StrFormat("%s has %d parts, not %d", Quoted(text.node.type), index, *parts));
    }
    if (visitor_ != nullptr) visitor_->Leave();
    return absl::OkStatus();
  }

  const ImageHeader& header_;
  const std::span<const LogicalTensor> tensors_;
  const std::string* values_text_;
  ValuesReader values_;
  TreeVisitor* visitor_;
  size_t next_tensor_ = 0;
  std::map<std::string_view, size_t> place_of_;            // of each tensor; made for the first reference
  std::map<std::string_view, const HeaderTensor*> blobs_;  // by name; made for the first blob; null once it was named
  std::string name_;                                       // of the place at hand
  uint64_t names_left_ = 0;
};

}  // namespace

absl::Status WalkTree(const ImageHeader& header, std::span<const LogicalTensor> tensors, TreeVisitor* visitor) {
  const std::string* tree = header.FindMetadata(kTreeKey);
  if (tree == nullptr) return absl::OkStatus();
  const size_t begin = tree->find('{');
  if (begin == std::string::npos) return Damaged(std::string(kTreeKey) + " is not a JSON object");
  static const std::string kNoValues;
  const std::string* values = header.FindMetadata(kValuesKey);
  return TreeWalker(header, tensors, values == nullptr ? &kNoValues : values, visitor).Run(std::string_view(*tree).substr(begin));
}

std::vector<LogicalTensor> TensorsAgain(const ImageHeader& header, std::span<const LogicalTensor> tensors) {
  class Collector final : public TreeVisitor {
   public:
    void Enter(const TreePlace&, Container, const NodeMembers&) override {}
    void Leave() override {}
    void OnTensor(const TreePlace&, const NodeMembers&, const LogicalTensor&) override {}
    void OnValue(const TreePlace&, Value) override {}
    void OnMeta(const TreePlace&, const NodeMembers&) override {}
    void OnBlob(const TreePlace&, const NodeMembers&, const HeaderTensor&) override {}
    void OnReference(const TreePlace& place, const std::string& target) override {
      found.emplace_back(std::string(place.name), target);
    }
    std::vector<std::pair<std::string, std::string>> found;   // the place's name, and whose tensor it is
  };
  Collector collector;
  WalkTree(header, tensors, &collector).IgnoreError();   // who reads the tree itself says what is wrong with it
  std::vector<LogicalTensor> again;
  if (collector.found.empty()) return again;
  std::unordered_map<std::string_view, const LogicalTensor*> by_name;
  for (const LogicalTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  std::unordered_set<std::string_view> taken;
  for (const auto& [name, target] : collector.found) {
    if (by_name.contains(name) || !taken.insert(name).second) continue;
    LogicalTensor alias = *by_name.at(target);
    alias.name = name;
    alias.alias = true;
    alias.piece = nullptr;
    again.push_back(std::move(alias));
  }
  return again;
}

absl::Status CheckTree(const ImageHeader& header) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<LogicalTensor> tensors, LogicalTensors(header));
  return WalkTree(header, tensors, nullptr);
}

absl::Status CheckRoot(const Structure& structure) {
  if (structure.tree.empty()) return absl::OkStatus();
  JsonReader json(structure.tree, kTreeJsonDepthMax);
  json.Skip();
  absl::Status status = json.Finish();
  if (status.ok()) {
    ImageHeader header;
    for (uint32_t i = 0; i < structure.blob_count; ++i) {
      const std::string name = absl::StrFormat("%s%d", std::string(kBlobPrefix), i);
      header.tensors.push_back({name, DType::kU8, {}, 0, kValuesBytesMin});
    }
    std::vector<LogicalTensor> tensors;
    tensors.reserve(structure.tensors.size());
    for (const TensorSpec& spec : structure.tensors) {
      tensors.push_back({spec.name, spec.dtype, spec.shape, spec.strides, spec.name});
      tensors.back().piece = spec.piece;
    }
    std::string_view root = structure.tree;
    root.remove_prefix(root.find_first_not_of(kJsonSpace));
    root.remove_suffix(root.size() - 1 - root.find_last_not_of(kJsonSpace));
    status = TreeWalker(header, tensors, nullptr, nullptr).RunRoot(root);
  }
  if (status.ok() || status.code() == absl::StatusCode::kUnimplemented) return absl::OkStatus();
  return Invalid("the tree would not be read again: " + std::string(status.message()));
}

}  // namespace neve::format
