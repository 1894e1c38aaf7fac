#include "format/global_tree.h"

#include <fnmatch.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "base/codec/text.h"
#include "format/checked_json.h"
#include "format/global_leaves.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/value_nodes.h"

namespace neve::format {
namespace {

constexpr size_t kTextsMax = 8;

// All that a tree is made from but the facts about tensors, which the leaves compare.
codec::Digest StructureOf(const RankImage& image) {
  std::string text;
  if (const std::string* tree = image.header->FindMetadata(kTreeKey); tree != nullptr) {
    std::string_view key, value;
    const size_t begin = tree->find('{');
    for (CheckedJson members(std::string_view(*tree).substr(std::min(begin, tree->size()))); members.NextMember(&key, &value);) {
      if (key == "root") text.append(value);
    }
  }
  text.push_back('\0');
  if (const std::string* values = image.header->FindMetadata(kValuesKey); values != nullptr) {
    text.append(std::string_view(*values).substr(0, values->find_last_not_of(' ') + 1));
  }
  for (const LogicalTensor& tensor : image.tensors) {
    text.push_back('\0');
    text.append(tensor.name);
    if (tensor.piece == nullptr) continue;
    text.push_back('\1');
    text.append(tensor.logical_name());
  }
  return codec::DigestOf(std::as_bytes(std::span(text)));
}

// Ranks of one structure.
struct TreeClass {
  std::vector<uint32_t> images;   // ascending; the first one's tree stands for all
};

class Merger {
 public:
  Merger(std::span<const RankImage> images, Disagreements* disagreements, const BlobPayload& payload)
      : images_(images), disagreements_(disagreements), payload_(payload) {}

  absl::StatusOr<GlobalTree> Run() {
    for (const TreeClass& members : Classes()) {
      const RankImage& image = images_[members.images.front()];
      NEVE_ASSIGN_OR_RETURN(StateTree tree, ReadStateTree(*image.header, image.tensors));
      image_ = &image;
      NEVE_RETURN_IF_ERROR(maker_.Run(image, members.images, &tree.root));
      if (tree.flat) NameByLeaves(&tree.root);
      if (&members == &classes_.front()) {
        merged_.root = std::move(tree.root);
        merged_.flat = tree.flat;
        continue;
      }
      if (tree.flat != merged_.flat) {
        return Unsupported(absl::StrFormat("%s and %s hold states of different kinds: one is a flat set of tensors", FirstRank(),
                                           ThisRank()));
      }
      NEVE_RETURN_IF_ERROR(Merge(&merged_.root, &tree.root));
    }
    return std::move(merged_);
  }

 private:
  const std::vector<TreeClass>& Classes() {
    std::unordered_map<uint64_t, std::vector<std::pair<codec::Digest, size_t>>> seen;
    for (uint32_t i = 0; i < images_.size(); ++i) {
      const codec::Digest digest = StructureOf(images_[i]);
      auto& same_low = seen[digest.low];
      const auto found = std::find_if(same_low.begin(), same_low.end(), [&](const auto& one) { return one.first == digest; });
      if (found != same_low.end()) {
        classes_[found->second].images.push_back(i);
      } else {
        same_low.emplace_back(digest, classes_.size());
        classes_.push_back({{i}});
      }
    }
    return classes_;
  }

  std::string FirstRank() const { return absl::StrFormat("rank %d", images_[classes_.front().images.front()].rank); }
  std::string ThisRank() const { return absl::StrFormat("rank %d", image_->rank); }

  // A flat set's boxes go by their logical names, each once.
  void NameByLeaves(TreeNode* root) {
    std::vector<TreeNode> children;
    std::vector<bool> there(merged_.leaves.size(), false);
    for (TreeNode& child : root->children) {
      if (there[child.index]) continue;
      there[child.index] = true;
      child.key = child.path = merged_.leaves[child.index].name;
      children.push_back(std::move(child));
    }
    root->children = std::move(children);
  }

  // ---- two nodes of one place ----

  // Whether `into` may stand alone; else the disagreement is noted.
  void Differ(const TreeNode& into, const std::string& what) {
    if (disagreements_->RankZeroWins(into.path)) return;
    disagreements_->Add(into.path, absl::StrFormat("%s (%s and %s)", what, FirstHolder(into), ThisRank()));
  }

