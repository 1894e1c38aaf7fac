// The leaves of the trees of all ranks: what a rank's tree places, with who holds it. Internal to global_image.h.
#ifndef NEVE_FORMAT_GLOBAL_LEAVES_H_
#define NEVE_FORMAT_GLOBAL_LEAVES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error/status.h"
#include "format/global_tree.h"

namespace neve::format {

// Adds leaves to a tree. Boxes of one logical tensor go to one leaf, whichever rank brings them.
class LeafMaker {
 public:
  explicit LeafMaker(GlobalTree* tree);   // leaves of logical tensors that are there already are taken

  // Makes `index` of the tensors and blobs at and below a node that of their leaf, boxes of one tensor one tensor, and references go by
  // logical names. holders: the images that have this very tree, `image` the first of them. Damaged: a reference to no tensor, a
  // part that is no piece.
  absl::Status Run(const RankImage& image, std::span<const uint32_t> holders, TreeNode* node);

 private:
  void AddHolders(size_t leaf, uint64_t index);
  size_t NewLeaf(GlobalLeaf::Kind kind, std::string name, const TreeNode& node);
  size_t LogicalLeaf(const std::string& name, const TreeNode& node);
  absl::Status Make(TreeNode* node);
  absl::Status MakeOfBoxes(TreeNode* node);

  GlobalTree* const tree_;
  std::unordered_map<std::string, size_t> logical_;                      // leaves of logical tensors
  const RankImage* image_ = nullptr;
  std::span<const uint32_t> holders_;
  std::unordered_map<std::string_view, const LogicalTensor*> by_name_;   // of image_; made for the first reference
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_LEAVES_H_
