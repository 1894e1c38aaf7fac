// The trees of all ranks as one. Internal to global_image.h.
//
// Ranks whose structure is the same text share one tree. A tensor, a box of a logical tensor and a blob become leaves, which know
// who holds them; the rest of a node merges by its kind.
#ifndef NEVE_FORMAT_GLOBAL_TREE_H_
#define NEVE_FORMAT_GLOBAL_TREE_H_

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error/status.h"
#include "format/global_image.h"
#include "format/state_tree.h"

namespace neve::format {

struct GlobalHolder {
  uint32_t image;   // into the images
  uint32_t index;   // of the tensor in it, or the number of the blob
};

struct GlobalLeaf {
  enum class Kind : uint8_t { kPlain, kLogical, kBlob };
  Kind kind = Kind::kPlain;
  std::string name;                      // of the tensor; the logical one of boxes
  std::string path;                      // of its place
  std::vector<GlobalHolder> holders;     // by image; several of one image for its boxes
};

// What the ranks do not agree on, gathered to be told at once, or to be shown by rank.
class Disagreements {
 public:
  Disagreements(std::vector<std::string> take_rank0, Differing differing)
      : differing_(differing), patterns_(std::move(take_rank0)) {}
  bool RankZeroWins(const std::string& path) const;
  void Add(const std::string& path, const std::string& what);
  absl::Status status() const;           // Unsupported when any was added that may not differ
  std::set<std::string> TakePaths() { return std::move(paths_); }   // of those added that may

 private:
  const Differing differing_;
  std::set<std::string> paths_;
  std::vector<std::string> patterns_;
  std::vector<std::string> texts_;
  uint64_t count_ = 0;
};

struct GlobalTree {
  TreeNode root;                         // index of a tensor or blob: into leaves
  bool flat = false;
  std::deque<GlobalLeaf> leaves;         // which stay where they are when more are added
};
absl::StatusOr<GlobalTree> MergeTrees(std::span<const RankImage> images, Disagreements* disagreements);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_TREE_H_
