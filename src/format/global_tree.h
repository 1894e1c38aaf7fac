// The trees of all ranks as one. Internal to global_image.h.
//
// Ranks whose structure is the same text share one tree. A tensor, a box of a logical tensor and a blob become leaves, which know
// who holds them; the rest of a node merges by its kind. What is all values on one rank merges as the container that it stands for.
#ifndef NEVE_FORMAT_GLOBAL_TREE_H_
#define NEVE_FORMAT_GLOBAL_TREE_H_

#include <cstdint>
#include <deque>
#include <functional>
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
  explicit Disagreements(GlobalOptions options) : options_(std::move(options)) {}
  // Whether anybody wants what stands at that place or below it; of a place above what is wanted, too.
  bool Matters(const std::string& path) const;
  bool LogicalMatters(const std::string& path) const;   // a logical tensor there
  bool RankZeroSpeaks(const std::string& path) const;   // by a pattern
  bool RankZeroWins(const std::string& path) const { return RankZeroSpeaks(path) || !Matters(path); }
  bool by_rank() const { return options_.differing == Differing::kByRank; }
  void Add(const std::string& path, const std::string& what);
  absl::Status status() const;           // Unsupported when any was added that may not differ
  std::set<std::string> TakePaths() { return std::move(paths_); }   // of those added that may

 private:
  const GlobalOptions options_;
  std::set<std::string> paths_;
  std::vector<std::string> texts_;
  uint64_t count_ = 0;
};

struct GlobalTree {
  TreeNode root;                         // index of a tensor or blob: into leaves
  bool flat = false;
  std::deque<GlobalLeaf> leaves;         // which stay where they are when more are added
};
// payload: of a blob of one image. Called for those only that hold values where another rank holds a container or a short value.
using BlobPayload = std::function<absl::StatusOr<std::string>(const GlobalHolder& blob)>;
absl::StatusOr<GlobalTree> MergeTrees(std::span<const RankImage> images, Disagreements* disagreements, const BlobPayload& payload);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_TREE_H_
