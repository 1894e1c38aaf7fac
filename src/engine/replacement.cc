#include "engine/replacement.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/os/random.h"
#include "base/os/thread.h"
#include "base/sync/mutex.h"
#include "format/names.h"

namespace neve {
namespace {

constexpr uint64_t kBehindBytes = 64u << 20;     // so far behind the writing, pages are waited for and dropped
constexpr uint64_t kNumbers = 256;               // temporaries of so many savers in one folder are told apart
constexpr uint64_t kNumbersSwept = 16;

struct FreeDeleter {
  void operator()(void* pointer) const { std::free(pointer); }
};

std::string Absolute(const std::string& path) {
  if (path.starts_with('/')) return path;
  const std::unique_ptr<char[], FreeDeleter> folder(::getcwd(nullptr, 0));
  return folder == nullptr ? path : os::JoinPath(folder.get(), path);   // gone: the call that uses the path says so
}

// Removes a temporary whose writer is gone; what cannot be locked stays.
void RemoveIfDead(const std::string& path) {
  if (!os::Exists(path)) return;
  const absl::StatusOr<os::File> idle = os::LockIdle(path);   // held until the name is gone
  if (idle.ok()) os::Unlink(path).IgnoreError();
}

// The new file becomes the old one's owner's, as far as this user may; its group matters to those who share the file.
void KeepOwner(int fd, const struct ::stat& old) {
  if (::fchown(fd, old.st_uid, old.st_gid) == 0) return;
  [[maybe_unused]] const int group_only = ::fchown(fd, static_cast<uid_t>(-1), old.st_gid);   // not ours to give: ours stays
}

}  // namespace

struct Replacement::Turns {
  sync::Mutex mutex;
  uint64_t begun NEVE_GUARDED_BY(mutex) = 0;
  uint64_t named NEVE_GUARDED_BY(mutex) = 0;   // the latest to begin of those that took the name
};

std::shared_ptr<Replacement::Turns> Replacement::TurnsOf(const std::string& target) {
  struct All {
    sync::Mutex mutex;
    uint64_t fork_generation NEVE_GUARDED_BY(mutex) = 0;
    std::map<std::string, std::weak_ptr<Turns>> by_target NEVE_GUARDED_BY(mutex);
  };
  static All* const all = new All;
  sync::MutexLock lock(all->mutex);
  if (all->fork_generation != os::ForkGeneration()) {   // the parent's savers do not live here
    all->by_target.clear();
    all->fork_generation = os::ForkGeneration();
  }
  std::erase_if(all->by_target, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Turns>& known = all->by_target[target];
  std::shared_ptr<Turns> turns = known.lock();
  if (turns == nullptr) known = turns = std::make_shared<Turns>();
  return turns;
}

std::string Replacement::Temporary(uint64_t number) const {
  const std::string name = number < kNumbers ? absl::StrFormat("%016x", number) : os::RandomHex(16);
  return os::JoinPath(folder_, std::string(format::kTemporaryPrefix) + name);
}

absl::StatusOr<std::unique_ptr<Replacement>> Replacement::Begin(const std::string& path, uint64_t bytes) {
  auto replacement = std::make_unique<Replacement>();
  NEVE_ASSIGN_OR_RETURN(replacement->target_, os::FollowLinks(Absolute(path)));
  replacement->folder_ = os::DirName(replacement->target_);
  if (auto there = os::Stat(replacement->folder_); !there.ok()) {
    return Annotate(there.status(), absl::StrFormat("cannot save %s: its folder", path));
  }
  std::optional<struct ::stat> kept;   // of the old file
  if (auto old = os::Stat(replacement->target_); old.ok()) {
    if (S_ISDIR(old->st_mode)) return Unavailable(absl::StrFormat("cannot save %s: a folder has that name", path), EISDIR);
    if (!S_ISREG(old->st_mode)) return Invalid(absl::StrFormat("cannot save %s: it is not a regular file", path));
    if (::faccessat(AT_FDCWD, replacement->target_.c_str(), W_OK, AT_EACCESS) != 0) {
      return ErrnoStatus(errno, absl::StrFormat("cannot save %s: the file that is there may not be written", path));
    }
    kept = *old;
  }
  replacement->turns_ = TurnsOf(replacement->target_);
  {
    sync::MutexLock lock(replacement->turns_->mutex);
    replacement->turn_ = ++replacement->turns_->begun;
  }
  absl::StatusOr<os::File> file = os::OpenUnnamed(replacement->Temporary(0));
  if (file.ok()) {
    replacement->file_ = *std::move(file);
  } else {
    if (ErrnoOf(file.status()) != EOPNOTSUPP) return replacement->CannotSave(file.status());
    NEVE_RETURN_IF_ERROR(replacement->CannotSave(replacement->CreateTemporary()));
  }
  if (kept.has_value()) KeepOwner(replacement->file_.fd.get(), *kept);
  if (kept.has_value() && ::fchmod(replacement->file_.fd.get(), kept->st_mode & 07777) != 0) {
    return ErrnoStatus(errno, absl::StrFormat("cannot give %s the mode of %s", replacement->file_.path, path));
  }
  NEVE_RETURN_IF_ERROR(replacement->CannotSave(os::Fallocate(replacement->file_, bytes)));
  return replacement;
}

Replacement::~Replacement() {
  if (named_) os::Unlink(temporary_).IgnoreError();   // already failing: the first error is the one that counts
}

absl::Status Replacement::CreateTemporary() {
  for (;; ++number_) {
    temporary_ = Temporary(number_);
    RemoveIfDead(temporary_);
    absl::StatusOr<os::File> file = os::Open(temporary_, O_CREAT | O_EXCL | O_RDWR, 0666);
    if (ErrnoOf(file.status()) == EEXIST && number_ < kNumbers) continue;
    NEVE_RETURN_IF_ERROR(file.status());
    file_ = *std::move(file);
    os::TryLock(file_);   // a file system without locks: then nobody can hold the file for dead
    // Between its making and its lock another saver may have taken it for a dead one's and removed it.
    const absl::StatusOr<struct ::stat> facts = os::StatOpen(file_);
    named_ = facts.ok() && facts->st_nlink > 0;
    if (named_) return absl::OkStatus();
  }
}

absl::Status Replacement::TakeTemporaryName() {
  os::TryLock(file_);
  for (;; ++number_) {
    temporary_ = Temporary(number_);
    RemoveIfDead(temporary_);
    file_.path = temporary_;
    const absl::Status named = os::Name(file_);
    if (ErrnoOf(named) == EEXIST && number_ < kNumbers) continue;
    named_ = named.ok();
    return named;
  }
}

void Replacement::RemoveDeadTemporaries() const {
  for (uint64_t number = 0; number < std::max(kNumbersSwept, std::min(number_, kNumbers)); ++number) {
    RemoveIfDead(Temporary(number));
  }
}

absl::Status Replacement::CannotSave(const absl::Status& status) const { return Annotate(status, "cannot save " + target_); }

absl::Status Replacement::Write(uint64_t offset, std::span<const std::byte> bytes) {
  NEVE_RETURN_IF_ERROR(CannotSave(os::WriteAt(file_, offset, bytes)));
  ::sync_file_range(file_.fd.get(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
  if (offset >= 2 * kBehindBytes) {
    const auto old = static_cast<off64_t>(offset - 2 * kBehindBytes);
    ::sync_file_range(file_.fd.get(), old, static_cast<off64_t>(kBehindBytes),
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(file_.fd.get(), old, static_cast<off64_t>(kBehindBytes), POSIX_FADV_DONTNEED);
  }
  return absl::OkStatus();
}

absl::Status Replacement::Finish(uint64_t bytes) {
  NEVE_RETURN_IF_ERROR(CannotSave(os::Ftruncate(file_, bytes)));
  NEVE_RETURN_IF_ERROR(CannotSave(os::Fsync(file_)));
  return CannotSave(TakeName());
}

absl::Status Replacement::TakeName() {
  sync::MutexLock lock(turns_->mutex);
  if (turns_->named > turn_) return absl::OkStatus();   // a later save has the name, durably
  if (!named_) NEVE_RETURN_IF_ERROR(TakeTemporaryName());
  NEVE_RETURN_IF_ERROR(os::Rename(temporary_, target_));
  named_ = false;
  turns_->named = turn_;
  RemoveDeadTemporaries();
  return os::FsyncDirectory(folder_);
}

}  // namespace neve
