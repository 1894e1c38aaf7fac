// The trees of all ranks as one. Internal to global_image.h.
//
// Ranks whose structure is the same text share one tree. A tensor, a box of a logical tensor and a blob become leaves, which know
// who holds them; the rest of a node merges by its kind.
#ifndef NEVE_FORMAT_GLOBAL_TREE_H_
#define NEVE_FORMAT_GLOBAL_TREE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
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

// What the ranks do not agree on, gathered to be told at once.
class Disagreements {
 public:
  explicit Disagreements(std::vector<std::string> take_rank0) : patterns_(std::move(take_rank0)) {}
  bool RankZeroWins(const std::string& path) const;
  void Add(const std::string& path, const std::string& what);
  absl::Status status() const;           // Unsupported when any was added

 private:
  std::vector<std::string> patterns_;
  std::vector<std::string> texts_;
  uint64_t count_ = 0;
};

struct GlobalTree {
  TreeNode root;                         // index of a tensor or blob: into leaves
  bool flat = false;
  std::vector<GlobalLeaf> leaves;
};
absl::StatusOr<GlobalTree> MergeTrees(std::span<const RankImage> images, Disagreements* disagreements);

// "rank 3", "ranks 0, 1 and 2".
std::string RanksText(std::span<const uint32_t> ranks);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_TREE_H_
