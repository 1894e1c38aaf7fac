// The making of a virtual image: what is stored under which name, where it lies in the image, and the header that says so.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/data_order.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/virtual_contents.h"
#include "format/virtual_image.h"

namespace neve::format {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kBytesMax = uint64_t{1} << 62;

bool IsEmpty(const tensor::Dims& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

bool IsRowMajor(const tensor::Dims& shape, const tensor::Dims& strides) {
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

}  // namespace

// One entry of the header.
struct ImageMaker::Entry {
  HeaderTensor header;  // offset: within the data
  uint64_t alignment;
  uint32_t storage;  // kNone: an empty tensor
};

absl::Status Origin::ReadMade(uint64_t number, uint64_t, std::span<std::byte>) const {
  return Internal(absl::StrFormat("nobody makes the storage %d", number));
}

uint32_t ImageMaker::AddStorage(uint64_t bytes, const Backing& backing) {
  storages_.push_back({bytes, backing});
  return static_cast<uint32_t>(storages_.size() - 1);
}

uint32_t ImageMaker::AddMemory(std::string bytes) {
  memory_bytes_ += bytes.size();
  memory_.push_back(std::move(bytes));
  return AddStorage(memory_.back().size(), {Backing::kMemory, memory_.size() - 1});
}

uint32_t ImageMaker::AddBlob(std::string payload) {
  std::string bytes;
  for (size_t i = 0; i < kBlobPrefixBytes; ++i) bytes.push_back(static_cast<char>(uint64_t{payload.size()} >> 8 * i));
  bytes += payload;
  blobs_.push_back(AddMemory(std::move(bytes)));
  return static_cast<uint32_t>(blobs_.size() - 1);
}

absl::Status ImageMaker::AddTensor(Tensor tensor) {
  const auto bad = [&](const std::string& what) { return Damaged(absl::StrFormat("tensor %s: %s", Quoted(tensor.name), what)); };
  if (const absl::StatusOr<tensor::Density> density = tensor::Classify(tensor.shape, tensor.strides); !density.ok()) {
    return bad(std::string(density.status().message()));
  }
  const uint64_t item_bytes = ItemBytes(tensor.dtype);
  const uint64_t span = tensor::SpanBytes(tensor.shape, tensor.strides, item_bytes);
  const uint64_t have = storages_[tensor.storage].bytes;
  if (span > kBytesMax || have > kBytesMax) return bad("its bytes overflow");
  if (span > 0 && (tensor.byte_offset > have || span > have - tensor.byte_offset)) {
    return bad(absl::StrFormat("it needs bytes [%d, %d) of its storage, which has %d", tensor.byte_offset,
                               tensor.byte_offset + span, have));
  }
  Storage& storage = storages_[tensor.storage];
  if (storage.first == kNone) storage.first = static_cast<uint32_t>(tensors_.size());
  tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

std::string ImageMaker::FirstTensorOf(uint32_t storage) const {
  const uint32_t first = storages_[storage].first;
  return first == kNone ? "" : tensors_[first].name;
}

bool ImageMaker::Covers(const Tensor& tensor) const {
  if (tensor.byte_offset != 0 || !IsRowMajor(tensor.shape, tensor.strides)) return false;
  uint64_t bytes = ItemBytes(tensor.dtype);
  for (const int64_t extent : tensor.shape)
    bytes *= static_cast<uint64_t>(extent);  // within the storage, or it would not be here
  return bytes == storages_[tensor.storage].bytes;
}

void ImageMaker::ChooseOwners() {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    if (IsEmpty(tensor.shape)) continue;
    Storage& storage = storages_[tensor.storage];
    storage.alignment = std::max(storage.alignment, static_cast<uint32_t>(ItemBytes(tensor.dtype)));
    if (Covers(tensor) && (storage.owner == kNone || tensor.name < tensors_[storage.owner].name)) storage.owner = i;
  }
  uint32_t base_count = 0;
  for (const Tensor& tensor : tensors_) {  // bases are numbered in the order of the tree
    if (IsEmpty(tensor.shape)) continue;
    Storage& storage = storages_[tensor.storage];
    if (storage.owner == kNone && storage.base_number == kNone) storage.base_number = base_count++;
  }
}

std::vector<ImageMaker::Entry> ImageMaker::MakeEntries() {
  std::vector<Entry> entries;
  entries.reserve(tensors_.size() + blobs_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const bool empty = IsEmpty(tensor.shape);
    if (!empty && storages_[tensor.storage].owner != i) continue;
    const bool named = HasSafetensorsName(tensor.dtype);
    HeaderTensor header{tensor.name, named ? tensor.dtype : DType::kU8, tensor.shape, 0,
                        empty ? 0 : storages_[tensor.storage].bytes};
    if (!named) header.shape.push_back(static_cast<int64_t>(ItemBytes(tensor.dtype)));
    if (tensor.dtype == DType::kF4E2M1x2) {  // the header counts values, we count pairs
      if (header.shape.empty()) header.shape.push_back(1);
      header.shape.back() *= 2;
    }
    entries.push_back({std::move(header), ItemBytes(tensor.dtype), empty ? kNone : tensor.storage});
  }
  std::vector<uint32_t> bases;
  for (uint32_t s = 0; s < storages_.size(); ++s) {
    if (storages_[s].base_number != kNone) bases.push_back(s);
  }
  std::sort(bases.begin(), bases.end(),
            [&](uint32_t a, uint32_t b) { return storages_[a].base_number < storages_[b].base_number; });
  const auto hidden = [&](std::string name, uint32_t s, uint64_t alignment) {
    const uint64_t bytes = storages_[s].bytes;
    while (bytes % alignment != 0) alignment /= 2;  // what follows it must stay aligned
    entries.push_back({{std::move(name), DType::kU8, {static_cast<int64_t>(bytes)}, 0, bytes}, alignment, s});
  };
  for (const uint32_t s : bases)
    hidden(absl::StrFormat("%s%d", kBasePrefix, storages_[s].base_number), s, storages_[s].alignment);
  for (uint32_t i = 0; i < blobs_.size(); ++i) hidden(absl::StrFormat("%s%d", kBlobPrefix, i), blobs_[i], 1);
  return entries;
}

uint64_t ImageMaker::Place(std::vector<Entry>* entries) {
  std::vector<DataEntry> wanted;
  wanted.reserve(entries->size());
  for (const Entry& entry : *entries) wanted.push_back({entry.header.name, entry.header.bytes, entry.alignment});
  uint64_t end = 0;
  for (const uint32_t e : DataOrder(wanted)) {
    (*entries)[e].header.offset = end;
    end += (*entries)[e].header.bytes;
    if (end > kBytesMax) return end;
  }
  return end;
}

std::string ImageMaker::TreeText() const {
  std::string tree = "{\"v\":1", strided, dtypes, aliases;
  if (shared_) tree.append(",\"shared\":1");
  if (!root_.empty()) tree.append(",\"root\":").append(root_);
  const auto name_key = [](std::string_view name, std::string* out) {
    if (!out->empty()) out->push_back(',');
    AppendJsonString(name, out);
    out->push_back(':');
  };
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const bool empty = IsEmpty(tensor.shape);
    const Storage& storage = storages_[tensor.storage];
    if (empty || storage.owner == i) {
      if (tensor.dtype == DType::kF4E2M1x2 && tensor.shape.empty()) {  // a scalar pair, for which the header needs a dimension
        name_key(tensor.name, &strided);
        strided += "[[],[]]";
      }
      if (!HasSafetensorsName(tensor.dtype)) {
        name_key(tensor.name, &dtypes);
        AppendJsonString(Name(tensor.dtype), &dtypes);
      }
      continue;
    }
    aliases.append(aliases.empty() ? "[" : ",[");
    AppendNumber(uint64_t{i}, &aliases);
    aliases.push_back(',');
    AppendJsonString(tensor.name, &aliases);
    aliases.push_back(',');
    AppendJsonString(
        storage.owner != kNone ? tensors_[storage.owner].name : absl::StrFormat("%s%d", kBasePrefix, storage.base_number),
        &aliases);
    aliases.push_back(',');
    AppendNumber(tensor.byte_offset, &aliases);
    aliases.push_back(',');
    AppendJsonString(Name(tensor.dtype), &aliases);
    aliases.push_back(',');
    AppendNumbers(tensor.shape, &aliases);
    aliases.push_back(',');
    AppendNumbers(tensor.strides, &aliases);
    aliases.push_back(']');
  }
  if (strided.empty() && dtypes.empty() && aliases.empty()) return tree + "}";
  std::string parts;
  if (!strided.empty()) parts += ",\"strided\":{" + strided + "}";
  if (!dtypes.empty()) parts += ",\"dtype\":{" + dtypes + "}";
  if (!aliases.empty()) parts += ",\"alias\":[" + aliases + "]";
  return tree + ",\"tensors\":{" + parts.substr(1) + "}}";
}

absl::StatusOr<std::unique_ptr<Contents>> ImageMaker::Make(ContentsKind kind, std::vector<std::string> files, Sources sources,
                                                           std::shared_ptr<const Origin> origin) {
  ChooseOwners();
  std::vector<Entry> entries = MakeEntries();
  const uint64_t data_bytes = Place(&entries);
  if (data_bytes > kBytesMax) return Damaged(files.front() + ": the bytes of all tensors overflow");
  ImageHeader header;
  if (has_tree_) {
    values_.resize(GrowCapacities({}, values_.size(), {}).values_bytes, ' ');
    header.metadata.emplace_back(kFormatKey, "1");
    header.metadata.emplace_back(kValuesKey, std::move(values_));
    header.metadata.emplace_back(kTreeKey, TreeText());
  }
  for (auto& pair : metadata_) header.metadata.push_back(std::move(pair));
  std::vector<PlacedBytes> placed;
  placed.reserve(entries.size());
  for (Entry& entry : entries) {
    if (entry.header.bytes > 0) placed.push_back({entry.header.offset, entry.header.bytes, storages_[entry.storage].backing});
    header.tensors.push_back(std::move(entry.header));
  }
  std::sort(placed.begin(), placed.end(),
            [](const PlacedBytes& a, const PlacedBytes& b) { return a.image_offset < b.image_offset; });
  absl::StatusOr<std::string> text = EncodeImageHeader(header);
  if (!text.ok()) return Annotate(text.status(), files.front());
  return VirtualContents::Make({kind, std::move(files), std::move(sources), std::move(origin), *std::move(text), data_bytes,
                                std::move(placed), std::move(memory_), std::move(opaque_), std::move(notes_)});
}

}  // namespace neve::format
