#include "storage/file/listing.h"

#include <cerrno>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/os/syscalls.h"
#include "format/names.h"

namespace neve::storage {
namespace {

bool IsGone(const absl::Status& status) { return absl::IsNotFound(status); }

// Adds the images of one save. A folder that cannot be read is an error: what it holds might be the newest save.
absl::Status ListSave(const std::string& folder, const format::SaveName& save, Listing* listing) {
  const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder);
  if (IsGone(entries.status()) || ErrnoOf(entries.status()) == ENOTDIR) return absl::OkStatus();
  NEVE_RETURN_IF_ERROR(entries.status());
  std::map<std::pair<uint32_t, uint32_t>, ImageEntry> images;  // by (world, rank)
  bool pinned = false;
  for (const os::DirectoryEntry& entry : *entries) {
    if (entry.name == format::kPinnedFile) pinned = true;
    const std::optional<format::ShardName> shard = format::ParseShardName(entry.name);
    if (!shard.has_value() || entry.is_directory) continue;
    const std::string path = os::JoinPath(folder, entry.name);
    ImageEntry& image = images[{shard->world, shard->rank}];
    image.key = {.save = save.save, .step = save.step, .rank = shard->rank, .world = shard->world};
    if (shard->is_record) {
      image.has_record = true;
      image.path = path;
      continue;
    }
    const absl::StatusOr<struct stat> status = os::Stat(path);
    if (IsGone(status.status())) continue;
    NEVE_RETURN_IF_ERROR(status.status());
    image.has_image = true;
    image.image_bytes = static_cast<uint64_t>(status->st_size);
    image.stored_bytes = static_cast<uint64_t>(status->st_blocks) * 512;
    if (image.path.empty()) image.path = path;
  }
  for (auto& [shard, image] : images) {
    if (!image.has_record && !image.has_image) continue;  // vanished meanwhile
    image.pinned = pinned;
    listing->images.push_back(std::move(image));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Listing> ListJobFolder(const JobFolder& folder) {
  Listing listing;
  NEVE_ASSIGN_OR_RETURN(listing.exists, folder.Exists());
  if (!listing.exists) return listing;
  const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder.path());
  if (IsGone(entries.status())) {
    listing.exists = false;
    return listing;
  }
  NEVE_RETURN_IF_ERROR(entries.status());
  for (const os::DirectoryEntry& entry : *entries) {
    if (const std::optional<uint32_t> life = format::ParseLifeName(entry.name)) {
      listing.incarnation_max = std::max(listing.incarnation_max, *life);
    }
    const std::optional<format::SaveName> save = format::ParseSaveName(entry.name);
    if (!save.has_value()) continue;
    listing.incarnation_max = std::max(listing.incarnation_max, save->save.incarnation);
    NEVE_RETURN_IF_ERROR(ListSave(os::JoinPath(folder.path(), entry.name), *save, &listing));
  }
  return listing;
}

}  // namespace neve::storage
