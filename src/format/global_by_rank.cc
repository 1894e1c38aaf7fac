#include "format/global_by_rank.h"

#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "format/global_leaves.h"

namespace neve::format {
namespace {

using Paths = std::set<std::string>;

bool LiesIn(std::string_view name, std::string_view place) {
  return place.empty() || name == place || (name.size() > place.size() && name.starts_with(place) && name[place.size()] == '.');
}

// A name of a place or below it, as it is called of that rank.
std::string NameOf(const std::string& name, const std::string& place, const std::string& key) {
  if (place.empty()) return name.empty() ? key : key + "." + name;
  return LiesIn(name, place) ? place + "." + key + name.substr(place.size()) : name + "." + key;
}

void Rename(TreeNode* node, const std::string& place, const std::string& key) {
  node->path = NameOf(node->path, place, key);
  if (node->attributes != nullptr) Rename(node->attributes.get(), place, key);
  for (TreeNode& child : node->children) Rename(&child, place, key);
}

template <typename Visit>
void ForEachNode(TreeNode* node, const Visit& visit) {
  if (!visit(node)) return;
  if (node->attributes != nullptr) ForEachNode(node->attributes.get(), visit);
  for (TreeNode& child : node->children) ForEachNode(&child, visit);
}

// The first node of each of these paths: of a composite and its parts, which have one path, the composite.
std::map<std::string, TreeNode*> FindPlaces(TreeNode* root, const Paths& paths) {
  std::map<std::string, TreeNode*> places;
  ForEachNode(root, [&](TreeNode* node) {
    if (!paths.contains(node->path)) return true;
    places.emplace(node->path, node);
    return false;
  });
  return places;
}

class Namer {
 public:
  Namer(std::span<const RankImage> images, Paths paths, GlobalTree* tree)
      : images_(images), paths_(std::move(paths)), tree_(tree), maker_(tree) {}

  absl::Status Run() {
    AddReferences();
    places_ = FindPlaces(&tree_->root, paths_);
    for (auto& [path, node] : places_) {
      TreeNode by_rank;
      by_rank.kind = TreeNode::Kind::kDict;
      by_rank.key = node->key;
      by_rank.path = node->path;
      *node = std::move(by_rank);
    }
    for (uint32_t i = 0; i < images_.size(); ++i) NEVE_RETURN_IF_ERROR(AddRank(i));
    if (tree_->flat) Flatten();
    return absl::OkStatus();
  }

 private:
  // What is a tensor of such a place again is as different as it.
  void AddReferences() {
    std::unordered_set<std::string> names;
    for (const auto& [path, node] : FindPlaces(&tree_->root, paths_)) {
      ForEachNode(node, [&](TreeNode* below) {
        const bool plain = below->kind == TreeNode::Kind::kTensor && tree_->leaves[below->index].kind == GlobalLeaf::Kind::kPlain;
        if (plain) names.insert(tree_->leaves[below->index].name);
        return true;
      });
    }
    ForEachNode(&tree_->root, [&](TreeNode* node) {
      if (node->kind == TreeNode::Kind::kSame && names.contains(node->text)) paths_.insert(node->path);
      return true;
    });
    for (GlobalLeaf& leaf : tree_->leaves) {   // they stand nowhere any more, so nothing may be the same as they
      if (leaf.kind == GlobalLeaf::Kind::kPlain && names.contains(leaf.name)) leaf.name.clear();
    }
  }

  absl::Status AddRank(uint32_t image) {
    NEVE_ASSIGN_OR_RETURN(StateTree tree, ReadStateTree(*images_[image].header, images_[image].tensors));
    const std::string key = absl::StrFormat("@%d", images_[image].rank);
    std::unordered_map<std::string, std::string> renamed;   // plain tensors of these places
    std::vector<TreeNode*> added;
    for (const auto& [path, from] : FindPlaces(&tree.root, paths_)) {
      const auto place = places_.find(path);
      if (place == places_.end()) continue;
      const size_t first_leaf = tree_->leaves.size();
      NEVE_RETURN_IF_ERROR(maker_.Run(images_[image], {&image, 1}, from));
      Rename(from, path, key);
      for (size_t i = first_leaf; i < tree_->leaves.size(); ++i) {
        GlobalLeaf& leaf = tree_->leaves[i];
        leaf.path = NameOf(leaf.path, path, key);
        if (leaf.kind != GlobalLeaf::Kind::kPlain) continue;
        std::string name = NameOf(leaf.name, path, key);
        renamed.emplace(leaf.name, name);
        leaf.name = std::move(name);
      }
      from->key = key;
      place->second->children.push_back(std::move(*from));
      added.push_back(&place->second->children.back());
    }
    for (TreeNode* node : added) {
      ForEachNode(node, [&](TreeNode* below) {
        if (below->kind != TreeNode::Kind::kSame) return true;
        if (const auto found = renamed.find(below->text); found != renamed.end()) below->text = found->second;
        return true;
      });
    }
    return absl::OkStatus();
  }

  // A flat set of tensors has no dictionaries but itself.
  void Flatten() {
    std::vector<TreeNode> children;
    for (TreeNode& child : tree_->root.children) {
      if (child.kind != TreeNode::Kind::kDict) {
        children.push_back(std::move(child));
        continue;
      }
      for (TreeNode& one : child.children) {
        one.key = one.path;
        children.push_back(std::move(one));
      }
    }
    tree_->root.children = std::move(children);
  }

  const std::span<const RankImage> images_;
  Paths paths_;
  GlobalTree* const tree_;
  LeafMaker maker_;
  std::map<std::string, TreeNode*> places_;   // of the merged tree
};

}  // namespace

absl::Status NameByRank(std::span<const RankImage> images, std::set<std::string> paths, GlobalTree* tree) {
  return paths.empty() ? absl::OkStatus() : Namer(images, std::move(paths), tree).Run();
}

}  // namespace neve::format
