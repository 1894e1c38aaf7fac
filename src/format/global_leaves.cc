#include "format/global_leaves.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/tree_walk.h"

namespace neve::format {

LeafMaker::LeafMaker(GlobalTree* tree) : tree_(tree) {
  for (size_t i = 0; i < tree->leaves.size(); ++i) {
    if (tree->leaves[i].kind == GlobalLeaf::Kind::kLogical) logical_.emplace(tree->leaves[i].name, i);
  }
}

absl::Status LeafMaker::Run(const RankImage& image, std::span<const uint32_t> holders, TreeNode* node) {
  image_ = &image;
  holders_ = holders;
  by_name_.clear();
  return Make(node);
}

// The leaf takes these holders too: index i of each image.
void LeafMaker::AddHolders(size_t leaf, uint64_t index) {
  for (const uint32_t image : holders_) tree_->leaves[leaf].holders.push_back({image, static_cast<uint32_t>(index)});
}

size_t LeafMaker::NewLeaf(GlobalLeaf::Kind kind, std::string name, const TreeNode& node) {
  tree_->leaves.push_back({kind, std::move(name), node.path, {}});
  return tree_->leaves.size() - 1;
}

// The leaf of a logical tensor, whichever rank brings it first.
size_t LeafMaker::LogicalLeaf(const std::string& name, const TreeNode& node) {
  const auto [found, fresh] = logical_.try_emplace(name, tree_->leaves.size());
  if (fresh) NewLeaf(GlobalLeaf::Kind::kLogical, name, node);
  return found->second;
}

absl::Status LeafMaker::Make(TreeNode* node) {
  if (node->attributes != nullptr) NEVE_RETURN_IF_ERROR(Make(node->attributes.get()));
  switch (node->kind) {
    case TreeNode::Kind::kTensor: {
      const LogicalTensor& tensor = image_->tensors[node->index];
      const uint64_t index = node->index;
      node->index = tensor.piece != nullptr ? LogicalLeaf(tensor.logical_name(), *node)
                                            : NewLeaf(GlobalLeaf::Kind::kPlain, tensor.name, *node);
      AddHolders(node->index, index);
      return absl::OkStatus();
    }
    case TreeNode::Kind::kBlob: {
      const uint64_t number = node->index;
      node->index = NewLeaf(GlobalLeaf::Kind::kBlob, absl::StrFormat("%s%d", kBlobPrefix, number), *node);
      AddHolders(node->index, number);
      return absl::OkStatus();
    }
    case TreeNode::Kind::kSame: {
      if (by_name_.empty()) {
        for (const LogicalTensor& tensor : image_->tensors) by_name_.emplace(tensor.name, &tensor);
      }
      const auto target = by_name_.find(node->text);
      if (target == by_name_.end()) return Damaged(absl::StrFormat("%s: a reference to no tensor", Quoted(node->path)));
      node->text = target->second->logical_name();
      return absl::OkStatus();
    }
    case TreeNode::Kind::kComposite:
      if (node->type == kPiecesKind && !node->children.empty()) return MakeOfBoxes(node);
      break;
    default: break;
  }
  for (TreeNode& child : node->children) NEVE_RETURN_IF_ERROR(Make(&child));
  return absl::OkStatus();
}

// Several boxes of one logical tensor become one tensor.
absl::Status LeafMaker::MakeOfBoxes(TreeNode* node) {
  size_t leaf = 0;
  for (const TreeNode& child : node->children) {
    const LogicalTensor* tensor = child.kind == TreeNode::Kind::kTensor ? &image_->tensors[child.index] : nullptr;
    if (tensor == nullptr || tensor->piece == nullptr) return Damaged(absl::StrFormat("%s: a part is no piece", Quoted(node->path)));
    leaf = LogicalLeaf(tensor->logical_name(), *node);
    AddHolders(leaf, child.index);
  }
  node->kind = TreeNode::Kind::kTensor;
  node->type.clear();
  node->index = leaf;
  node->children.clear();
  return absl::OkStatus();
}

}  // namespace neve::format
