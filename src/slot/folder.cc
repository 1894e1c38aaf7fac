#include "slot/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_format.h"
#include "slot/slot.h"

namespace neve::slot {

absl::Status PrivateFolder(const std::string& path, bool create) {
  // O_PATH needs no permission on the folder itself: one made under umask 0777 can still be given its mode.
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW;
  absl::StatusOr<os::File> folder = os::Open(path, kFlags);
  bool made = false;
  if (absl::IsNotFound(folder.status()) && create) {
    NEVE_RETURN_IF_ERROR(os::Mkdir(path, 0700));
    made = true;
    folder = os::Open(path, kFlags);
  }
  if (const int error = ErrnoOf(folder.status()); error == ENOTDIR || error == ELOOP) {
    return Invalid(path + ": is a link or not a folder; remove it, or set NEVE_RAM_DIR to a folder of your own");
  }
  NEVE_RETURN_IF_ERROR(folder.status());
  NEVE_ASSIGN_OR_RETURN(struct ::stat facts, os::StatOpen(*folder));
  if (facts.st_uid != ::geteuid()) {
    return Invalid(absl::StrFormat("%s: belongs to user %d, not to %d; set NEVE_RAM_DIR to a folder of your own", path,
                                   facts.st_uid, ::geteuid()));
  }
  if (made && (facts.st_mode & 07777) != 0700) {
    const std::string handle = absl::StrFormat("/proc/self/fd/%d", folder->fd.get());
    if (::chmod(handle.c_str(), 0700) != 0) return ErrnoStatus(errno, path + ": chmod 0700");
    NEVE_ASSIGN_OR_RETURN(facts, os::StatOpen(*folder));
  }
  if ((facts.st_mode & 0077) != 0) {
    return Invalid(
        absl::StrFormat("%s: mode %04o lets others in; run `chmod 700 %s`, or set NEVE_RAM_DIR to a folder of "
                        "your own",
                        path, facts.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

absl::Status SetMode(const os::File& file, mode_t mode) {
  NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file));
  if ((facts.st_mode & 07777) == mode) return absl::OkStatus();
  if (::fchmod(file.fd.get(), mode) != 0) return ErrnoStatus(errno, file.path + ": fchmod");
  return absl::OkStatus();
}

std::string ConfiguredRamFolder() {
  const char* configured = ::getenv("NEVE_RAM_DIR");
  std::string path = configured != nullptr ? configured : "";
  if (path.empty()) path = absl::StrFormat("/dev/shm/neve-%d", ::geteuid());
  // A slash at the end would make the kernel follow a link there.
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::StatusOr<std::string> RamFolder(bool create) {
  const std::string path = ConfiguredRamFolder();
  if (path[0] != '/') return Invalid("NEVE_RAM_DIR=" + path + ": must be an absolute path");
  const absl::Status status = PrivateFolder(path, create);
  if (create && absl::IsNotFound(status)) {   // the folder that should hold it is not there: nothing of ours was looked for
    return Unavailable(absl::StrFormat("%s cannot be made (%s); make the folder above it, or set NEVE_RAM_DIR to another", path,
                                       std::string(status.message())), ErrnoOf(status));
  }
  NEVE_RETURN_IF_ERROR(status);
  return path;
}

}  // namespace neve::slot
