#include "base/os/syscalls.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/os/hooked_call.h"

namespace neve::os {
namespace {

constexpr int kLinkHopsMax = 40;   // as the kernel: more is ELOOP

// The kernel moves at most this many bytes in one call; asking for more only makes the answer short.
constexpr uint64_t kTransferBytesMax = 0x7ffff000;

absl::Status Failure(int64_t result, std::string what) { return ErrnoStatus(static_cast<int>(-result), std::move(what)); }

bool IsNoRoom(int64_t result) { return result == -ENOSPC || result == -EDQUOT || result == -EFBIG; }

// A failure for want of room says how much there is, since "how much to free" is the next question.
absl::Status RoomFailure(int64_t result, const File& file, const std::string& what) {
  struct ::statvfs room;
  if (!IsNoRoom(result) || ::fstatvfs(file.fd.get(), &room) != 0) return Failure(result, what);
  return Failure(result, absl::StrFormat("%s (%d bytes are free there)", what,
                                         static_cast<uint64_t>(room.f_bavail) * room.f_frsize));
}

bool FitsOffset(uint64_t offset, uint64_t length) {
  const auto limit = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  return offset <= limit && length <= limit - offset;
}

absl::Status SyncFile(const File& file, Call call, const char* verb) {
  const int64_t result = MakeCall({.call = call, .path = file.path}, [&](uint64_t) {
    return call == Call::kFsync ? ::fsync(file.fd.get()) : ::fdatasync(file.fd.get());
  });
  return result < 0 ? RoomFailure(result, file, absl::StrFormat("%s %s", verb, file.path)) : absl::OkStatus();
}

int64_t LinkCall(const std::string& from, const std::string& to) {
  return MakeCall({.call = Call::kLink, .path = from, .target = to},
                  [&](uint64_t) { return ::link(from.c_str(), to.c_str()); });
}

struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

}  // namespace

absl::StatusOr<File> Open(const std::string& path, int flags, mode_t mode) {
  flags |= O_CLOEXEC;
  const int64_t fd = MakeCall({.call = Call::kOpen, .path = path, .flags = flags},
                              [&](uint64_t) { return ::open(path.c_str(), flags, mode); });
  if (fd < 0) return Failure(fd, absl::StrFormat("open %s", path));
  return File{UniqueFd(static_cast<int>(fd)), path};
}

absl::Status ReadAt(const File& file, uint64_t offset, std::span<std::byte> target) {
  if (!FitsOffset(offset, target.size())) {
    return Damaged(absl::StrFormat("read of %d bytes at %d of %s: beyond what a file can hold", target.size(), offset,
                                   file.path));
  }
  uint64_t done = 0;
  while (done < target.size()) {
    const uint64_t length = std::min<uint64_t>(target.size() - done, kTransferBytesMax);
    const int64_t moved = MakeCall(
        {.call = Call::kPread, .path = file.path, .offset = offset + done, .length = length}, [&](uint64_t allowed) {
          return ::pread(file.fd.get(), target.data() + done, allowed, static_cast<off_t>(offset + done));
        });
    if (moved < 0) {
      return Failure(moved, absl::StrFormat("read of %d bytes at %d of %s", target.size(), offset, file.path));
    }
    if (moved == 0) {
      return Damaged(absl::StrFormat("read of %s: wanted %d bytes at %d, found %d; the file is too short", file.path,
                                     target.size(), offset, done));
    }
    done += static_cast<uint64_t>(moved);
  }
  return absl::OkStatus();
}

absl::Status WriteAt(const File& file, uint64_t offset, std::span<const std::byte> source) {
  const std::string what = absl::StrFormat("write of %d bytes at %d of %s", source.size(), offset, file.path);
  if (!FitsOffset(offset, source.size())) return ErrnoStatus(EFBIG, what);
  uint64_t done = 0;
  while (done < source.size()) {
    const uint64_t length = std::min<uint64_t>(source.size() - done, kTransferBytesMax);
    const int64_t moved = MakeCall({.call = Call::kPwrite,
                                    .path = file.path,
                                    .offset = offset + done,
                                    .length = length,
                                    .data = source.data() + done},
                                   [&](uint64_t allowed) {
                                     return ::pwrite(file.fd.get(), source.data() + done, allowed,
                                                     static_cast<off_t>(offset + done));
                                   });
    if (moved < 0) return RoomFailure(moved, file, what);
    // A write that takes nothing and reports nothing would be repeated for ever.
    if (moved == 0) return RoomFailure(-EIO, file, what);
    done += static_cast<uint64_t>(moved);
  }
  return absl::OkStatus();
}

absl::Status Fsync(const File& file) { return SyncFile(file, Call::kFsync, "fsync"); }
absl::Status Fdatasync(const File& file) { return SyncFile(file, Call::kFdatasync, "fdatasync"); }

absl::Status Ftruncate(const File& file, uint64_t bytes) {
  const std::string what = absl::StrFormat("truncate %s to %d bytes", file.path, bytes);
  if (!FitsOffset(0, bytes)) return ErrnoStatus(EFBIG, what);
  const int64_t result = MakeCall({.call = Call::kFtruncate, .path = file.path, .length = bytes}, [&](uint64_t) {
    return ::ftruncate(file.fd.get(), static_cast<off_t>(bytes));
  });
  return result < 0 ? RoomFailure(result, file, what) : absl::OkStatus();
}

absl::Status Fallocate(const File& file, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const std::string what = absl::StrFormat("reserve %d bytes for %s", bytes, file.path);
  if (!FitsOffset(0, bytes)) return ErrnoStatus(EFBIG, what);
  const CallRequest request{.call = Call::kFallocate, .path = file.path, .length = bytes};
  int64_t result =
      MakeCall(request, [&](uint64_t) { return ::fallocate(file.fd.get(), 0, 0, static_cast<off_t>(bytes)); });
  if (result == -EOPNOTSUPP) {
    // Where the file system cannot reserve, the C library writes into every block that is not there yet.
    result = -::posix_fallocate(file.fd.get(), 0, static_cast<off_t>(bytes));
  }
  return result < 0 ? RoomFailure(result, file, what) : absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  const int64_t result = MakeCall({.call = Call::kRename, .path = from, .target = to},
                                  [&](uint64_t) { return ::rename(from.c_str(), to.c_str()); });
  return result < 0 ? Failure(result, absl::StrFormat("rename %s to %s", from, to)) : absl::OkStatus();
}

absl::Status RenameNoReplace(const std::string& from, const std::string& to) {
  const std::string what = absl::StrFormat("rename %s to %s", from, to);
  // By number: the C library's wrapper is younger than the oldest one we run on.
  int64_t result = MakeCall({.call = Call::kRename, .path = from, .target = to, .flags = RENAME_NOREPLACE}, [&](uint64_t) {
    return ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  });
  if (result >= 0) return absl::OkStatus();
  if (result != -EINVAL && result != -ENOSYS) return Failure(result, what);
  // File systems without the flag (NFS among them): link refuses to replace just as well.
  result = LinkCall(from, to);
  if (result < 0) return Failure(result, what);
  return Unlink(from);
}

absl::Status Link(const std::string& from, const std::string& to) {
  const int64_t result = LinkCall(from, to);
  return result < 0 ? Failure(result, absl::StrFormat("link %s to %s", from, to)) : absl::OkStatus();
}

absl::StatusOr<File> OpenUnnamed(const std::string& path, mode_t mode) {
  const std::string what = absl::StrFormat("open a file without a name for %s", path);
  // Its name will be given by way of /proc: linkat(AT_EMPTY_PATH) is for privileged processes only.
  if (::access("/proc/self/fd", X_OK) != 0) return ErrnoStatus(EOPNOTSUPP, what);
  constexpr int kFlags = O_TMPFILE | O_RDWR | O_CLOEXEC;
  const std::string folder = DirName(path);
  const int64_t fd = MakeCall({.call = Call::kOpen, .path = path, .flags = kFlags},
                              [&](uint64_t) { return ::open(folder.c_str(), kFlags, mode); });
  // A kernel without the flag sees an attempt to write to a folder, and some file systems call it invalid.
  if (fd == -EISDIR || fd == -EINVAL) return Failure(-EOPNOTSUPP, what);
  if (fd < 0) return Failure(fd, what);
  return File{UniqueFd(static_cast<int>(fd)), path};
}

absl::Status Name(const File& file) {
  const std::string open = absl::StrFormat("/proc/self/fd/%d", file.fd.get());
  const int64_t result = MakeCall({.call = Call::kLink, .path = open, .target = file.path}, [&](uint64_t) {
    return ::linkat(AT_FDCWD, open.c_str(), AT_FDCWD, file.path.c_str(), AT_SYMLINK_FOLLOW);
  });
  return result < 0 ? RoomFailure(result, file, absl::StrFormat("give a file the name %s", file.path)) : absl::OkStatus();
}

namespace {

int64_t Lock(const File& file) {
  return MakeCall({.call = Call::kLease, .path = file.path},
                  [&](uint64_t) { return ::flock(file.fd.get(), LOCK_EX | LOCK_NB); });
}

}  // namespace

bool TryLock(const File& file) { return Lock(file) == 0; }

absl::StatusOr<File> LockIdle(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(File file, Open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (const int64_t result = Lock(file); result < 0) {
    return result == -EWOULDBLOCK ? Unavailable(path + " is being written (or its writer left a child that has it open)", EWOULDBLOCK)
                                  : Failure(result, absl::StrFormat("lock %s", path));
  }
  // The one before us may have removed or renamed it while we opened it.
  struct ::stat open, named;
  if (::fstat(file.fd.get(), &open) != 0 || ::lstat(path.c_str(), &named) != 0 || open.st_dev != named.st_dev ||
      open.st_ino != named.st_ino) {
    return NotFound(path + " went while it was opened");
  }
  if (!S_ISREG(open.st_mode)) return Unavailable(path + " is not a regular file", EINVAL);
  return file;
}

absl::StatusOr<std::string> FollowLinks(std::string path) {
  for (int hop = 0; hop < kLinkHopsMax; ++hop) {
    char text[PATH_MAX];
    const int64_t length = MakeCall({.call = Call::kStat, .path = path},
                                    [&](uint64_t) { return ::readlink(path.c_str(), text, sizeof(text)); });
    if (length == -EINVAL || length == -ENOENT) return path;   // not a link, or nothing there yet
    if (length < 0) return ErrnoStatus(static_cast<int>(-length), absl::StrFormat("read the link %s", path));
    path = JoinPath(DirName(path), std::string_view(text, static_cast<size_t>(length)));
  }
  return ErrnoStatus(ELOOP, absl::StrFormat("read the link %s", path));
}

absl::Status Unlink(const std::string& path) {
  const int64_t result =
      MakeCall({.call = Call::kUnlink, .path = path}, [&](uint64_t) { return ::unlink(path.c_str()); });
  if (result >= 0 || result == -ENOENT) return absl::OkStatus();
  return Failure(result, absl::StrFormat("unlink %s", path));
}

absl::Status Mkdir(const std::string& path, mode_t mode) {
  const int64_t result =
      MakeCall({.call = Call::kMkdir, .path = path}, [&](uint64_t) { return ::mkdir(path.c_str(), mode); });
  if (result >= 0) return absl::OkStatus();
  if (result == -EEXIST) {
    const auto there = Stat(path);
    if (there.ok() && S_ISDIR(there->st_mode)) return absl::OkStatus();
    if (absl::IsNotFound(there.status())) return there.status();   // it went in between
    return Failure(result, absl::StrFormat("make the folder %s (what is there is no folder)", path));
  }
  return Failure(result, absl::StrFormat("make the folder %s", path));
}

absl::Status MakeDirs(const std::string& path, mode_t mode) {
  const absl::Status made = Mkdir(path, mode);
  if (ErrnoOf(made) != ENOENT) return made;
  const std::string parent = DirName(path);
  if (parent == path || parent == ".") return made;
  NEVE_RETURN_IF_ERROR(MakeDirs(parent, mode));
  return Mkdir(path, mode);
}

absl::Status Rmdir(const std::string& path) {
  const int64_t result = MakeCall({.call = Call::kRmdir, .path = path}, [&](uint64_t) { return ::rmdir(path.c_str()); });
  if (result >= 0 || result == -ENOENT) return absl::OkStatus();
  // POSIX lets a file system say EEXIST for a folder that is not empty; callers look for one number.
  return Failure(result == -EEXIST ? -ENOTEMPTY : result, absl::StrFormat("remove the folder %s", path));
}

absl::Status FsyncDirectory(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(const File folder, Open(path, O_RDONLY | O_DIRECTORY));
  const absl::Status synced = Fsync(folder);
  // EINVAL: a file system whose folders have no fsync (some FUSE ones); there is nothing more that could be asked of it.
  if (ErrnoOf(synced) == EINVAL) return absl::OkStatus();
  return synced;
}

absl::StatusOr<struct ::stat> Stat(const std::string& path) {
  struct ::stat result {};
  const int64_t made =
      MakeCall({.call = Call::kStat, .path = path}, [&](uint64_t) { return ::stat(path.c_str(), &result); });
  if (made < 0) return Failure(made, absl::StrFormat("stat %s", path));
  return result;
}

absl::StatusOr<struct ::stat> StatOpen(const File& file) {
  struct ::stat result {};
  const int64_t made =
      MakeCall({.call = Call::kStat, .path = file.path}, [&](uint64_t) { return ::fstat(file.fd.get(), &result); });
  if (made < 0) return Failure(made, absl::StrFormat("stat %s", file.path));
  return result;
}

bool Exists(const std::string& path) { return Stat(path).ok(); }

absl::StatusOr<std::vector<DirectoryEntry>> ListDirectory(const std::string& path) {
  std::unique_ptr<DIR, CloseDirectory> stream;
  const int64_t opened = MakeCall({.call = Call::kList, .path = path}, [&](uint64_t) {
    stream.reset(::opendir(path.c_str()));
    return stream != nullptr ? 0 : -1;
  });
  if (opened < 0) return Failure(opened, absl::StrFormat("list %s", path));
  std::vector<DirectoryEntry> entries;
  while (true) {
    errno = 0;
    const struct ::dirent* found = ::readdir(stream.get());
    if (found == nullptr) {
      if (errno != 0) return ErrnoStatus(errno, absl::StrFormat("list %s", path));
      break;
    }
    DirectoryEntry entry{found->d_name, found->d_type == DT_DIR};
    if (entry.name == "." || entry.name == "..") continue;
    if (found->d_type == DT_UNKNOWN) {
      struct ::stat details;
      if (::fstatat(::dirfd(stream.get()), found->d_name, &details, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;  // removed while we were listing
        return ErrnoStatus(errno, absl::StrFormat("stat %s", JoinPath(path, entry.name)));
      }
      entry.is_directory = S_ISDIR(details.st_mode);
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

std::string DirName(const std::string& path) {
  size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  end = path.find_last_of('/', end);
  if (end == std::string::npos) return ".";
  end = path.find_last_not_of('/', end);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

std::string BaseName(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return path.empty() ? "" : "/";
  const size_t slash = path.find_last_of('/', last);
  const size_t first = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(first, last + 1 - first);
}

std::string JoinPath(std::string_view a, std::string_view b) {
  if (a.empty() || b.starts_with('/')) return std::string(b);
  std::string joined(a);
  if (!joined.ends_with('/')) joined += '/';
  joined += b;
  return joined;
}

}  // namespace neve::os
