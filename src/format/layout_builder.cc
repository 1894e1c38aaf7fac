// Builds a Layout in four steps: check and classify the tensors, decide what of them is stored, place it, write the header.
// Everything is linear but the two sorts, of addresses and of names.
#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "base/codec/text.h"
#include "format/alias_groups.h"
#include "format/json_reader.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/name_order.h"
#include "format/own_digests.h"
#include "format/tree_walk.h"

namespace neve::format {
namespace {

using tensor::Density;

constexpr uint64_t kImageBytesMax = uint64_t{1} << 62;
constexpr int kTreeDepthMax = 1000;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

struct Facts {
  Density density;
  uint64_t stored_bytes;       // of its own entry: without the expanded dimensions
  uint32_t base = kNone;       // of an alias: index into entries
  uint64_t base_offset = 0;    // of an alias: bytes from the start of its base
};

// One entry of the header, and one range of the data.
struct Entry {
  StoredTensor::Source source;
  uint32_t index;
  int64_t address_delta = 0;
  std::string hidden_name;     // of blobs and bases; a tensor's is its own
  uint64_t bytes;
  uint64_t alignment;
  uint64_t offset = 0;         // within the data
};

// Whether the elements along a dimension are one. Asked of expanded tensors only: an empty tensor's strides say nothing.
bool IsExpanded(const TensorSpec& spec, size_t dimension) {
  return spec.strides[dimension] == 0 && spec.shape[dimension] > 1;
}

}  // namespace

class LayoutBuilder {
 public:
  LayoutBuilder(std::shared_ptr<const Structure> structure, std::span<const void* const> addresses,
                const Capacities& capacities)
      : structure_(std::move(structure)), tensors_(structure_->tensors), addresses_(addresses), capacities_(capacities) {}

  absl::StatusOr<std::shared_ptr<const Layout>> Build() {
    NEVE_RETURN_IF_ERROR(CheckTensors());
    NEVE_RETURN_IF_ERROR(CheckRest());
    NEVE_RETURN_IF_ERROR(SortNames());
    ChooseEntries();
    NEVE_RETURN_IF_ERROR(Place());
    auto layout = std::make_shared<Layout>();
    NEVE_RETURN_IF_ERROR(WriteHeader(layout.get()));
    Fill(layout.get());
    return std::shared_ptr<const Layout>(std::move(layout));
  }

 private:
  // ---- checks ----