  // One of two kinds cannot stand in the place. Rank 0 may speak for a value, never make a tensor disappear.
  void DifferInKind(const TreeNode& into, const TreeNode& from) {
    if (!HoldsTensors(from)) return Differ(into, "is of different kinds");
    if (!disagreements_->Matters(into.path)) return;
    disagreements_->Add(into.path, absl::StrFormat("holds tensors on %s and is of another kind on %s, which no take_rank0 can settle",
                                                   ThisRank(), FirstHolder(into)));
  }

  static bool HoldsTensors(const TreeNode& node) {
    if (node.kind == TreeNode::Kind::kTensor || node.kind == TreeNode::Kind::kSame) return true;
    return (node.attributes != nullptr && HoldsTensors(*node.attributes)) ||
           std::any_of(node.children.begin(), node.children.end(), HoldsTensors);
  }

  // ---- values that stand for containers ----

  static bool IsContainer(const TreeNode& node) {
    return node.kind == TreeNode::Kind::kDict || node.kind == TreeNode::Kind::kList || node.kind == TreeNode::Kind::kComposite;
  }
  static bool IsValueBlob(const TreeNode& node) { return node.kind == TreeNode::Kind::kBlob && node.type.empty(); }
  static bool IsValue(const TreeNode& node) { return node.kind == TreeNode::Kind::kValue; }

  // Brings two nodes that may hold the same in two forms to one form.
  absl::Status MakeAlike(TreeNode* into, TreeNode* from) {
    if (disagreements_->by_rank()) return absl::OkStatus();   // shown as they stand
    if (IsValueBlob(*into) && (IsContainer(*from) || IsValue(*from))) NEVE_RETURN_IF_ERROR(ReadBlob(into));
    if (IsValueBlob(*from) && (IsContainer(*into) || IsValue(*into))) NEVE_RETURN_IF_ERROR(ReadBlob(from));
    const bool both = IsValue(*into) && IsValue(*from) && into->text != from->text && IsDictionaryText(into->text) &&
                      IsDictionaryText(from->text);
    if (IsValue(*into) && (both || IsContainer(*from))) NEVE_RETURN_IF_ERROR(OpenValue(into).status());
    if (IsValue(*from) && (both || IsContainer(*into))) NEVE_RETURN_IF_ERROR(OpenValue(from).status());
    return absl::OkStatus();
  }

  // A blob of values as the value, where all its holders have the same; where they do not, what it takes to merge them.
  absl::Status ReadBlob(TreeNode* node) {
    const std::vector<GlobalHolder> holders = merged_.leaves[node->index].holders;
    std::vector<std::string> texts;
    for (const GlobalHolder& holder : holders) {
      const absl::StatusOr<std::string> payload = payload_(holder);
      if (!payload.ok()) return payload.status();
      NEVE_ASSIGN_OR_RETURN(std::string text, TextOfPayload(*payload, node->path));
      TreeNode value;
      value.key = node->key;
      value.path = node->path;
      value.text = std::move(text);
      if (&holder == holders.data()) {
        texts.push_back(value.text);
        *node = std::move(value);
      } else if (std::find(texts.begin(), texts.end(), value.text) == texts.end()) {
        texts.push_back(value.text);
        const RankImage* outer = std::exchange(image_, &images_[holder.image]);
        const absl::Status merged = Merge(node, &value);
        image_ = outer;
        NEVE_RETURN_IF_ERROR(merged);
      }
    }
    return absl::OkStatus();
  }

  // Bytes and text stand in a blob as they are.
  static absl::StatusOr<std::string> TextOfPayload(std::string_view payload, const std::string& path) {
    const std::string_view kind = payload.substr(0, 1), content = payload.substr(kind.size());
    if (kind == "v") return std::string(content);
    if (kind == "y" || kind == "s") return std::string(kind) + codec::Base64UrlEncode(content) + ";";
    return Damaged(absl::StrFormat("%s: a blob of an unknown kind", Quoted(path)));
  }

