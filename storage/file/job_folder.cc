#include "storage/file/job_folder.h"

#include <cerrno>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/names.h"
#include "storage/file/kernel_file.h"

namespace neve::storage {

std::string JobFolder::SaveFolder(const ImageKey& key) const {
  return os::JoinPath(path_, format::FormatSaveName({.step = key.step, .save = key.save}));
}

std::string JobFolder::ImagePath(const ImageKey& key) const {
  return os::JoinPath(SaveFolder(key), format::FormatImageName(key.rank, key.world));
}

std::string JobFolder::RecordPath(const ImageKey& key) const {
  return os::JoinPath(SaveFolder(key), format::FormatRecordName(key.rank, key.world));
}

std::string JobFolder::PinPath(const ImageKey& key) const { return os::JoinPath(SaveFolder(key), format::kPinnedFile); }

std::string JobFolder::SpareFolder() const { return os::JoinPath(path_, format::kSpareFolder); }

absl::StatusOr<bool> JobFolder::Exists() const {
  if (!root_.empty()) {
    const absl::StatusOr<struct stat> root = os::Stat(root_);
    if (absl::IsNotFound(root.status())) {
      return Unavailable(absl::StrFormat("file tier: the folder %s is not there; mount it or create it", root_), ENOENT);
    }
    NEVE_RETURN_IF_ERROR(root.status());
    if (!S_ISDIR(root->st_mode)) return Unavailable(absl::StrFormat("file tier: %s is not a folder", root_), ENOTDIR);
  }
  const absl::StatusOr<struct stat> folder = os::Stat(path_);
  if (absl::IsNotFound(folder.status())) {
    // A link that leads nowhere is most likely a disk that is not mounted, so it must not pass for an empty job.
    if (NameIsTaken(path_)) {
      return Unavailable(absl::StrFormat("file tier: %s is a link to something that is not there", path_), ENOENT);
    }
    return false;
  }
  NEVE_RETURN_IF_ERROR(folder.status());
  if (!S_ISDIR(folder->st_mode)) {
    return Unavailable(absl::StrFormat("file tier: %s is not a folder; move it away or choose another place", path_), ENOTDIR);
  }
  return true;
}

absl::Status JobFolder::Make() const {
  NEVE_ASSIGN_OR_RETURN(const bool exists, Exists());
  if (exists) return absl::OkStatus();
  std::vector<std::string> missing;
  for (std::string path = path_; absl::IsNotFound(os::Stat(path).status());) {
    missing.push_back(path);
    std::string parent = os::DirName(path);
    if (parent == path) break;
    path = std::move(parent);
  }
  NEVE_RETURN_IF_ERROR(MissingIsUnavailable(os::MakeDirs(path_)));
  for (const std::string& path : missing) {
    NEVE_RETURN_IF_ERROR(MissingIsUnavailable(os::FsyncDirectory(os::DirName(path))));
  }
  return absl::OkStatus();
}

absl::Status JobFolder::MakeSaveFolder(const ImageKey& key) const {
  NEVE_RETURN_IF_ERROR(Make());
  return MissingIsUnavailable(os::Mkdir(SaveFolder(key)));
}

void JobFolder::RemoveSaveFolderIfEmpty(const ImageKey& key) const {
  const std::string folder = SaveFolder(key);
  const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder);
  if (!entries.ok()) return;
  for (const os::DirectoryEntry& entry : *entries) {
    if (entry.is_directory) return;
    if (entry.name != format::kPinnedFile && entry.name != format::kCompleteFile &&
        !entry.name.starts_with(format::kTemporaryPrefix)) {
      return;
    }
  }
  for (const os::DirectoryEntry& entry : *entries) {
    if (!os::Unlink(os::JoinPath(folder, entry.name)).ok()) return;
  }
  // Another rank may have begun an image here meanwhile: then the folder is not empty, and stays.
  os::Rmdir(folder).IgnoreError();
}

absl::Status MissingIsUnavailable(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  const int error = ErrnoOf(status);
  return Unavailable(std::string(status.message()), error != 0 ? error : ENOENT);
}

}  // namespace neve::storage
