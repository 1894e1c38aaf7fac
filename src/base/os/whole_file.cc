// Whole small files of syscalls.h: read at once, written so that a crash leaves the old content or the new.
//
// A write goes through these steps; a crash after each leaves:
//   1. temporary `.tmp-<hex>` made beside the target     the old file, and a temporary that the next life removes
//   2. content written, mode set, fsync                   the same
//   3. rename (exclusive: link) to the target             the old file or the new one, each whole
//   4. fsync of the folder                                the new file
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/hooked_call.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"

namespace neve::os {
namespace {

// A temporary beside its target; removed unless it was put in place.
class Temporary {
 public:
  static absl::StatusOr<Temporary> Make(const std::string& folder) {
    const std::string path = JoinPath(folder, ".tmp-" + RandomHex(16));
    NEVE_ASSIGN_OR_RETURN(File file, Open(path, O_WRONLY | O_CREAT | O_EXCL));
    return Temporary(std::move(file));
  }
  Temporary(Temporary&& other) noexcept : file_(std::move(other.file_)), owned_(std::exchange(other.owned_, false)) {}
  ~Temporary() { Remove(); }
  const File& file() const { return file_; }
  void Remove() {
    // Best effort: a temporary that stays is recognised by its name and removed by the next life.
    if (std::exchange(owned_, false)) Unlink(file_.path).IgnoreError();
  }
  void Keep() { owned_ = false; }

 private:
  explicit Temporary(File file) : file_(std::move(file)) {}
  File file_;
  bool owned_ = true;
};

absl::Status Fill(const File& file, std::string_view content) {
  NEVE_RETURN_IF_ERROR(WriteAt(file, 0, std::as_bytes(std::span(content))));
  return Fsync(file);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit) {
  // Looked at before it is opened: opening a pipe would wait for a writer that never comes.
  NEVE_ASSIGN_OR_RETURN(const struct ::stat before, Stat(path));
  if (!S_ISREG(before.st_mode)) return Damaged(absl::StrFormat("%s is not a regular file", path));
  NEVE_ASSIGN_OR_RETURN(const File file, Open(path, O_RDONLY));
  NEVE_ASSIGN_OR_RETURN(const struct ::stat details, StatOpen(file));
  const auto size = static_cast<uint64_t>(details.st_size);
  const auto too_long = [&](uint64_t bytes) {
    return Damaged(absl::StrFormat("%s has %d bytes or more, at most %d are allowed", path, bytes, limit));
  };
  if (size > limit) return too_long(size);
  // The size is a first guess only: the file may grow meanwhile, and those of /proc say 0. One byte more than the guess
  // is asked for, so that a file of the expected size ends after one full read and one empty one.
  std::string content(size + 1, '\0');
  uint64_t done = 0;
  while (true) {
    if (done == content.size()) content.resize(content.size() + 65536);
    const int64_t moved = MakeCall({.call = Call::kPread, .path = path, .offset = done, .length = content.size() - done},
                                   [&](uint64_t allowed) {
                                     return ::pread(file.fd.get(), content.data() + done, allowed,
                                                    static_cast<off_t>(done));
                                   });
    if (moved < 0) return ErrnoStatus(static_cast<int>(-moved), absl::StrFormat("read %s", path));
    if (moved == 0) break;
    done += static_cast<uint64_t>(moved);
    if (done > limit) return too_long(done);
  }
  content.resize(done);
  return content;
}

absl::Status WriteFileAtomic(const std::string& path, std::string_view content) {
  NEVE_ASSIGN_OR_RETURN(const std::string target, FollowLinks(path));
  const std::string folder = DirName(target);
  const auto before = Stat(target);
  if (!before.ok() && ErrnoOf(before.status()) != ENOENT) return before.status();
  NEVE_ASSIGN_OR_RETURN(Temporary temporary, Temporary::Make(folder));
  if (before.ok()) {
    // Readers that could open the old file can open the new one. A new file has what open() and the umask gave it.
    if (::fchmod(temporary.file().fd.get(), before->st_mode & 0777) != 0) {
      return ErrnoStatus(errno, absl::StrFormat("set the mode of %s", temporary.file().path));
    }
  }
  NEVE_RETURN_IF_ERROR(Fill(temporary.file(), content));
  NEVE_RETURN_IF_ERROR(Rename(temporary.file().path, target));
  temporary.Keep();
  return FsyncDirectory(folder);
}

absl::Status WriteFileExclusive(const std::string& path, std::string_view content) {
  const std::string folder = DirName(path);
  NEVE_ASSIGN_OR_RETURN(Temporary temporary, Temporary::Make(folder));
  NEVE_RETURN_IF_ERROR(Fill(temporary.file(), content));
  const absl::Status linked = Link(temporary.file().path, path);
  switch (ErrnoOf(linked)) {
    case 0:
      NEVE_RETURN_IF_ERROR(linked);
      break;
    case EPERM:
    case EOPNOTSUPP:
    case ENOSYS:
    case EMLINK:
      // A file system without hard links; it may still know a rename that does not replace.
      NEVE_RETURN_IF_ERROR(RenameNoReplace(temporary.file().path, path));
      temporary.Keep();
      break;
    case EEXIST: {
      // NFS repeats a link whose answer got lost and then reports its own success as EEXIST: a second name tells.
      const auto details = StatOpen(temporary.file());
      if (!details.ok() || details->st_nlink != 2) return linked;
      break;
    }
    default:
      return linked;
  }
  temporary.Remove();  // before the folder is synced, so that one sync covers both names
  return FsyncDirectory(folder);
}

}  // namespace neve::os
