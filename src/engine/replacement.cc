#include "engine/replacement.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "base/os/random.h"
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

}  // namespace

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
  mode_t mode = 0666;
  bool keep_mode = false;
  if (auto old = os::Stat(replacement->target_); old.ok()) {
    if (S_ISDIR(old->st_mode)) return Unavailable(absl::StrFormat("cannot save %s: a folder has that name", path), EISDIR);
    if (!S_ISREG(old->st_mode)) return Invalid(absl::StrFormat("cannot save %s: it is not a regular file", path));
    mode = old->st_mode & 07777;
    keep_mode = true;
  }
  absl::StatusOr<os::File> file = os::OpenUnnamed(replacement->Temporary(0));
  if (file.ok()) {
    replacement->file_ = *std::move(file);
  } else {
    if (ErrnoOf(file.status()) != EOPNOTSUPP) return file.status();
    NEVE_RETURN_IF_ERROR(replacement->CreateTemporary());
  }
  if (keep_mode && ::fchmod(replacement->file_.fd.get(), mode) != 0) {
    return ErrnoStatus(errno, absl::StrFormat("cannot give %s the mode of %s", replacement->file_.path, path));
  }
  NEVE_RETURN_IF_ERROR(os::Fallocate(replacement->file_, bytes));
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

absl::Status Replacement::Write(uint64_t offset, std::span<const std::byte> bytes) {
  NEVE_RETURN_IF_ERROR(os::WriteAt(file_, offset, bytes));
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
  NEVE_RETURN_IF_ERROR(os::Ftruncate(file_, bytes));
  NEVE_RETURN_IF_ERROR(os::Fsync(file_));
  if (!named_) NEVE_RETURN_IF_ERROR(TakeTemporaryName());
  NEVE_RETURN_IF_ERROR(os::Rename(temporary_, target_));
  named_ = false;
  RemoveDeadTemporaries();
  return os::FsyncDirectory(folder_);
}

}  // namespace neve