  // Text may be written in quotes or in base64url.
  static absl::StatusOr<bool> SameValue(const std::string& a, const std::string& b) {
    if (a == b) return true;
    const auto is_text = [](const std::string& text) { return text.starts_with('\'') || text.starts_with('s'); };
    if (!is_text(a) || !is_text(b)) return false;
    ValuesReader reader_a(a), reader_b(b);
    NEVE_ASSIGN_OR_RETURN(const Value value_a, reader_a.Next());
    NEVE_ASSIGN_OR_RETURN(const Value value_b, reader_b.Next());
    return value_a.text == value_b.text;
  }

  std::string FirstHolder(const TreeNode& node) const {
    const bool leaf = node.kind == TreeNode::Kind::kTensor || node.kind == TreeNode::Kind::kBlob;
    return leaf ? absl::StrFormat("rank %d", images_[merged_.leaves[node.index].holders.front().image].rank) : FirstRank();
  }

  absl::Status Merge(TreeNode* into, TreeNode* from) {
    using Kind = TreeNode::Kind;
    if (into->kind == Kind::kTensor && from->kind == Kind::kTensor) return MergeTensors(into, from);
    // A tensor here, the same object as another there: the tensor's own elements decide.
    if (into->kind == Kind::kTensor && from->kind == Kind::kSame) return absl::OkStatus();
    if (into->kind == Kind::kSame && from->kind == Kind::kTensor) {
      *into = std::move(*from);
      return absl::OkStatus();
    }
    NEVE_RETURN_IF_ERROR(MakeAlike(into, from));
    if (into->kind != from->kind || into->type != from->type) {
      DifferInKind(*into, *from);
      return absl::OkStatus();
    }
    switch (into->kind) {
      case Kind::kTensor: break;   // above
      case Kind::kValue: {
        NEVE_ASSIGN_OR_RETURN(const bool same, SameValue(into->text, from->text));
        if (!same) Differ(*into, "has different values");
        break;
      }
      case Kind::kSame:
        if (into->text != from->text) Differ(*into, "is the same object as different tensors");
        break;
      case Kind::kMeta:
        if (into->extra != from->extra) Differ(*into, "is of different kinds");
        break;
      case Kind::kBlob: {
        std::vector<GlobalHolder>& holders = merged_.leaves[into->index].holders;
        const std::vector<GlobalHolder>& more = merged_.leaves[from->index].holders;
        holders.insert(holders.end(), more.begin(), more.end());
        break;
      }
      case Kind::kDict: NEVE_RETURN_IF_ERROR(MergeKeys(into, from)); break;
      case Kind::kList:
      case Kind::kComposite:
      case Kind::kOpaque: {
        if (into->kind != Kind::kList && (into->text != from->text || into->extra != from->extra ||
                                          into->children.size() != from->children.size())) {
          DifferInKind(*into, *from);
          return absl::OkStatus();
        }
        for (size_t i = 0; i < from->children.size(); ++i) {
          if (i < into->children.size()) {
            NEVE_RETURN_IF_ERROR(Merge(&into->children[i], &from->children[i]));
          } else {
            into->children.push_back(std::move(from->children[i]));
          }
        }
        break;
      }
    }
    return MergeAttributes(into, from);
  }

  absl::Status MergeAttributes(TreeNode* into, TreeNode* from) {
    if (from->attributes == nullptr) return absl::OkStatus();
    if (into->attributes != nullptr) return Merge(into->attributes.get(), from->attributes.get());
    into->attributes = std::move(from->attributes);
    return absl::OkStatus();
  }

  absl::Status MergeTensors(TreeNode* into, TreeNode* from) {
    GlobalLeaf& first = merged_.leaves[into->index];
    const GlobalLeaf& second = merged_.leaves[from->index];
    const bool logical = first.kind == GlobalLeaf::Kind::kLogical;
    if (logical != (second.kind == GlobalLeaf::Kind::kLogical)) {
      return Damaged(absl::StrFormat("%s is a piece of a logical tensor on %s and a whole tensor on %s", Quoted(into->path),
                                     logical ? FirstHolder(*into) : ThisRank(), logical ? ThisRank() : FirstHolder(*into)));
    }
    if (logical && into->index != from->index) {
      return Damaged(absl::StrFormat("%s is a piece of %s on %s and of %s on %s", Quoted(into->path), Quoted(first.name),
                                     FirstHolder(*into), Quoted(second.name), ThisRank()));
    }
    if (!logical) first.holders.insert(first.holders.end(), second.holders.begin(), second.holders.end());
    return MergeAttributes(into, from);
  }

