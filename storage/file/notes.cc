#include "storage/file/notes.h"

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "format/names.h"

namespace neve::storage {
namespace {

// A note lies beside the saves, so its name must be one component and none that means something there.
absl::Status CheckName(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.size() > 200 || name.find('/') != name.npos || name.find('\0') != name.npos ||
      format::ParseSaveName(name).has_value()) {
    return Invalid(absl::StrFormat("\"%s\" cannot be the name of a note: it must be a plain file name", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadNoteFile(const JobFolder& folder, const std::string& name) {
  NEVE_RETURN_IF_ERROR(CheckName(name));
  const std::string path = os::JoinPath(folder.path(), name);
  NEVE_ASSIGN_OR_RETURN(const bool exists, folder.Exists());
  if (!exists) return NotFound(absl::StrFormat("%s is not there: the job has no folder yet", path));
  return os::ReadFile(path, kNoteBytesMax);
}

absl::Status WriteNoteFile(const JobFolder& folder, const std::string& name, const std::string& content, bool exclusive) {
  NEVE_RETURN_IF_ERROR(CheckName(name));
  if (content.size() > kNoteBytesMax) {
    return Invalid(absl::StrFormat("note %s has %u bytes, at most %u are kept", name, content.size(), kNoteBytesMax));
  }
  NEVE_RETURN_IF_ERROR(folder.Make());
  const std::string path = os::JoinPath(folder.path(), name);
  return MissingIsUnavailable(exclusive ? os::WriteFileExclusive(path, content) : os::WriteFileAtomic(path, content));
}

absl::Status RemoveNoteFile(const JobFolder& folder, const std::string& name) {
  NEVE_RETURN_IF_ERROR(CheckName(name));
  NEVE_ASSIGN_OR_RETURN(const bool exists, folder.Exists());
  if (!exists) return absl::OkStatus();
  NEVE_RETURN_IF_ERROR(os::Unlink(os::JoinPath(folder.path(), name)));
  return os::FsyncDirectory(folder.path());
}

}  // namespace neve::storage
