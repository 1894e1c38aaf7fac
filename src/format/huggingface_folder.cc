// Folders of .safetensors files: HuggingFace's, in which an index says which file holds which tensor; or files alone, whose
// tensors are taken together.
#include <fcntl.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_reader.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/readers.h"
#include "format/safetensors_contents.h"
#include "format/virtual_image.h"

namespace neve::format {
namespace {

constexpr uint64_t kIndexBytesMax = 256u << 20;
constexpr std::string_view kSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
constexpr size_t kShownMax = 8;

// The files of a folder, as they were opened.
class ShardOrigin final : public Origin {
 public:
  std::vector<std::unique_ptr<Contents>> shards;
  uint32_t first_file = 0;  // of the shards, among the files of the image

  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override {
    uint64_t before = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      const size_t known = problems->size();
      NEVE_RETURN_IF_ERROR(shards[i]->Check(
          [&](uint64_t done) {
            if (progress) progress(before + done);
          },
          problems));
      for (size_t p = known; p < problems->size(); ++p) (*problems)[p].file = first_file + static_cast<uint32_t>(i);
      before += shards[i]->image_bytes();
    }
    return absl::OkStatus();
  }
};

class ShardedFolder {
 public:
  ShardedFolder(std::string folder, const ContentsOptions& options) : folder_(std::move(folder)), options_(options) {}

  OpenedContents OpenIndexed(const std::string& index_name) {
    const std::string index_path = os::JoinPath(folder_, index_name);
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<const ByteSource> index, OpenFileSource(index_path));
    if (index->size() > kIndexBytesMax)
      return Damaged(absl::StrFormat("%s has %d bytes, which no index has", index_path, index->size()));
    std::string text;
    NEVE_RETURN_IF_ERROR(index->ReadText(0, index->size(), &text));
    if (absl::Status status = ReadIndex(text); !status.ok()) return Annotate(status, index_path);
    files_.push_back(index_path);
    sources_.push_back(index);
    NEVE_RETURN_IF_ERROR(FindShards());
    NEVE_RETURN_IF_ERROR(OpenShards());
    for (const auto& [name, shard] : weights_) {
      const auto place = tensors_[shard].find(name);
      if (place == tensors_[shard].end()) {
        return Damaged(absl::StrFormat("%s: tensor %s is not in %s, where the index says it is", index_path, Quoted(name),
                                       files_[origin_->first_file + shard]));
      }
      NEVE_RETURN_IF_ERROR(Add(shard, *place->second));
    }
    for (size_t shard = 0; shard < names_.size(); ++shard) {
      const size_t listed =
          static_cast<size_t>(std::count_if(weights_.begin(), weights_.end(), [&](const auto& w) { return w.second == shard; }));
      if (tensors_[shard].size() > listed) {
        maker_.AddNote(
            absl::StrFormat("%s holds %d tensors that the index does not list", names_[shard], tensors_[shard].size() - listed));
      }
    }
    return Finish();
  }

  OpenedContents OpenAll(std::vector<std::string> names) {
    names_ = std::move(names);
    NEVE_RETURN_IF_ERROR(OpenShards());
    std::unordered_map<std::string_view, size_t> owner;
    for (size_t shard = 0; shard < names_.size(); ++shard) {
      for (const HeaderTensor& tensor : origin_->shards[shard]->header().tensors) {
        const auto [at, fresh] = owner.emplace(tensor.name, shard);
        if (!fresh) {
          return Damaged(absl::StrFormat("%s: tensor %s is in %s and in %s", folder_, Quoted(tensor.name), names_[at->second],
                                         names_[shard]));
        }
        NEVE_RETURN_IF_ERROR(Add(static_cast<uint32_t>(shard), tensor));
      }
    }
    return Finish();
  }

 private:
  absl::Status ReadIndex(std::string_view text) {
    JsonReader in(text);
    std::string_view key;
    bool found = false;
    std::unordered_map<std::string, uint32_t> number;
    if (in.EnterObject()) {
      while (in.NextKey(&key)) {
        if (key == "weight_map") {
          found = true;
          std::string_view name;
          std::string file;
          if (!in.EnterObject()) break;
          while (in.NextKey(&name) && in.String(&file)) {
            if (!IsPlainName(file)) {
              return Damaged(
                  absl::StrFormat("tensor %s is said to lie in %s, which is outside of the folder", Quoted(name), Quoted(file)));
            }
            const auto [at, fresh] = number.emplace(file, static_cast<uint32_t>(names_.size()));
            if (fresh) names_.push_back(file);
            weights_.emplace_back(name, at->second);
          }
        } else if (key == "metadata" && in.Peek() == JsonReader::Kind::kObject) {
          ReadMetadata(in);
        } else {
          in.Skip();
        }
      }
    }
    NEVE_RETURN_IF_ERROR(in.Finish());
    return found ? absl::OkStatus() : Damaged("it has no weight_map");
  }

  void ReadMetadata(JsonReader& in) {
    std::string_view key, raw;
    std::string value;
    if (!in.EnterObject()) return;
    while (in.NextKey(&key)) {
      if (in.Peek() == JsonReader::Kind::kString) {
        if (!in.String(&value)) return;
      } else {
        if (!in.Raw(&raw)) return;
        value = raw;
      }
      if (!key.starts_with("neve.")) metadata_.emplace(key, value);
    }
  }

