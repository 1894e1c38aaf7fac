// A folder of .safetensors shards and their index, as HuggingFace's libraries read it: plain tensors by their names. What shared
// memory is written once for each name.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "engine/convert.h"
#include "format/json_text.h"

namespace neve::engine {
namespace {

struct Shard {
  std::vector<const SourceTensor*> tensors;
  uint64_t bytes = 0;
};

std::vector<Shard> Split(const Conversion& conversion) {
  std::vector<Shard> shards(1);
  for (const SourceTensor* tensor : conversion.names) {
    if (!shards.back().tensors.empty() && tensor->bytes > conversion.options->shard_bytes - std::min(shards.back().bytes,
                                                                                                     conversion.options->shard_bytes)) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(tensor);
    shards.back().bytes += tensor->bytes;
  }
  return shards;
}

std::string ShardName(size_t index, size_t count) { return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count); }

absl::Status AddShard(const Conversion& conversion, const Shard& shard, OutputStream* stream) {
  format::ImageHeader header;
  header.metadata = {{"format", "pt"}};   // which those libraries ask for
  // Largest items first keeps every tensor aligned to its item.
  std::vector<const SourceTensor*> order = shard.tensors;
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return ItemBytes(a->tensor->dtype) > ItemBytes(b->tensor->dtype);
  });
  uint64_t end = 0;
  for (const SourceTensor* tensor : order) {
    tensor::Dims shape = tensor->tensor->shape;
    if (tensor->tensor->dtype == DType::kF4E2M1x2) {   // the header counts values, we count pairs
      if (shape.empty()) shape.push_back(1);
      shape.back() *= 2;
    }
    header.tensors.push_back({tensor->name, tensor->tensor->dtype, std::move(shape), end, tensor->bytes});
    end += tensor->bytes;
  }
  NEVE_ASSIGN_OR_RETURN(std::string text, format::EncodeImageHeader(header));
  stream->AddText(std::move(text));
  for (const SourceTensor* tensor : order) stream->Add(tensor->bytes, LogicalBytes(*conversion.contents, *tensor->tensor));
  return absl::OkStatus();
}

std::string Index(const std::vector<Shard>& shards) {
  uint64_t total = 0;
  std::string map;
  for (size_t i = 0; i < shards.size(); ++i) {
    total += shards[i].bytes;
    for (const SourceTensor* tensor : shards[i].tensors) {
      map += map.empty() ? "\n    " : ",\n    ";
      format::AppendJsonString(tensor->name, &map);
      map += ": \"" + ShardName(i, shards.size()) + "\"";
    }
  }
  return absl::StrFormat("{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {%s\n  }\n}\n", total, map);
}

}  // namespace

absl::Status ConvertToHuggingFace(const Conversion& conversion, const Target& target) {
  NEVE_RETURN_IF_ERROR(CheckLogicalSize(*conversion.source));
  Refusals refusals;
  RefuseMisread(conversion, /*keys_only=*/true, &refusals);
  RefuseObjects(conversion.tree.root, &refusals);
  uint64_t shared = 0;
  for (const SourceTensor* tensor : conversion.names) {
    if (!HasSafetensorsName(tensor->tensor->dtype)) {
      refusals.Add(tensor->name, absl::StrFormat("safetensors has no type %s", Name(tensor->tensor->dtype)));
    }
    if (tensor->tensor->alias) ++shared;
  }
  NEVE_RETURN_IF_ERROR(refusals.ToStatus("a HuggingFace folder"));
  conversion.report->tensors = conversion.names.size();
  const std::vector<Shard> shards = Split(conversion);
  std::vector<OutputStream> streams(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    NEVE_RETURN_IF_ERROR(AddShard(conversion, shards[i], &streams[i]));
    conversion.report->bytes += streams[i].bytes();
  }
  if (shared > 0) {
    conversion.report->notes.push_back(absl::StrFormat("%d tensors share memory in the source; each was written on its own", shared));
  }
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFolder> folder, OutputFolder::Begin(target.out));
  for (size_t i = 0; i < shards.size(); ++i) {
    Target file = target;
    file.out = folder->Add(ShardName(i, shards.size()));
    NEVE_RETURN_IF_ERROR(WriteFileFrom(file, &streams[i]));
  }
  NEVE_RETURN_IF_ERROR(os::WriteFileExclusive(folder->Add("model.safetensors.index.json"), Index(shards)));
  return folder->Finish();
}

}  // namespace neve::engine
