#include "format/global_image.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/data_order.h"
#include "format/global_by_rank.h"
#include "format/global_pieces.h"
#include "format/global_tree.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/piece.h"
#include "format/tree_facts.h"
#include "format/tree_walk.h"

namespace neve::format {
namespace {

using Kind = GlobalLeaf::Kind;

// An entry of one rank's header.
uint64_t StoredKey(uint32_t image, uint32_t stored) { return uint64_t{image} << 32 | stored; }

class Impl final : public GlobalMerge {
 public:
  Impl(std::vector<RankImage> images, GlobalOptions options)
      : images_(std::move(images)), disagreements_(std::move(options)) {}

  absl::Status Begin(const Read& read) {
    if (images_.empty()) return Internal("a merge needs images");
    NEVE_ASSIGN_OR_RETURN(tree_, MergeTrees(images_, &disagreements_,
                                            [&](const GlobalHolder& blob) { return PayloadOf(blob, read); }));
    for (GlobalLeaf& leaf : tree_.leaves) {
      std::stable_sort(leaf.holders.begin(), leaf.holders.end(),
                       [](const GlobalHolder& a, const GlobalHolder& b) { return a.image < b.image; });
      if (leaf.kind == Kind::kLogical) {
        NEVE_ASSIGN_OR_RETURN(GlobalEntry entry, JoinPieces(images_, leaf));
        CompareBoxes(leaf, joined_.emplace(&leaf, std::move(entry)).first->second);
      }
    }
    Compare(tree_.root);
    return absl::OkStatus();
  }

  std::span<const Comparison> comparisons() const override { return comparisons_; }