  // A file of the folder itself: no other folder, and not the one above.
  static bool IsPlainName(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
           name.find('\\') == std::string_view::npos && name.find('\0') == std::string_view::npos;
  }

  // What the index names has to be there, all of it, before anything is taken.
  absl::Status FindShards() {
    std::string missing;
    size_t count = 0;
    for (uint32_t shard = 0; shard < names_.size(); ++shard) {
      if (os::Exists(os::JoinPath(folder_, names_[shard]))) continue;
      const auto tensors =
          std::count_if(weights_.begin(), weights_.end(), [&](const auto& weight) { return weight.second == shard; });
      if (count++ < kShownMax)
        missing += absl::StrFormat("%s%s (%d tensors)", missing.empty() ? "" : ", ", names_[shard], tensors);
    }
    if (count > 0) {
      return Damaged(absl::StrFormat("%s: %d of %d files that the index names are missing: %s%s", folder_, count, names_.size(),
                                     missing, count > kShownMax ? ", .." : ""));
    }
    NEVE_ASSIGN_OR_RETURN(const std::vector<os::DirectoryEntry> entries, os::ListDirectory(folder_));
    for (const os::DirectoryEntry& entry : entries) {
      if (entry.is_directory || !entry.name.ends_with(kSuffix)) continue;
      if (weights_.empty()) {
        return Damaged(absl::StrFormat("%s: its index names no tensor, and there are files such as %s", folder_, Quoted(entry.name)));
      }
      if (std::find(names_.begin(), names_.end(), entry.name) == names_.end()) {
        maker_.AddNote(absl::StrFormat("%s is not listed in the index, and left alone", os::JoinPath(folder_, entry.name)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status OpenShards() {
    origin_->first_file = static_cast<uint32_t>(files_.size());
    for (const std::string& name : names_) {
      const std::string path = os::JoinPath(folder_, name);
      NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
      NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Contents> shard, OpenSafetensors(std::move(file), options_));
      NEVE_ASSIGN_OR_RETURN(std::shared_ptr<const ByteSource> source, OpenFileSource(path));
      for (const std::string& note : shard->notes()) maker_.AddNote(path + ": " + note);
      for (const auto& [key, value] : shard->header().metadata) {
        if (!key.starts_with("neve.")) metadata_.emplace(key, value);
      }
      auto& tensors = tensors_.emplace_back();
      for (const HeaderTensor& tensor : shard->header().tensors) tensors.emplace(tensor.name, &tensor);
      files_.push_back(path);
      sources_.push_back(std::move(source));
      origin_->shards.push_back(std::move(shard));
    }
    return absl::OkStatus();
  }

  absl::Status Add(uint32_t shard, const HeaderTensor& tensor) {
    if (IsHiddenName(tensor.name)) return absl::OkStatus();  // of an image of neve among them: no tensor of the user's
    ImageMaker::Tensor added{tensor.name, tensor.dtype, tensor.shape, {}, 0, 0};
    if (tensor.dtype == DType::kF4E2M1x2) added.shape.back() /= 2;  // the header counts values, we count pairs
    added.strides = tensor::ContiguousStrides(added.shape);
    added.storage = maker_.AddStorage(tensor.bytes, {origin_->first_file + shard, tensor.offset});
    return maker_.AddTensor(std::move(added));
  }

  OpenedContents Finish() {
    for (auto& [key, value] : metadata_) maker_.AddMetadata(key, value);
    return maker_.Make(ContentsKind::kHuggingFace, std::move(files_), std::move(sources_), origin_);
  }

  std::string folder_;
  const ContentsOptions& options_;
  ImageMaker maker_;
  std::vector<std::string> names_;                         // of the shards
  std::vector<std::pair<std::string, uint32_t>> weights_;  // tensor, shard; in the index's order
  std::map<std::string, std::string> metadata_;
  std::vector<std::unordered_map<std::string_view, const HeaderTensor*>> tensors_;  // of each shard
  std::vector<std::string> files_;
  Sources sources_;
  std::shared_ptr<ShardOrigin> origin_ = std::make_shared<ShardOrigin>();
};

}  // namespace

OpenedContents OpenHuggingFace(const std::string& path, const std::string& index_name, const ContentsOptions& options) {
  return ShardedFolder(path, options).OpenIndexed(index_name);
}

OpenedContents OpenFolder(const std::string& path, const ContentsOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<os::DirectoryEntry> entries, os::ListDirectory(path));
  std::vector<std::string> indexes, files;
  for (const os::DirectoryEntry& entry : entries) {
    if (entry.is_directory) continue;
    if (entry.name == ".metadata") return OpenDcp(path, options);
    if (entry.name.ends_with(kIndexSuffix)) indexes.push_back(entry.name);
    if (entry.name.ends_with(kSuffix)) files.push_back(entry.name);
  }
  if (indexes.size() > 1) {
    return Unsupported(absl::StrFormat("%s holds %d indexes (%s, %s, ..); give a folder with one", path, indexes.size(),
                                       indexes[0], indexes[1]));
  }
  if (indexes.size() == 1) return OpenHuggingFace(path, indexes[0], options);
  if (!files.empty()) return ShardedFolder(path, options).OpenAll(std::move(files));
  return Unsupported(path + " is a folder that holds neither .safetensors files nor a DCP checkpoint");
}

}  // namespace neve::format
