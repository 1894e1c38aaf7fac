// The source's image as a file, or as the one save of a new job folder. The image is what the source presents: its header as it is
// where nothing is left out, and its data, copied.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/process.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "engine/convert.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/names.h"
#include "format/own_digests.h"
#include "neve/engine.h"

namespace neve::engine {
namespace {

using format::HeaderTensor;
using format::ImageHeader;
using format::TreeNode;

void CollectBlobs(const TreeNode& node, std::set<std::string>* names) {
  if (node.kind == TreeNode::Kind::kBlob) names->insert(std::string(format::kBlobPrefix) + std::to_string(node.index));
  for (const TreeNode& child : node.children) CollectBlobs(child, names);
  if (node.attributes != nullptr) CollectBlobs(*node.attributes, names);
}

// `neve.tree` with the new root, and of its facts about tensors those of the tensors that are left.
absl::StatusOr<std::string> TreeOfRest(const Conversion& conversion, const std::string& root) {
  const std::string* old = conversion.contents->header().FindMetadata(format::kTreeKey);
  nlohmann::ordered_json tree = nlohmann::ordered_json::parse(*old, nullptr, /*allow_exceptions=*/false);
  if (!tree.is_object()) return Damaged(absl::StrFormat("%s is not a JSON object", format::kTreeKey));
  tree["root"] = nlohmann::ordered_json::parse(root);   // our own text
  const auto facts = tree.find("tensors");
  if (facts == tree.end()) return tree.dump();
  std::set<std::string_view> left;
  for (const SourceTensor* tensor : conversion.tensors) left.insert(tensor->tensor->name);
  for (const char* part : {"strided", "dtype", "piece"}) {
    const auto found = facts->find(part);
    if (found == facts->end() || !found->is_object()) continue;
    nlohmann::ordered_json kept = nlohmann::ordered_json::object();
    for (const auto& [name, value] : found->items()) {
      if (left.contains(name)) kept[name] = value;
    }
    *found = std::move(kept);
  }
  nlohmann::ordered_json aliases = nlohmann::ordered_json::array();
  for (size_t i = 0; i < conversion.tensors.size(); ++i) {
    const format::LogicalTensor& tensor = *conversion.tensors[i]->tensor;
    if (!tensor.alias) continue;
    aliases.push_back({i, tensor.name, tensor.stored, tensor.byte_offset, std::string(Name(tensor.dtype)), tensor.shape,
                       tensor.strides});
  }
  (*facts)["alias"] = std::move(aliases);
  return tree.dump();
}

// The header of what is left, its tensors placed one after another in the order of the source's data. `runs`: where they lie there.
struct Run {
  uint64_t offset, bytes;
};
absl::StatusOr<ImageHeader> HeaderOfRest(const Conversion& conversion, std::vector<Run>* runs) {
  const ImageHeader& source = conversion.contents->header();
  std::set<std::string> names;
  std::set<std::string_view> own;
  for (const SourceTensor* tensor : conversion.tensors) {
    names.insert(tensor->tensor->stored);
    if (!tensor->tensor->alias) own.insert(tensor->tensor->name);
  }
  for (const SourceTensor* tensor : conversion.tensors) {
    const std::string& base = tensor->tensor->stored;
    if (!tensor->tensor->alias || format::IsBaseName(base) || own.contains(base)) continue;
    return Invalid(absl::StrFormat("--drop: %s shares the memory of %s, which holds it; keep or drop both",
                                   format::Quoted(tensor->name), format::Quoted(base)));
  }
  CollectBlobs(conversion.tree.root, &names);
  ImageHeader header;
  header.metadata = source.metadata;
  if (!conversion.tree.flat) {
    format::TreeText text = format::WriteStateTree(conversion.tree.root);
    NEVE_ASSIGN_OR_RETURN(const std::string tree, TreeOfRest(conversion, text.root));
    for (auto& [key, value] : header.metadata) {
      if (key == format::kTreeKey) value = tree;
      if (key != format::kValuesKey) continue;
      const size_t capacity = std::max(value.size(), text.values.size());
      value = std::move(text.values);
      value.resize(capacity, ' ');
    }
  }
  for (const HeaderTensor& tensor : source.tensors) {
    if (names.contains(tensor.name)) header.tensors.push_back(tensor);
  }
  std::vector<HeaderTensor*> order;
  for (HeaderTensor& tensor : header.tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  uint64_t end = 0;
  for (HeaderTensor* tensor : order) {
    if (tensor->bytes > 0) runs->push_back({tensor->offset, tensor->bytes});
    tensor->offset = end;
    end += tensor->bytes;
  }
  return header;
}

// A file of somebody else's as an image of ours: a flat state.
void AddFormat(ImageHeader* header) {
  if (header->FindMetadata(format::kFormatKey) != nullptr) return;
  std::erase_if(header->metadata, [](const auto& entry) { return entry.first.starts_with("neve."); });
  const std::vector<std::pair<std::string, std::string>> ours = {{std::string(format::kFormatKey), "1"},
                                                                 {std::string(format::kValuesKey),
                                                                  std::string(format::kValuesBytesMin, ' ')},
                                                                 {std::string(format::kTreeKey), "{\"v\":1}"}};
  header->metadata.insert(header->metadata.begin(), ours.begin(), ours.end());
}

// What the image is made as: a file as it is (an image of ours with digests in its header), or the image of a step (without).
enum class Form : uint8_t { kFile, kStep };

absl::StatusOr<std::string> EncodeWithDigests(ImageHeader header, uint64_t data_bytes) {
  header.metadata.emplace_back(format::kDigestsKey, "");
  for (uint64_t expected = data_bytes;;) {
    header.metadata.back().second = format::OwnDigestsPlaceholder(format::OwnDigestsBytes(expected));
    NEVE_ASSIGN_OR_RETURN(std::string text, format::EncodeImageHeader(header));
    if (format::OwnDigestsBytes(text.size() + data_bytes) <= header.metadata.back().second.size()) return text;
    expected = text.size() + data_bytes;
  }
}

absl::StatusOr<std::string> MakeStream(const Conversion& conversion, Form form, OutputStream* stream) {
  const format::Contents& contents = *conversion.contents;
  const bool dropped = !conversion.report->dropped.empty();
  const bool foreign = contents.header().FindMetadata(format::kFormatKey) == nullptr;
  std::string header(contents.header_text());
  std::vector<Run> runs = {{header.size(), contents.image_bytes() - header.size()}};
  const bool step = form == Form::kStep;
  ImageHeader rest = contents.header();
  if (dropped || (step && foreign)) {
    runs.clear();
    NEVE_ASSIGN_OR_RETURN(rest, HeaderOfRest(conversion, &runs));
    if (step) AddFormat(&rest);
  }
  // A file of somebody else's keeps its header, where nothing of it is left out.
  const bool had = std::erase_if(rest.metadata, [](const auto& entry) { return entry.first == format::kDigestsKey; }) > 0;
  uint64_t data_bytes = 0;
  for (const Run& run : runs) data_bytes += run.bytes;
  if (!step && !foreign) {
    NEVE_ASSIGN_OR_RETURN(header, EncodeWithDigests(std::move(rest), data_bytes));
  } else if (dropped || had || (step && foreign)) {
    NEVE_ASSIGN_OR_RETURN(header, format::EncodeImageHeader(rest));
  }
  stream->AddText(header);
  for (const Run& run : runs) {
    stream->Add(run.bytes, [&contents, offset = run.offset](uint64_t begin, std::span<std::byte> target) {
      return contents.Read(offset + begin, target);
    });
  }
  conversion.report->bytes = stream->bytes();
  return header;
}

// The digest of the header with no values: what tells one structure from another.
uint64_t LayoutId(std::string header, const ImageHeader& parsed) {
  const std::string* values = parsed.FindMetadata(format::kValuesKey);
  if (values != nullptr) {
    const size_t at = header.find(*values);
    if (at != std::string::npos) std::fill_n(header.begin() + static_cast<ptrdiff_t>(at), values->size(), ' ');
  }
  return codec::DigestOf(std::as_bytes(std::span(header))).low;
}

}  // namespace

absl::Status ConvertToImage(const Conversion& conversion, const Target& target) {
  Refusals refusals;
  RefuseMisread(conversion, /*keys_only=*/false, &refusals);
  RefuseOpaque(conversion.tree.root, &refusals);
  NEVE_RETURN_IF_ERROR(refusals.ToStatus("a .safetensors file"));
  OutputStream stream;
  NEVE_ASSIGN_OR_RETURN(const std::string header, MakeStream(conversion, Form::kFile, &stream));
  uint64_t room = 0;
  const std::optional<uint64_t> at = format::FindOwnDigests(header, &room);
  if (!at.has_value()) return WriteFileFrom(target, &stream);
  std::vector<codec::Digest> digests;
  return WriteFileFrom(target, &stream, &digests, [&](std::span<const codec::Digest> made) {
    return LateBytes{*at, format::OwnDigestsText(header.size(), stream.bytes(), made, room)};
  });
}

absl::Status ConvertToStep(const Conversion& conversion, const Target& target) {
  Refusals refusals;
  RefuseOpaque(conversion.tree.root, &refusals);
  NEVE_RETURN_IF_ERROR(refusals.ToStatus("a step"));
  OutputStream stream;
  NEVE_ASSIGN_OR_RETURN(const std::string header, MakeStream(conversion, Form::kStep, &stream));
  NEVE_ASSIGN_OR_RETURN(const ImageHeader parsed, format::ParseImageHeader(header, stream.bytes()));

  format::CommitRecord record;
  const std::optional<format::CommitRecord>& old = conversion.source->record;
  if (old.has_value()) {
    record.job = old->job;
    record.uid = old->uid;
    record.key = old->key;
    record.time = old->time;
    record.tags = old->tags;
    record.provenance = old->provenance;
  } else {
    record.job = os::BaseName(target.out);
    os::FillRandom(record.uid.bytes);
    record.key.save = {1, 1};
    record.key.step = static_cast<uint64_t>(std::max<int64_t>(conversion.options->source.step, 0));
    record.provenance = {{"neve", std::string(Version())}, {"host", os::HostName()}};
    const absl::StatusOr<struct ::stat> facts = os::Stat(conversion.contents->files().front());
    if (facts.ok()) record.time = facts->st_mtim.tv_sec;   // when the state was saved, as far as anybody knows
  }
  record.key.rank = 0;
  record.key.world = 1;
  record.image_bytes = stream.bytes();
  record.header_bytes = header.size();
  record.chunk_bytes = kDefaultChunkBytes;
  record.layout_id = LayoutId(header, parsed);

  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFolder> folder, OutputFolder::Begin(target.out));
  NEVE_RETURN_IF_ERROR(os::WriteFileExclusive(folder->Add(std::string(format::kJobFile)),
                                              format::EncodeJobIdentity({record.job, record.uid})));
  const std::string step = format::FormatSaveName({record.key.step, record.key.save});
  const std::string step_path = folder->Add(step);
  NEVE_RETURN_IF_ERROR(os::Mkdir(step_path));
  const std::string image = folder->Add(os::JoinPath(step, format::FormatImageName(0, 1)));
  Target image_target = target;
  image_target.out = image;
  NEVE_RETURN_IF_ERROR(WriteFileFrom(image_target, &stream, &record.digests));
  NEVE_RETURN_IF_ERROR(os::WriteFileExclusive(folder->Add(os::JoinPath(step, format::FormatRecordName(0, 1))),
                                              format::EncodeRecord(record)));
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(step_path));
  return folder->Finish();
}

}  // namespace neve::engine
