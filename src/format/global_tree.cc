#include "format/global_tree.h"

#include <fnmatch.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "format/checked_json.h"
#include "format/global_leaves.h"
#include "format/json_text.h"
#include "format/layout.h"

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
  Merger(std::span<const RankImage> images, Disagreements* disagreements) : images_(images), disagreements_(disagreements) {}

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
    if (into->kind != from->kind || into->type != from->type) {
      Differ(*into, "is of different kinds");
      return absl::OkStatus();
    }
    switch (into->kind) {
      case Kind::kTensor: break;   // above
      case Kind::kValue:
        if (into->text != from->text) Differ(*into, "has different values");
        break;
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
          Differ(*into, "is of different kinds");
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
  std::vector<TreeClass> classes_;
  const RankImage* image_ = nullptr;   // the first of the class that is being merged
  GlobalTree merged_;
  LeafMaker maker_{&merged_};
};

}  // namespace

bool Disagreements::RankZeroWins(const std::string& path) const {
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
    return pattern == path || ::fnmatch(pattern.c_str(), path.c_str(), FNM_NOESCAPE) == 0 ||
           ::fnmatch((pattern + ".*").c_str(), path.c_str(), FNM_NOESCAPE) == 0;
  });
}

void Disagreements::Add(const std::string& path, const std::string& what) {
  if (differing_ == Differing::kByRank) {
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
  return Unsupported(absl::StrFormat("the ranks' states differ where one must be taken for another number of ranks: restore with "
                                     "take_rank0 patterns for what rank 0 may speak for, or save what differs as pieces:%s",
                                     text));
}

absl::StatusOr<GlobalTree> MergeTrees(std::span<const RankImage> images, Disagreements* disagreements) {
  return Merger(images, disagreements).Run();
}

}  // namespace neve::format