  // Children of `from` that `into` lacks come after its own, in their order.
  absl::Status MergeKeys(TreeNode* into, TreeNode* from) {
    std::unordered_map<std::string_view, size_t> by_key;
    for (size_t i = 0; i < into->children.size(); ++i) by_key.emplace(into->children[i].key, i);
    std::vector<TreeNode*> more;
    for (TreeNode& child : from->children) {
      const auto found = by_key.find(child.key);
      if (found == by_key.end()) {
        more.push_back(&child);
      } else {
        NEVE_RETURN_IF_ERROR(Merge(&into->children[found->second], &child));
      }
    }
    for (TreeNode* child : more) into->children.push_back(std::move(*child));
    return absl::OkStatus();
  }

  const std::span<const RankImage> images_;
  Disagreements* const disagreements_;
  const BlobPayload& payload_;
  std::vector<TreeClass> classes_;
  const RankImage* image_ = nullptr;   // the first of the class that is being merged
  GlobalTree merged_;
  LeafMaker maker_{&merged_};
};

// Whether a glob can match the path, or something above or below it. Rather too often than not: a set or a single wildcard counts as
// any text from there on, for what they match other languages have their own word.
bool MayMeet(std::string_view pattern, std::string_view path) {
  if (path.empty()) return true;
  std::string simple(pattern.substr(0, pattern.find_first_of("?[")));
  if (simple.size() < pattern.size()) simple.push_back('*');
  // at[i]: the first i characters of the pattern match what has been seen of the path.
  std::vector<bool> at(simple.size() + 1, false);
  at[0] = true;
  const auto pass_stars = [&] {
    for (size_t i = 0; i < simple.size(); ++i) {
      if (at[i] && simple[i] == '*') at[i + 1] = true;
    }
  };
  pass_stars();
  for (size_t p = 0; p <= path.size(); ++p) {
    const char c = p < path.size() ? path[p] : '.';
    if (at[simple.size()] && c == '.') return true;   // it matches this place, or one above
    bool any = false;
    for (size_t i = simple.size() + 1; i-- > 0;) {
      const bool stays = i < simple.size() && at[i] && simple[i] == '*';
      const bool steps = i > 0 && at[i - 1] && simple[i - 1] == c;
      at[i] = stays || steps;
      any = any || at[i];
    }
    if (!any) return false;
    pass_stars();
  }
  return true;   // what is left of it can match something below
}

}  // namespace

bool Disagreements::Matters(const std::string& path) const {
  const auto& include = options_.include;
  return !include.has_value() || std::any_of(include->begin(), include->end(), [&](const auto& pattern) { return MayMeet(pattern, path); });
}

bool Disagreements::LogicalMatters(const std::string& path) const {
  return (options_.include.has_value() && options_.include->empty()) || Matters(path);
}

bool Disagreements::RankZeroSpeaks(const std::string& path) const {
  return std::any_of(options_.take_rank0.begin(), options_.take_rank0.end(), [&](const std::string& pattern) {
    return pattern == path || ::fnmatch(pattern.c_str(), path.c_str(), FNM_NOESCAPE) == 0 ||
           ::fnmatch((pattern + ".*").c_str(), path.c_str(), FNM_NOESCAPE) == 0;
  });
}

void Disagreements::Add(const std::string& path, const std::string& what) {
  if (by_rank()) {
    paths_.insert(path);
    return;
  }
  if (++count_ <= kTextsMax) texts_.push_back(absl::StrFormat("%s %s", Quoted(path), what));
}

absl::Status Disagreements::status() const {
  if (count_ == 0) return absl::OkStatus();
  std::string text;
  for (const std::string& one : texts_) text += "\n  " + one;
  if (count_ > texts_.size()) text += absl::StrFormat("\n  and %d more", count_ - texts_.size());
  return Unsupported(absl::StrFormat("the ranks' states differ where one of them must be taken for all: restore with take_rank0 patterns "
                                     "for what rank 0 may speak for, name what is wanted with include=, or save what differs as "
                                     "pieces:%s",
                                     text));
}

absl::StatusOr<GlobalTree> MergeTrees(std::span<const RankImage> images, Disagreements* disagreements, const BlobPayload& payload) {
  return Merger(images, disagreements, payload).Run();
}

}  // namespace neve::format
