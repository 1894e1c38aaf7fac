#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "engine/places_folder.h"
#include "format/image_header.h"
#include "neve/places.h"
#include "slot/slot.h"

namespace neve {
namespace {

bool HasPrefix(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
bool HasSuffix(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// PLACE of a tier string: what stands between the colon and the first `?`, percent-decoded. The options behind it speak of
// saving and are of no use here, but must be options.
absl::StatusOr<std::string> PlaceOfTier(std::string_view text) {
  const std::string_view tier = text.substr(0, text.find(':') + 1);
  if (const size_t options = text.find('?'); options != std::string_view::npos) {
    const std::string alone = std::string(tier) + (tier == "file:" ? "/" : "") + std::string(text.substr(options));
    NEVE_RETURN_IF_ERROR(ParseTier(alone).status());
  }
  text = text.substr(tier.size());
  text = text.substr(0, text.find('?'));
  std::string place;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      place.push_back(text[i]);
      continue;
    }
    const int high = i + 1 < text.size() ? HexValue(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexValue(text[i + 2]) : -1;
    if (high < 0 || low < 0 || (high == 0 && low == 0)) {
      return Invalid(absl::StrFormat("'%s': '%%' is not followed by two hex digits; write a plain percent sign as %%25", text));
    }
    place.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return place;
}

// Missing or not readable means that the place could not be reached; there is no telling what would be there.
absl::Status Unreachable(const absl::Status& status, const std::string& path) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  return Unavailable(path + ": no such file or folder", ErrnoOf(status));
}

absl::StatusOr<PlaceInfo> ResolveRam(const std::string& place) {
  PlaceInfo info{PlaceKind::kRam};
  NEVE_ASSIGN_OR_RETURN(info.job, PlaceOfTier(place));
  absl::StatusOr<std::string> folder = slot::RamFolder(/*create=*/false);
  if (folder.ok()) {
    info.path = *std::move(folder);
  } else if (folder.status().code() != absl::StatusCode::kNotFound) {
    return Unavailable(std::string(folder.status().message()), ErrnoOf(folder.status()));
  }
  return info;
}

std::string ForeignFolder(const std::vector<os::DirectoryEntry>& entries) {
  int safetensors = 0;
  for (const os::DirectoryEntry& entry : entries) {
    if (entry.is_directory) continue;
    if (entry.name == ".metadata") return "a DCP folder (torch.distributed.checkpoint)";
    if (HasSuffix(entry.name, ".safetensors.index.json")) return "a HuggingFace folder (" + entry.name + ")";
    if (HasSuffix(entry.name, ".safetensors")) ++safetensors;
  }
  if (safetensors > 0) return absl::StrFormat("a folder of %d .safetensors files, without saves of neve", safetensors);
  return "";
}

absl::StatusOr<PlaceInfo> ResolveFolder(const std::string& path) {
  PlaceInfo info{PlaceKind::kEmptyFolder, path};
  absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(path);
  if (!entries.ok()) return Unreachable(entries.status(), path);
  if (engine::LooksLikeStep(*entries)) {
    info.kind = PlaceKind::kStepFolder;
    return info;
  }
  if (engine::LooksLikeJob(*entries)) {
    info.kind = PlaceKind::kJobFolder;
    return info;
  }
  // A step folder that lost its shards still tells by its name that it is one.
  if (format::ParseSaveName(os::BaseName(path)).has_value()) {
    info.kind = PlaceKind::kStepFolder;
    return info;
  }
  info.what = ForeignFolder(*entries);
  if (!info.what.empty()) {
    info.kind = PlaceKind::kForeign;
    return info;
  }
  for (const os::DirectoryEntry& entry : *entries) {
    const std::string below = os::JoinPath(path, entry.name);
    if (!entry.is_directory) {
      const absl::StatusOr<struct ::stat> facts = os::Stat(below);   // a link to a job folder counts
      if (!facts.ok() || !S_ISDIR(facts->st_mode)) continue;
    }
    const absl::StatusOr<std::vector<os::DirectoryEntry>> inside = os::ListDirectory(below);
    if (inside.ok() && engine::LooksLikeJob(*inside)) info.job_folders.push_back(below);
  }
  if (!info.job_folders.empty()) info.kind = PlaceKind::kRoot;
  return info;
}

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::StatusOr<PlaceInfo> ResolvePlace(const std::string& place) {
  if (place.empty()) return Invalid("the place is empty; give a file, a folder, file:PATH or ram:[JOB]");
  for (const std::string_view scheme : {"s3://", "peer:", "agent:"}) {
    if (!HasPrefix(place, scheme)) continue;
    return Unsupported(absl::StrFormat("%s names a place of a kind that is not in this version; give a file, a folder, "
                                       "file:PATH or ram:[JOB]", place));
  }
  if (HasPrefix(place, "ram:")) return ResolveRam(place);
  std::string path = place;
  if (HasPrefix(place, "file:")) {
    NEVE_ASSIGN_OR_RETURN(path, PlaceOfTier(place));
    if (path.empty()) return Invalid("'file:' names no folder; write file:PATH");
  }
  if (path.find('\0') != std::string::npos) return Invalid("a path cannot hold a NUL");
  path = WithoutTrailingSlashes(std::move(path));
  const absl::StatusOr<struct ::stat> facts = os::Stat(path);
  if (!facts.ok()) return Unreachable(facts.status(), path);
  if (S_ISDIR(facts->st_mode)) return ResolveFolder(path);
  if (S_ISREG(facts->st_mode)) {
    const std::optional<format::ShardName> shard = format::ParseShardName(os::BaseName(path));
    if (!shard.has_value() || !shard->is_record) return PlaceInfo{PlaceKind::kImageFile, path};
    return PlaceInfo{PlaceKind::kForeign, path, "", {},
                     "a commit record; give its image, " + format::FormatImageName(shard->rank, shard->world)};
  }
  return PlaceInfo{PlaceKind::kForeign, path, "", {}, "not a regular file"};
}

}  // namespace neve