  absl::Status CheckTensors() {
    if (addresses_.size() != tensors_.size()) {
      return Invalid(absl::StrFormat("%d addresses for %d tensors", addresses_.size(), tensors_.size()));
    }
    if (tensors_.size() >= kNone) return Invalid("more tensors than 32 bits count");
    facts_.reserve(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorSpec& spec = tensors_[i];
      if (absl::Status status = CheckTensor(spec, addresses_[i]); !status.ok()) {
        return Annotate(status, absl::StrFormat("tensor %s", Quoted(spec.name)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensor(const TensorSpec& spec, const void* address) {
    if (spec.name == "__metadata__" || IsHiddenName(spec.name)) {
      return Invalid("the name is reserved; escape it");
    }
    if (!codec::IsValidUtf8(spec.name)) return Invalid("the name is not valid UTF-8");
    const uint64_t item_bytes = ItemBytes(spec.dtype);
    if (item_bytes == 0) return Invalid(absl::StrFormat("unknown dtype %d", static_cast<int>(spec.dtype)));
    NEVE_ASSIGN_OR_RETURN(const Density density, tensor::Classify(spec.shape, spec.strides));
    uint64_t bytes = item_bytes;   // Classify has bounded the product of the extents
    bool empty = false;
    for (size_t i = 0; i < spec.shape.size(); ++i) {
      empty = empty || spec.shape[i] == 0;
      if (!IsExpanded(spec, i) && __builtin_mul_overflow(bytes, static_cast<uint64_t>(spec.shape[i]), &bytes)) bytes = UINT64_MAX;
    }
    if (empty) bytes = 0;
    const uint64_t span = tensor::SpanBytes(spec.shape, spec.strides, item_bytes);
    if (bytes > kImageBytesMax || span > kImageBytesMax) return Invalid("its bytes overflow");
    if (density != Density::kContiguous && span > kSpanBytesMax) {
      return Invalid(absl::StrFormat("its strides span %d bytes, over the limit of %d; make it contiguous", span, kSpanBytesMax));
    }
    if (spec.piece != nullptr) {
      NEVE_RETURN_IF_ERROR(CheckPiece(spec.shape, spec.dtype, *spec.piece));
      if (density == Density::kOverlapping) return Invalid("a piece whose elements share memory; make it contiguous");
    }
    const uint64_t begin = reinterpret_cast<uint64_t>(address);
    if (span > 0 && (address == nullptr || begin + span < begin)) {
      return Invalid(address == nullptr ? "it has no memory" : "its memory wraps around the end of the address space");
    }
    facts_.push_back({density, bytes});
    return absl::OkStatus();
  }

  absl::Status CheckRest() {
    if (capacities_.blob_bytes.size() != structure_->blob_count) {
      return Invalid(absl::StrFormat("%d blobs, but capacities for %d", structure_->blob_count, capacities_.blob_bytes.size()));
    }
    for (const uint64_t bytes : capacities_.blob_bytes) {
      if (bytes > kImageBytesMax) return Invalid("the capacity of a blob overflows");
    }
    if (capacities_.values_bytes > kHeaderBytesMax) return HeaderTooLarge(capacities_.values_bytes);
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : structure_->metadata) {
      if (key.starts_with("neve.") && key != kDigestsKey) return Invalid(absl::StrFormat("the metadata key %s is reserved", Quoted(key)));
      if (!codec::IsValidUtf8(key) || !codec::IsValidUtf8(value)) {
        return Invalid(absl::StrFormat("the metadata of key %s is not valid UTF-8", Quoted(key)));
      }
      keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end());
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) {
      return Invalid(absl::StrFormat("the metadata key %s stands twice", Quoted(*twice)));
    }
    if (!structure_->tree.empty()) {
      JsonReader tree(structure_->tree, kTreeDepthMax);
      tree.Skip();
      if (absl::Status status = tree.Finish(); !status.ok()) {
        return Invalid(absl::StrFormat("the tree is not JSON: %s", std::string(status.message())));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SortNames() {
    std::vector<std::string_view> names;
    names.reserve(tensors_.size());
    for (const TensorSpec& spec : tensors_) names.push_back(spec.name);
    name_order_ = NameOrder(names);
    for (size_t i = 1; i < name_order_.size(); ++i) {
      if (names[name_order_[i - 1]] == names[name_order_[i]]) {
        return Invalid(absl::StrFormat("the name %s is given to tensor %d and to tensor %d", Quoted(names[name_order_[i]]),
                                       name_order_[i - 1], name_order_[i]));
      }
    }
    return absl::OkStatus();
  }

  // ---- what is stored ----

  uint64_t Address(uint32_t index) const { return reinterpret_cast<uint64_t>(addresses_[index]); }

  // The member that stands for its group: dense, and all of the union. Contiguous ones first, then the least name, so that the
  // choice does not depend on the order of the state's dictionaries.
  uint32_t DenseUnion(const AliasGroup& group) const {
    uint32_t best = kNone;
    for (const uint32_t member : group.members) {
      const Density density = facts_[member].density;
      if (density != Density::kContiguous && density != Density::kPermuted) continue;
      if (facts_[member].stored_bytes != group.end - group.begin) continue;
      if (best == kNone || std::pair(density, std::string_view(tensors_[member].name)) <
                               std::pair(facts_[best].density, std::string_view(tensors_[best].name))) {
        best = member;
      }
    }
    return best;
  }

  void ChooseEntries() {
    std::vector<AliasGroup> groups = FindAliasGroups(tensors_, addresses_);
    signature_ = AliasSignature(groups, addresses_);
    std::vector<bool> grouped(tensors_.size(), false);
    for (const AliasGroup& group : groups) {
      for (const uint32_t member : group.members) grouped[member] = true;
    }
    // A view that overlaps itself is an alias too, of a base that only it has.
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (grouped[i] || facts_[i].density != Density::kOverlapping) continue;
      const uint64_t span = tensor::SpanBytes(tensors_[i].shape, tensors_[i].strides, ItemBytes(tensors_[i].dtype));
      groups.push_back({{i}, Address(i), Address(i) + span});
    }
    std::sort(groups.begin(), groups.end(),
              [](const AliasGroup& a, const AliasGroup& b) { return a.members.front() < b.members.front(); });

    std::vector<uint32_t> representative(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      representative[g] = DenseUnion(groups[g]);
      for (const uint32_t member : groups[g].members) {
        if (member == representative[g]) continue;
        facts_[member].base = static_cast<uint32_t>(g);   // the group for now, its entry below
        facts_[member].base_offset = Address(member) - groups[g].begin;
      }
    }
    entries_.reserve(tensors_.size() + groups.size() + structure_->blob_count);
    std::vector<uint32_t> entry_of(tensors_.size(), kNone);
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (facts_[i].base != kNone) continue;
      entry_of[i] = static_cast<uint32_t>(entries_.size());
      entries_.push_back({StoredTensor::Source::kTensor, i, 0, {}, facts_[i].stored_bytes, ItemBytes(tensors_[i].dtype)});
    }
    tensor_entries_ = entries_.size();
    std::vector<uint32_t> entry_of_group(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      if (representative[g] != kNone) {
        entry_of_group[g] = entry_of[representative[g]];
      } else {
        entry_of_group[g] = static_cast<uint32_t>(entries_.size());
        AddBase(groups[g]);
      }
    }
    for (Facts& facts : facts_) {
      if (facts.base != kNone) facts.base = entry_of_group[facts.base];
    }
    for (uint32_t i = 0; i < structure_->blob_count; ++i) {
      entries_.push_back({StoredTensor::Source::kBlob, i, 0, absl::StrFormat("%s%d", kBlobPrefix, i),
                          kBlobPrefixBytes + capacities_.blob_bytes[i], 1});
    }
  }

  void AddBase(const AliasGroup& group) {
    uint64_t alignment = 1;
    for (const uint32_t member : group.members) alignment = std::max(alignment, ItemBytes(tensors_[member].dtype));
    const uint64_t bytes = group.end - group.begin;
    while (bytes % alignment != 0) alignment /= 2;   // what follows it must stay aligned
    const uint32_t first = group.members.front();
    entries_.push_back({StoredTensor::Source::kBase, first, static_cast<int64_t>(group.begin - Address(first)),
                        absl::StrFormat("%s%d", kBasePrefix, base_count_++), bytes, alignment});
  }

  std::string_view NameOf(const Entry& entry) const {
    return entry.source == StoredTensor::Source::kTensor ? std::string_view(tensors_[entry.index].name) : entry.hidden_name;
  }

  // ---- where it lies ----

  // Entries by their names; the names of tensors are sorted already, the hidden ones are few.
  std::vector<uint32_t> EntriesByName() const {
    std::vector<uint32_t> entry_of(tensors_.size(), kNone), own, hidden, merged;
    for (uint32_t e = 0; e < tensor_entries_; ++e) entry_of[entries_[e].index] = e;
    for (const uint32_t index : name_order_) {
      if (entry_of[index] != kNone) own.push_back(entry_of[index]);
    }
    for (size_t e = tensor_entries_; e < entries_.size(); ++e) hidden.push_back(static_cast<uint32_t>(e));
    const auto by_name = [&](uint32_t a, uint32_t b) { return NameOf(entries_[a]) < NameOf(entries_[b]); };
    std::sort(hidden.begin(), hidden.end(), by_name);
    if (hidden.empty()) return own;
    merged.resize(entries_.size());
    std::merge(own.begin(), own.end(), hidden.begin(), hidden.end(), merged.begin(), by_name);
    return merged;
  }

  absl::Status Place() {
    // Classes in the order of the data: whole pages first, then by alignment; the names order each class.
    static constexpr std::array<uint64_t, 5> kAlignments = {16, 8, 4, 2, 1};
    const auto class_of = [](const Entry& entry) {
      const size_t by_alignment = static_cast<size_t>(std::ranges::find(kAlignments, entry.alignment) - kAlignments.begin());
      return entry.bytes % kPageBytes == 0 ? by_alignment : kAlignments.size() + by_alignment;
    };
    std::array<std::vector<uint32_t>, 2 * kAlignments.size()> classes;
    for (const uint32_t e : EntriesByName()) classes[class_of(entries_[e])].push_back(e);
    data_order_.reserve(entries_.size());
    for (const std::vector<uint32_t>& members : classes) {
      for (const uint32_t e : members) {
        entries_[e].offset = data_bytes_;
        data_bytes_ += entries_[e].bytes;
        if (data_bytes_ > kImageBytesMax) return Invalid("the bytes of all tensors overflow");
        data_order_.push_back(e);
      }
    }
    return absl::OkStatus();
  }

  // ---- the header ----

  absl::Status HeaderTooLarge(uint64_t bytes) const {
    return Exhausted(absl::StrFormat("the header would take %d bytes for %d tensors; a safetensors header may have %d (about "
                                     "600,000 tensors): spread the state over more ranks, or put small tensors together",
                                     bytes, tensors_.size(), kHeaderBytesMax));
  }

  std::string Tree() const {
    std::string tree = "{\"v\":1";
    if (!structure_->tree.empty()) tree.append(",\"root\":").append(structure_->tree);
    std::string strided, dtypes, aliases, pieces;
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      const TensorSpec& spec = tensors_[i];
      if (facts_[i].base != kNone) {
        AppendAlias(i, &aliases);
        continue;
      }
      // A scalar pair of F4 is two values, for which the header needs a dimension; its true shape stands here.
      const bool scalar_pair = spec.dtype == DType::kF4E2M1x2 && spec.shape.empty();
      if (facts_[i].density != Density::kContiguous || scalar_pair) {
        AppendName(spec.name, &strided);
        strided.push_back('[');
        AppendNumbers(spec.shape, &strided);
        strided.push_back(',');
        AppendNumbers(spec.strides, &strided);
        strided.push_back(']');
      }
      if (!HasSafetensorsName(spec.dtype)) {
        AppendName(spec.name, &dtypes);
        AppendJsonString(Name(spec.dtype), &dtypes);
      }
      if (spec.piece != nullptr) AppendPiece(spec, &pieces);
    }
    if (strided.empty() && dtypes.empty() && aliases.empty() && pieces.empty()) return tree + "}";
    tree.append(",\"tensors\":{");
    bool first = true;
    const auto part = [&](std::string_view name, char open, const std::string& text, char close) {
      if (text.empty()) return;
      if (!std::exchange(first, false)) tree.push_back(',');
      AppendJsonString(name, &tree);
      tree.push_back(':');
      tree.push_back(open);
      tree.append(text);
      tree.push_back(close);
    };
    part("strided", '{', strided, '}');
    part("dtype", '{', dtypes, '}');
    part("alias", '[', aliases, ']');
    part("piece", '{', pieces, '}');
    return tree + "}}";
  }

  static void AppendName(std::string_view name, std::string* out) {
    if (!out->empty()) out->push_back(',');
    AppendJsonString(name, out);
    out->push_back(':');
  }

  static void AppendPiece(const TensorSpec& spec, std::string* out) {
    AppendName(spec.name, out);
    out->push_back('[');
    AppendNumbers(spec.piece->global_shape, out);
    out->push_back(',');
    AppendNumbers(spec.piece->offset, out);
    if (!spec.piece->logical_name.empty() && spec.piece->logical_name != spec.name) {
      out->push_back(',');
      AppendJsonString(spec.piece->logical_name, out);
    }
    out->push_back(']');
  }

  void AppendAlias(uint32_t index, std::string* out) const {
    const TensorSpec& spec = tensors_[index];
    out->append(out->empty() ? "[" : ",[");
    AppendNumber(uint64_t{index}, out);
    out->push_back(',');
    AppendJsonString(spec.name, out);
    out->push_back(',');
    AppendJsonString(NameOf(entries_[facts_[index].base]), out);
    out->push_back(',');
    AppendNumber(facts_[index].base_offset, out);
    out->push_back(',');
    AppendJsonString(Name(spec.dtype), out);
    out->push_back(',');
    AppendNumbers(spec.shape, out);
    out->push_back(',');
    AppendNumbers(spec.strides, out);
    out->push_back(']');
  }

  static void AppendMetadata(std::string_view key, std::string_view value, std::string* out) {
    if (out->back() != '{') out->push_back(',');
    AppendJsonString(key, out);
    out->push_back(':');
    AppendJsonString(value, out);
  }

  void AppendEntry(const Entry& entry, tensor::Dims& shape, std::string* out) const {
    shape.clear();
    std::string_view dtype = Name(DType::kU8);
    if (entry.source == StoredTensor::Source::kTensor) {
      const TensorSpec& spec = tensors_[entry.index];
      const bool expanded = facts_[entry.index].density == Density::kExpanded;
      for (size_t i = 0; i < spec.shape.size(); ++i) shape.push_back(expanded && IsExpanded(spec, i) ? 1 : spec.shape[i]);
      if (!HasSafetensorsName(spec.dtype)) {
        shape.push_back(static_cast<int64_t>(ItemBytes(spec.dtype)));
      } else {
        dtype = Name(spec.dtype);
        if (spec.dtype == DType::kF4E2M1x2) {   // the header counts values, we count pairs
          if (shape.empty()) shape.push_back(1);
          shape.back() *= 2;
        }
      }
    } else {
      shape.push_back(static_cast<int64_t>(entry.bytes));
    }
    out->push_back(',');
    AppendJsonString(NameOf(entry), out);
    out->append(":{\"dtype\":\"").append(dtype).append("\",\"shape\":");
    AppendNumbers(shape, out);
    out->append(",\"data_offsets\":[");
    AppendNumber(entry.offset, out);
    out->push_back(',');
    AppendNumber(entry.offset + entry.bytes, out);
    out->append("]}");
  }

  absl::Status WriteHeader(Layout* layout) const {
    std::string& header = layout->header_;
    header.reserve(capacities_.values_bytes + structure_->tree.size() + entries_.size() * 112 + 2 * kPageBytes);
    header.assign(sizeof(uint64_t), '\0');   // the length, known at the end
    header.append("{\"__metadata__\":{");
    AppendMetadata(kFormatKey, "1", &header);
    AppendMetadata(kValuesKey, "", &header);
    header.pop_back();
    layout->values_offset_ = header.size();
    header.append(capacities_.values_bytes, ' ').push_back('"');
    AppendMetadata(kTreeKey, Tree(), &header);
    for (const auto& [key, value] : structure_->metadata) AppendMetadata(key, value, &header);
    header.push_back('}');
    tensor::Dims shape;
    for (const Entry& entry : entries_) AppendEntry(entry, shape, &header);
    header.push_back('}');
    header.append((kPageBytes - header.size() % kPageBytes) % kPageBytes, ' ');
    const uint64_t json_bytes = header.size() - sizeof(uint64_t);
    if (json_bytes > kHeaderBytesMax) return HeaderTooLarge(json_bytes);
    for (size_t i = 0; i < sizeof(uint64_t); ++i) header[i] = static_cast<char>(json_bytes >> (8 * i));
    return absl::OkStatus();
  }

  void Fill(Layout* layout) {
    layout->structure_ = structure_;
    layout->capacities_ = capacities_;
    layout->data_offset_ = layout->header_.size();
    layout->image_bytes_ = layout->data_offset_ + data_bytes_;
    layout->id_ = codec::DigestOf(std::as_bytes(std::span(layout->header_))).low;
    layout->alias_signature_ = std::move(signature_);
    layout->last_addresses_.assign(addresses_.begin(), addresses_.end());
    layout->stored_.reserve(entries_.size());
    for (const uint32_t e : data_order_) {
      const Entry& entry = entries_[e];
      StoredTensor stored{entry.source, entry.index, entry.address_delta, layout->data_offset_ + entry.offset, entry.bytes, true,
                          {}, {}};
      if (entry.source == StoredTensor::Source::kTensor && facts_[entry.index].density != Density::kContiguous) {
        const TensorSpec& spec = tensors_[entry.index];
        for (size_t i = 0; i < spec.shape.size(); ++i) {
          if (IsExpanded(spec, i)) continue;   // not empty, or it would be contiguous
          stored.shape.push_back(spec.shape[i]);
          stored.strides.push_back(spec.strides[i]);
        }
        stored.contiguous = *tensor::Classify(stored.shape, stored.strides) == Density::kContiguous;
      }
      layout->stored_.push_back(std::move(stored));
    }
  }

  std::shared_ptr<const Structure> structure_;
  std::span<const TensorSpec> tensors_;
  std::span<const void* const> addresses_;
  const Capacities& capacities_;
  std::vector<Facts> facts_;               // one a tensor
  std::vector<uint32_t> name_order_;       // of the tensors
  std::vector<Entry> entries_;             // in the order of the header
  size_t tensor_entries_ = 0;              // how many of them are tensors' own; they stand first
  uint32_t base_count_ = 0;
  std::vector<uint32_t> data_order_;       // entries in the order of the data
  uint64_t data_bytes_ = 0;
  std::string signature_;
};

absl::StatusOr<std::shared_ptr<const Layout>> Layout::Build(std::shared_ptr<const Structure> structure,
                                                           std::span<const void* const> addresses,
                                                           const Capacities& capacities) {
  return LayoutBuilder(std::move(structure), addresses, capacities).Build();
}

}  // namespace neve::format
