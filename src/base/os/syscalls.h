// The only place where neve touches the file system, outside the ring. Each call retries EINTR, asks the hooks
// (io_hooks.h) and returns a Status whose message names the path. All are thread safe and blocking.
#ifndef NEVE_BASE_OS_SYSCALLS_H_
#define NEVE_BASE_OS_SYSCALLS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "base/os/unique_handle.h"

namespace neve::os {

// An open file and the path it was opened by (for messages).
struct File {
  UniqueFd fd;
  std::string path;
};

// O_CLOEXEC is always added. `mode` obeys the umask.
absl::StatusOr<File> Open(const std::string& path, int flags, mode_t mode = 0666);
// Whole transfers: short ones are continued. ReadAt past the end is Damaged, with bytes wanted and found.
absl::Status ReadAt(const File& file, uint64_t offset, std::span<std::byte> target);
absl::Status WriteAt(const File& file, uint64_t offset, std::span<const std::byte> source);
absl::Status Fsync(const File& file);
absl::Status Fdatasync(const File& file);
absl::Status Ftruncate(const File& file, uint64_t bytes);
// Reserves [0, bytes) so that later writes or touches cannot fail for want of room.
absl::Status Fallocate(const File& file, uint64_t bytes);
absl::Status Rename(const std::string& from, const std::string& to);
// Fails with Unavailable/EEXIST when `to` is there: never replaces (renameat2 RENAME_NOREPLACE, else link + unlink).
absl::Status RenameNoReplace(const std::string& from, const std::string& to);
absl::Status Link(const std::string& from, const std::string& to);   // a hard link; never replaces (Unavailable/EEXIST)
// A new file in the folder that has no name: it vanishes with its last descriptor, however the process ends. Its messages speak
// of `path`, and Name gives it that name (never replaces). Unavailable/EOPNOTSUPP where there are no such files.
absl::StatusOr<File> OpenUnnamed(const std::string& path, mode_t mode = 0666);
absl::Status Name(const File& file);
// Locks the file against every other open of it (flock): false when another has it, or where there are no locks. Held until the
// last descriptor of this open is closed, a forked child's included.
bool TryLock(const File& file);
// A file that its writer keeps locked while it is at work, opened and locked by us so that it may be removed: whoever holds the lock
// of the file that a path names may remove it, nobody else. Unavailable: EWOULDBLOCK while it is being written, ENOLCK where there
// are no locks, ENOENT (NotFound) gone, EINVAL no regular file.
absl::StatusOr<File> LockIdle(const std::string& path);
// Where a write to `path` has to land: the end of a chain of symbolic links, there or not. A plain path is itself.
absl::StatusOr<std::string> FollowLinks(std::string path);
absl::Status Unlink(const std::string& path);     // a file already gone is OK
absl::Status Mkdir(const std::string& path, mode_t mode = 0777);  // exists: OK when it is a directory
absl::Status MakeDirs(const std::string& path, mode_t mode = 0777);
absl::Status Rmdir(const std::string& path);      // gone already: OK; not empty: Unavailable/ENOTEMPTY
absl::Status FsyncDirectory(const std::string& path);
absl::StatusOr<struct ::stat> Stat(const std::string& path);   // follows links; missing: NotFound
absl::StatusOr<struct ::stat> StatOpen(const File& file);
bool Exists(const std::string& path);

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;   // of the entry itself; a link is neither followed nor a directory
};
// Sorted by name, without "." and "..". Missing: NotFound.
absl::StatusOr<std::vector<DirectoryEntry>> ListDirectory(const std::string& path);

// Whole small files. ReadFile refuses more than `limit` bytes (Damaged). WriteFileExclusive fails with
// Unavailable/EEXIST when the file is there. Both writers make the content durable: temporary `.tmp-<hex>` beside the target,
// fsync, rename (or link), fsync of the folder. A new file has the mode the umask gives, a replaced one keeps its own; a
// symbolic link stays one and its target is written. After a failure no temporary is left.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit);
absl::Status WriteFileAtomic(const std::string& path, std::string_view content);
absl::Status WriteFileExclusive(const std::string& path, std::string_view content);

std::string DirName(const std::string& path);
std::string BaseName(const std::string& path);
std::string JoinPath(std::string_view a, std::string_view b);

}  // namespace neve::os

#endif  // NEVE_BASE_OS_SYSCALLS_H_
