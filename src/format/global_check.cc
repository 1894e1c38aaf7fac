#include "format/global_check.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/global_pieces.h"
#include "format/global_tree.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

// Boxes of one logical tensor, and who holds a whole tensor of its name.
struct Held {
  GlobalLeaf leaf;
  std::vector<uint32_t> whole;   // ranks
};

class Checker {
 public:
  explicit Checker(std::span<const RankImage> images) : images_(images) {}

  PiecesCheck Run() {
    for (uint32_t i = 0; i < images_.size(); ++i) Gather(i);
    for (const RankImage& image : images_) {
      for (const LogicalTensor& tensor : image.tensors) {
        if (tensor.piece != nullptr) continue;
        if (const auto found = index_.find(tensor.name); found != index_.end()) held_[found->second].whole.push_back(image.rank);
      }
    }
    for (const Held& held : held_) Check(held);
    check_.tensors = held_.size();
    return std::move(check_);
  }

 private:
  void Gather(uint32_t image) {
    const std::span<const LogicalTensor> tensors = images_[image].tensors;
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].piece == nullptr) continue;
      const std::string& name = tensors[i].logical_name();
      const auto [found, fresh] = index_.try_emplace(name, held_.size());
      if (fresh) held_.push_back({{GlobalLeaf::Kind::kLogical, name, name, {}}, {}});
      held_[found->second].leaf.holders.push_back({image, i});
    }
  }

  void Check(const Held& held) {
    const std::string& name = held.leaf.name;
    if (!held.whole.empty()) {
      const GlobalHolder& first = held.leaf.holders.front();
      check_.problems.push_back({name, absl::StrFormat("the logical tensor %s is cut into pieces on rank %d and a whole tensor on %s",
                                                       Quoted(name), images_[first.image].rank, RanksText(held.whole))});
      return;
    }
    const absl::StatusOr<GlobalEntry> entry = JoinPieces(images_, held.leaf);
    if (!entry.ok()) {
      check_.problems.push_back({name, std::string(entry.status().message())});
      return;
    }
    for (size_t box = 0; box < entry->boxes.size(); ++box) AddReplicas(name, *entry, box);
  }

  void AddReplicas(const std::string& name, const GlobalEntry& entry, size_t box) {
    const std::span<const GlobalCopy> copies = entry.CopiesOf(box);
    if (copies.size() < 2) return;
    const uint64_t expanded = copies.front().expanded;
    if (!std::all_of(copies.begin(), copies.end(), [&](const GlobalCopy& copy) { return copy.expanded == expanded; })) {
      if (check_.unlike.empty() || check_.unlike.back() != name) check_.unlike.push_back(name);
      return;
    }
    uint64_t bytes = ItemBytes(entry.dtype);
    const std::span<const int64_t> extent = entry.boxes.extent(box);
    for (size_t i = 0; i < extent.size(); ++i) {
      if (i >= 64 || (expanded >> i & 1) == 0) bytes *= static_cast<uint64_t>(extent[i]);
    }
    Comparison comparison{name, false, {}};
    for (const GlobalCopy& copy : copies) comparison.copies.push_back({copy.image, copy.offset, bytes});
    check_.replicas.push_back(std::move(comparison));
  }

  const std::span<const RankImage> images_;
  std::vector<Held> held_;                                  // in the order in which they are met
  std::unordered_map<std::string, size_t> index_;           // by name
  PiecesCheck check_;
};

}  // namespace

PiecesCheck CheckPieces(std::span<const RankImage> images) { return Checker(images).Run(); }

}  // namespace neve::format