  absl::StatusOr<GlobalImage> Finish(const std::vector<bool>& equal) override {
    for (size_t i = 0; i < comparisons_.size(); ++i) {
      if (equal[i]) continue;
      const Comparison& comparison = comparisons_[i];
      const std::string what = absl::StrFormat("has different bytes on %s", RanksOf(comparison));
      if (!comparison.box) {
        for (const std::string& path : paths_[i]) disagreements_.Add(path, what);
      } else if (disagreements_.RankZeroSpeaks(paths_[i].front())) {
        const auto& [leaf, box] = boxes_.at(i);
        first_only_[leaf].push_back(box);
      } else {
        const std::string where = BoxText(BoxOffset(i), comparison.extent);
        if (disagreements_.by_rank()) {   // a box cannot be shown by rank
          return Damaged(absl::StrFormat("the logical tensor %s %s in the box %s", Quoted(comparison.name), what, where));
        }
        disagreements_.Add(comparison.name, absl::StrFormat("%s in the box %s", what, where));
      }
    }
    for (const auto& [leaf, boxes] : first_only_) TakeFirstCopies(boxes, &joined_.at(leaf));
    NEVE_RETURN_IF_ERROR(disagreements_.status());
    const std::set<std::string> by_rank = disagreements_.TakePaths();
    NEVE_RETURN_IF_ERROR(NameByRank(images_, by_rank, &tree_));
    NEVE_RETURN_IF_ERROR(Place(&tree_.root, nullptr));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].alias) NEVE_RETURN_IF_ERROR(PlaceBase(i));
    }
    AppendHidden();
    NEVE_ASSIGN_OR_RETURN(GlobalImage global, Assemble());
    global.by_rank.assign(by_rank.begin(), by_rank.end());
    return global;
  }

 private:
  const LogicalTensor& TensorOf(const GlobalHolder& holder) const { return images_[holder.image].tensors[holder.index]; }
  const HeaderTensor& StoredOf(uint32_t image, uint32_t stored) const { return images_[image].header->tensors[stored]; }

  std::string RanksOf(const Comparison& comparison) const {
    std::vector<uint32_t> ranks;
    for (const Comparison::Bytes& copy : comparison.copies) ranks.push_back(images_[copy.image].rank);
    return RanksText(ranks);
  }

  // ---- what must be equal ----

  // Copies of one box.
  void CompareBoxes(const GlobalLeaf& leaf, const GlobalEntry& entry) {
    for (size_t box = 0; box < entry.boxes.size(); ++box) {
      const std::span<const GlobalCopy> copies = entry.CopiesOf(box);
      if (copies.size() < 2) continue;
      if (!disagreements_.LogicalMatters(leaf.path)) {
        first_only_[&leaf].push_back(box);
        continue;
      }
      Comparison comparison;
      comparison.name = leaf.name;
      comparison.box = true;
      comparison.dtype = entry.dtype;
      comparison.extent.assign(entry.boxes.extent(box).begin(), entry.boxes.extent(box).end());
      for (const GlobalCopy& copy : copies) {
        uint64_t bytes = ItemBytes(entry.dtype);
        for (size_t i = 0; i < comparison.extent.size(); ++i) {
          if (i >= 64 || (copy.expanded >> i & 1) == 0) bytes *= static_cast<uint64_t>(comparison.extent[i]);
        }
        comparison.copies.push_back({copy.image, copy.offset, bytes, copy.expanded});
      }
      boxes_.emplace(comparisons_.size(), std::pair(&leaf, box));
      comparisons_.push_back(std::move(comparison));
      paths_.push_back({leaf.path});
    }
  }

  std::span<const int64_t> BoxOffset(size_t comparison) const {
    const auto& [leaf, box] = boxes_.at(comparison);
    return joined_.at(leaf).boxes.offset(box);
  }

  // Of those boxes the lowest rank's copy alone. boxes: ascending.
  static void TakeFirstCopies(std::span<const size_t> boxes, GlobalEntry* entry) {
    std::vector<GlobalCopy> copies;
    std::vector<uint32_t> first_copy;
    for (size_t box = 0; box < entry->boxes.size(); ++box) {
      const std::span<const GlobalCopy> held = entry->CopiesOf(box);
      const bool first = std::binary_search(boxes.begin(), boxes.end(), box);
      first_copy.push_back(static_cast<uint32_t>(copies.size()));
      copies.insert(copies.end(), held.begin(), first ? held.begin() + 1 : held.end());
    }
    first_copy.push_back(static_cast<uint32_t>(copies.size()));
    entry->copies = std::move(copies);
    entry->first_copy = std::move(first_copy);
  }

  // What a blob holds behind its length.
  absl::StatusOr<std::string> PayloadOf(const GlobalHolder& blob, const Read& read) {
    const HeaderTensor& stored = StoredOf(blob.image, BlobEntry(blob));
    const auto wrong = [&](const char* what) {
      return Damaged(absl::StrFormat("the blob %s of rank %d %s", Quoted(stored.name), images_[blob.image].rank, what));
    };
    if (stored.bytes < kBlobPrefixBytes) return wrong("is shorter than its length");
    std::array<std::byte, kBlobPrefixBytes> prefix;
    NEVE_RETURN_IF_ERROR(read(blob.image, stored.offset, prefix));
    uint64_t payload = 0;
    for (size_t i = 0; i < prefix.size(); ++i) payload |= std::to_integer<uint64_t>(prefix[i]) << (8 * i);
    if (payload > stored.bytes - kBlobPrefixBytes) return wrong("is longer than its place");
    if (payload > kTreeBytesMax) return Unsupported(absl::StrFormat("%s is a value of %d bytes on one rank and a container on another",
                                                                    Quoted(stored.name), payload));
    std::string text(payload, '\0');
    if (payload == 0) return text;
    NEVE_RETURN_IF_ERROR(read(blob.image, stored.offset + kBlobPrefixBytes, std::as_writable_bytes(std::span(text))));
    return text;
  }

  void Compare(const TreeNode& node) {
    if (node.attributes != nullptr) Compare(*node.attributes);
    for (const TreeNode& child : node.children) Compare(child);
    if (node.kind != TreeNode::Kind::kTensor && node.kind != TreeNode::Kind::kBlob) return;
    GlobalLeaf& leaf = tree_.leaves[node.index];
    if (leaf.kind == Kind::kLogical || leaf.holders.size() < 2) return;
    if (disagreements_.RankZeroWins(leaf.path)) {
      leaf.holders.resize(1);
    } else if (leaf.kind == Kind::kBlob) {
      CompareBlobs(leaf);
    } else {
      CompareTensors(leaf);
    }
  }

  void CompareTensors(GlobalLeaf& leaf) {
    const LogicalTensor& first = TensorOf(leaf.holders.front());
    std::vector<std::pair<uint32_t, uint32_t>> stored;
    for (const GlobalHolder& holder : leaf.holders) {
      const LogicalTensor& tensor = TensorOf(holder);
      const bool same_view = tensor.alias == first.alias && (!first.alias || (tensor.byte_offset == first.byte_offset &&
                                                                              tensor.strides == first.strides));
      if (tensor.dtype != first.dtype || tensor.shape != first.shape || !same_view ||
          ExpandedDimensions(tensor) != ExpandedDimensions(first)) {
        disagreements_.Add(leaf.path, absl::StrFormat("differs in type, shape or sharing of memory on rank %d and rank %d",
                                                      images_[leaf.holders.front().image].rank, images_[holder.image].rank));
        return;
      }
      stored.emplace_back(holder.image, tensor.stored_index);
    }
    Add(leaf, stored, false);
  }

  void CompareBlobs(GlobalLeaf& leaf) {
    std::vector<std::pair<uint32_t, uint32_t>> stored;
    for (const GlobalHolder& holder : leaf.holders) stored.emplace_back(holder.image, BlobEntry(holder));
    Add(leaf, stored, true);
  }

  void Add(const GlobalLeaf& leaf, std::span<const std::pair<uint32_t, uint32_t>> stored, bool blob) {
    const auto [image, entry] = stored.front();
    if (StoredOf(image, entry).bytes == 0) return;
    const auto [found, fresh] = comparison_of_.try_emplace(StoredKey(image, entry), comparisons_.size());
    if (fresh) {
      comparisons_.push_back({StoredOf(image, entry).name, blob, {}});
      paths_.emplace_back();
    }
    paths_[found->second].push_back(leaf.path);
    // Tensors that share memory compare it once.
    std::vector<Comparison::Bytes>& copies = comparisons_[found->second].copies;
    for (const auto& [other, index] : stored) {
      const HeaderTensor& bytes = StoredOf(other, index);
      if (std::any_of(copies.begin(), copies.end(),
                      [&, i = other, at = bytes.offset](const auto& copy) { return copy.image == i && copy.offset == at; })) {
        continue;
      }
      copies.push_back({other, bytes.offset, bytes.bytes});
    }
  }

  uint32_t BlobEntry(const GlobalHolder& holder) {
    if (blob_entries_.size() < images_.size()) blob_entries_.resize(images_.size());
    auto& entries = blob_entries_[holder.image];
    if (entries.empty()) {
      const std::vector<HeaderTensor>& all = images_[holder.image].header->tensors;
      for (uint32_t i = 0; i < all.size(); ++i) {
        if (IsBlobName(all[i].name)) entries.emplace(all[i].name, i);
      }
    }
    return entries.at(absl::StrFormat("%s%d", kBlobPrefix, holder.index));   // the tree was checked
  }

  // ---- what stands where ----

  // In the order in which a walk takes tensors.
  absl::Status Place(TreeNode* node, const TreeNode* parent) {
    if (node->kind == TreeNode::Kind::kSame) NEVE_RETURN_IF_ERROR(PlaceReference(node));
    if (node->kind == TreeNode::Kind::kTensor) NEVE_RETURN_IF_ERROR(PlaceTensor(node, parent));
    if (node->kind == TreeNode::Kind::kBlob) {
      blobs_.push_back(&tree_.leaves[node->index]);
      node->index = blobs_.size() - 1;
    }
    if (node->attributes != nullptr) NEVE_RETURN_IF_ERROR(Place(node->attributes.get(), nullptr));
    for (TreeNode& child : node->children) NEVE_RETURN_IF_ERROR(Place(&child, node));
    return absl::OkStatus();
  }

  // A reference to what stands after it, since the ranks' orders were joined, takes the tensor itself.
  absl::Status PlaceReference(TreeNode* node) {
    if (leaf_by_name_.empty()) {
      for (size_t i = 0; i < tree_.leaves.size(); ++i) {
        if (tree_.leaves[i].kind != Kind::kBlob) leaf_by_name_.emplace(tree_.leaves[i].name, i);
      }
    }
    const auto target = leaf_by_name_.find(node->text);
    if (target == leaf_by_name_.end()) return Damaged(absl::StrFormat("%s: a reference to no tensor", Quoted(node->path)));
    node->kind = TreeNode::Kind::kTensor;
    node->bare = false;
    node->index = target->second;
    return absl::OkStatus();
  }

  absl::Status PlaceTensor(TreeNode* node, const TreeNode* parent) {
    const GlobalLeaf& leaf = tree_.leaves[node->index];
    if (const auto placed = name_of_.find(&leaf); placed != name_of_.end()) {
      node->kind = TreeNode::Kind::kSame;
      node->bare = false;
      node->text = placed->second;
      node->attributes = nullptr;
      node->extra = nullptr;
      return absl::OkStatus();
    }
    std::string name = leaf.name;
    for (int n = 2; names_.contains(name); ++n) name = absl::StrFormat("%s~#%d", leaf.name, n);
    names_.insert(name);
    name_of_.emplace(&leaf, name);
    // Of a run the key is what follows the container's path in the name.
    if (parent != nullptr && parent->kind == TreeNode::Kind::kDict && name != node->path) node->bare = false;
    if (tree_.flat) node->bare = true;
    node->index = tensors_.size();
    const GlobalHolder& holder = leaf.holders.front();
    LogicalTensor tensor = TensorOf(holder);
    tensor.name = name;
    tensor.stored = name;
    leaves_.push_back(&leaf);
    if (leaf.kind == Kind::kLogical) {
      GlobalEntry& entry = joined_.at(&leaf);
      tensor.shape = entry.shape;
      tensor.strides = tensor::ContiguousStrides(entry.shape);
      tensor.piece = nullptr;
      header_.tensors.push_back(HeaderOf(name, entry));
      entries_.push_back(std::move(entry));
    } else if (!tensor.alias) {
      HeaderTensor stored = StoredOf(holder.image, tensor.stored_index);
      stored.name = name;
      header_.tensors.push_back(std::move(stored));
      entries_.push_back(EntryOf(leaf, tensor.dtype, tensor.shape));
      for (const GlobalHolder& own : leaf.holders) owner_.emplace(StoredKey(own.image, TensorOf(own).stored_index), name);
    }
    tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  static HeaderTensor HeaderOf(std::string name, const GlobalEntry& entry) {
    HeaderTensor header{std::move(name), entry.dtype, entry.shape, 0, *tensor::ElementCount(entry.shape) * ItemBytes(entry.dtype)};
    if (!HasSafetensorsName(entry.dtype)) {
      header.shape.push_back(static_cast<int64_t>(ItemBytes(entry.dtype)));
      header.dtype = DType::kU8;
    } else if (entry.dtype == DType::kF4E2M1x2) {   // the header counts values
      if (header.shape.empty()) header.shape.push_back(1);
      header.shape.back() *= 2;
    }
    return header;
  }

  // What lies in each copy as it is.
  GlobalEntry EntryOf(const GlobalLeaf& leaf, DType dtype, const tensor::Dims& shape) {
    GlobalEntry entry = WholeEntry(dtype, shape);
    for (const GlobalHolder& holder : leaf.holders) {
      const LogicalTensor& tensor = TensorOf(holder);
      entry.copies.push_back({holder.image, StoredOf(holder.image, tensor.stored_index).offset, ExpandedDimensions(tensor)});
    }
    entry.first_copy = {0, static_cast<uint32_t>(entry.copies.size())};
    return entry;
  }

  static GlobalEntry WholeEntry(DType dtype, const tensor::Dims& shape) {
    GlobalEntry entry;
    entry.dtype = dtype;
    entry.shape = shape;
    entry.boxes = tensor::BoxIndex(shape.size());
    entry.boxes.Add(tensor::Dims(shape.size(), 0), shape);
    entry.boxes.Sort();
    return entry;
  }

  // The base of an alias: the tensor that holds it here, or hidden bytes.
  absl::Status PlaceBase(size_t position) {
    LogicalTensor& alias = tensors_[position];
    const GlobalLeaf& leaf = *leaves_[position];
    const uint32_t image = leaf.holders.front().image, stored = TensorOf(leaf.holders.front()).stored_index;
    const HeaderTensor& base = StoredOf(image, stored);
    const uint64_t key = StoredKey(image, stored);
    if (const auto owner = owner_.find(key); owner != owner_.end()) {
      alias.stored = owner->second;
      return absl::OkStatus();
    }
    if (!IsBaseName(base.name)) {
      return Unsupported(absl::StrFormat("%s shares the memory of %s on rank %d, which is another rank's or left out here",
                                         Quoted(leaf.path), Quoted(base.name), images_[image].rank));
    }
    alias.stored = absl::StrFormat("%s%d", kBasePrefix, bases_.size());
    for (const GlobalHolder& holder : leaf.holders) owner_.emplace(StoredKey(holder.image, TensorOf(holder).stored_index), alias.stored);
    HeaderTensor header = base;
    header.name = alias.stored;
    GlobalEntry entry = WholeEntry(DType::kU8, {static_cast<int64_t>(base.bytes)});
    for (const GlobalHolder& holder : leaf.holders) {
      entry.copies.push_back({holder.image, StoredOf(holder.image, TensorOf(holder).stored_index).offset});
    }
    entry.first_copy = {0, static_cast<uint32_t>(entry.copies.size())};
    bases_.emplace_back(std::move(header), std::move(entry));
    return absl::OkStatus();
  }

  void AppendHidden() {
    for (auto& [header, entry] : bases_) {
      header_.tensors.push_back(std::move(header));
      entries_.push_back(std::move(entry));
    }
    for (size_t i = 0; i < blobs_.size(); ++i) {
      const GlobalHolder& first = blobs_[i]->holders.front();
      HeaderTensor header = StoredOf(first.image, BlobEntry(first));
      header.name = absl::StrFormat("%s%d", kBlobPrefix, i);
      GlobalEntry entry = WholeEntry(DType::kU8, {static_cast<int64_t>(header.bytes)});
      for (const GlobalHolder& holder : blobs_[i]->holders) {
        const HeaderTensor& copy = StoredOf(holder.image, BlobEntry(holder));
        if (copy.bytes == header.bytes) entry.copies.push_back({holder.image, copy.offset});   // of another capacity: padded otherwise
      }
      entry.first_copy = {0, static_cast<uint32_t>(entry.copies.size())};
      header_.tensors.push_back(std::move(header));
      entries_.push_back(std::move(entry));
    }
  }

  // ---- the header ----

  static uint64_t AlignmentOf(const HeaderTensor& tensor, const GlobalEntry& entry) {
    if (IsBlobName(tensor.name)) return 1;
    uint64_t alignment = IsBaseName(tensor.name) ? 16 : ItemBytes(entry.dtype);
    while (tensor.bytes % alignment != 0) alignment /= 2;   // what follows it must stay aligned
    return alignment;
  }

  absl::StatusOr<GlobalImage> Assemble() {
    std::vector<DataEntry> data;
    for (size_t i = 0; i < entries_.size(); ++i) {
      data.push_back({header_.tensors[i].name, header_.tensors[i].bytes, AlignmentOf(header_.tensors[i], entries_[i])});
    }
    uint64_t end = 0;
    for (const uint32_t i : DataOrder(data)) {
      header_.tensors[i].offset = end;
      if (__builtin_add_overflow(end, header_.tensors[i].bytes, &end) || end > uint64_t{1} << 62) {
        return Damaged("the bytes of all logical tensors overflow");
      }
    }
    TreeText text;
    if (!tree_.flat) text = WriteStateTree(tree_.root);
    text.values.resize(GrowCapacities({}, text.values.size(), {}).values_bytes, ' ');
    header_.metadata.emplace_back(kFormatKey, "1");
    header_.metadata.emplace_back(kValuesKey, std::move(text.values));
    header_.metadata.emplace_back(kTreeKey, TreeTextOf(text.root, tensors_));
    for (const auto& [key, value] : images_.front().header->metadata) {
      if (!key.starts_with("neve.")) header_.metadata.emplace_back(key, value);
    }
    GlobalImage global;
    NEVE_ASSIGN_OR_RETURN(global.header_text, EncodeImageHeader(header_));
    NEVE_ASSIGN_OR_RETURN(global.header, ParseImageHeader(global.header_text, global.header_text.size() + end));
    NEVE_ASSIGN_OR_RETURN(global.tensors, LogicalTensors(global.header));
    NEVE_RETURN_IF_ERROR(WalkTree(global.header, global.tensors, nullptr));
    global.entries = std::move(entries_);
    return global;
  }

  const std::vector<RankImage> images_;
  Disagreements disagreements_;
  GlobalTree tree_;
  std::unordered_map<const GlobalLeaf*, GlobalEntry> joined_;
  std::vector<Comparison> comparisons_;
  std::vector<std::vector<std::string>> paths_;                              // of what shares the bytes of each comparison
  std::unordered_map<size_t, std::pair<const GlobalLeaf*, size_t>> boxes_;   // of each that is of a box
  std::unordered_map<const GlobalLeaf*, std::vector<size_t>> first_only_;    // boxes of which the lowest rank's copy is taken
  std::unordered_map<uint64_t, size_t> comparison_of_;                       // by the first one's entry
  std::vector<std::unordered_map<std::string_view, uint32_t>> blob_entries_;   // of each image: name to entry

  std::vector<LogicalTensor> tensors_;                                       // as placed
  std::vector<const GlobalLeaf*> leaves_;                                    // of each
  std::unordered_map<const GlobalLeaf*, std::string> name_of_;               // of those placed
  std::unordered_set<std::string> names_;
  std::unordered_map<std::string, size_t> leaf_by_name_;                     // made for the first reference
  std::unordered_map<uint64_t, std::string> owner_;                          // who holds a rank's entry here
  std::vector<const GlobalLeaf*> blobs_;
  std::vector<std::pair<HeaderTensor, GlobalEntry>> bases_;
  ImageHeader header_;
  std::vector<GlobalEntry> entries_;                                         // of header_.tensors
};

}  // namespace

absl::StatusOr<std::unique_ptr<GlobalMerge>> GlobalMerge::Begin(std::vector<RankImage> images, GlobalOptions options,
                                                                const Read& read) {
  auto merge = std::make_unique<Impl>(std::move(images), std::move(options));
  NEVE_RETURN_IF_ERROR(merge->Begin(read));
  return std::unique_ptr<GlobalMerge>(std::move(merge));
}

std::string RanksText(std::span<const uint32_t> ranks) {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return ranks.size() > kNamed ? text + ", .." : text;
}

uint64_t ExpandedDimensions(const LogicalTensor& tensor) {
  uint64_t expanded = 0;
  if (tensor.alias) return expanded;   // it is its base that is stored
  for (size_t i = 0; i < tensor.shape.size() && i < 64; ++i) {
    if (tensor.strides[i] == 0 && tensor.shape[i] > 1) expanded |= uint64_t{1} << i;
  }
  return expanded;
}

}  // namespace neve::format
