#include "format/global_pieces.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/piece.h"

namespace neve::format {
namespace {

struct Held {
  const LogicalTensor* tensor;
  uint32_t image;

  const Piece& piece() const { return *tensor->piece; }
  bool SameBox(const Held& other) const {
    return piece().offset == other.piece().offset && tensor->shape == other.tensor->shape;
  }
};

class Joiner {
 public:
  Joiner(std::span<const RankImage> images, const GlobalLeaf& leaf) : images_(images), leaf_(leaf) {
    for (const GlobalHolder& holder : leaf.holders) held_.push_back({&images[holder.image].tensors[holder.index], holder.image});
  }

  absl::StatusOr<GlobalEntry> Run() {
    const Held& first = held_.front();
    for (const Held& held : held_) {
      if (held.tensor->dtype != first.tensor->dtype) {
        return Wrong(absl::StrFormat("is %s on %s and %s on %s", Name(first.tensor->dtype), RankOf(first), Name(held.tensor->dtype),
                                     RankOf(held)));
      }
      if (held.piece().global_shape != first.piece().global_shape) {
        return Wrong(absl::StrFormat("has the global shape %s on %s and %s on %s", Shape(first), RankOf(first), Shape(held),
                                     RankOf(held)));
      }
    }
    entry_.cut = true;
    entry_.dtype = first.tensor->dtype;
    entry_.shape = first.piece().global_shape;
    entry_.boxes = tensor::BoxIndex(entry_.shape.size());
    AddBoxes();
    NEVE_RETURN_IF_ERROR(CheckOverlap());
    NEVE_RETURN_IF_ERROR(CheckCover());
    return std::move(entry_);
  }

 private:
  // Identical boxes are copies of one.
  void AddBoxes() {
    std::erase_if(held_, [](const Held& held) { return tensor::IsEmptyBox(held.tensor->shape); });
    std::stable_sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) {
      if (a.piece().offset != b.piece().offset) return a.piece().offset < b.piece().offset;
      return a.tensor->shape != b.tensor->shape ? a.tensor->shape < b.tensor->shape : a.image < b.image;
    });
    for (size_t i = 0; i < held_.size(); ++i) {
      const Held& held = held_[i];
      if (i == 0 || !held.SameBox(held_[i - 1])) {
        entry_.boxes.Add(held.piece().offset, held.tensor->shape);
        entry_.first_copy.push_back(static_cast<uint32_t>(entry_.copies.size()));
      }
      const HeaderTensor& stored = images_[held.image].header->tensors[held.tensor->stored_index];
      entry_.copies.push_back({held.image, stored.offset, ExpandedDimensions(*held.tensor)});
    }
    entry_.first_copy.push_back(static_cast<uint32_t>(entry_.copies.size()));
    entry_.boxes.Sort();
  }

  std::string BoxOf(size_t box) const { return BoxText(entry_.boxes.offset(box), entry_.boxes.extent(box)); }
  std::string HolderOf(size_t box) const {
    return absl::StrFormat("rank %d", images_[entry_.copies[entry_.first_copy[box]].image].rank);
  }

  absl::Status CheckOverlap() const {
    for (size_t box = 0; box < entry_.boxes.size(); ++box) {
      std::optional<size_t> other;
      entry_.boxes.ForEachMeeting(entry_.boxes.offset(box), entry_.boxes.extent(box), [&](size_t meeting) {
        if (meeting != box) other = meeting;
        return !other.has_value();
      });
      if (other.has_value()) {
        return Wrong(absl::StrFormat("has the piece %s on %s and %s on %s, which overlap and are not the same", BoxOf(box),
                                     HolderOf(box), BoxOf(*other), HolderOf(*other)));
      }
    }
    return absl::OkStatus();
  }

  // Boxes that lie inside and share nothing cover the whole when they are as large as it.
  absl::Status CheckCover() const {
    uint64_t covered = 0;
    for (size_t box = 0; box < entry_.boxes.size(); ++box) covered += *tensor::ElementCount(entry_.boxes.extent(box));
    const uint64_t all = *tensor::ElementCount(entry_.shape);
    if (covered == all) return absl::OkStatus();
    const std::optional<tensor::Dims> gap = FindGap();
    const std::string where = gap.has_value() ? ", the first of them at " + PointText(*gap) : "";
    return Wrong(absl::StrFormat("has %d of its %d elements (global shape %s) on no rank%s; the pieces are of %s", all - covered, all,
                                 BoxText(tensor::Dims(entry_.shape.size(), 0), entry_.shape), where, RanksText(Ranks())));
  }

  // An element beside some box, or the first, that no box has.
  std::optional<tensor::Dims> FindGap() const {
    tensor::Dims point(entry_.shape.size(), 0);
    if (IsGap(point)) return point;
    for (size_t box = 0; box < entry_.boxes.size(); ++box) {
      for (size_t i = 0; i < entry_.shape.size(); ++i) {
        const std::span<const int64_t> offset = entry_.boxes.offset(box);
        point.assign(offset.begin(), offset.end());
        point[i] += entry_.boxes.extent(box)[i];
        if (point[i] < entry_.shape[i] && IsGap(point)) return point;
      }
    }
    return std::nullopt;
  }

  bool IsGap(const tensor::Dims& point) const {
    bool met = false;
    entry_.boxes.ForEachMeeting(point, tensor::Dims(point.size(), 1), [&](size_t) {
      met = true;
      return false;
    });
    return !met;
  }

  static std::string PointText(const tensor::Dims& point) {
    std::string text;
    AppendNumbers(point, &text);
    return text;
  }

  std::vector<uint32_t> Ranks() const {
    std::vector<uint32_t> ranks;
    for (const GlobalCopy& copy : entry_.copies) ranks.push_back(images_[copy.image].rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  absl::Status Wrong(const std::string& what) const {
    return Damaged(absl::StrFormat("the logical tensor %s %s", Quoted(leaf_.name), what));
  }
  std::string RankOf(const Held& held) const { return absl::StrFormat("rank %d", images_[held.image].rank); }
  static std::string Shape(const Held& held) { return PointText(held.piece().global_shape); }

  const std::span<const RankImage> images_;
  const GlobalLeaf& leaf_;
  std::vector<Held> held_;
  GlobalEntry entry_;
};

}  // namespace

absl::StatusOr<GlobalEntry> JoinPieces(std::span<const RankImage> images, const GlobalLeaf& leaf) { return Joiner(images, leaf).Run(); }

}  // namespace neve::format
