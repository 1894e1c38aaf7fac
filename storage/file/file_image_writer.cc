#include "storage/file/file_image_writer.h"

#include <fcntl.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "format/names.h"
#include "storage/file/kernel_file.h"
#include "storage/file/transfer.h"

namespace neve::storage {
namespace {

// The image while it is written. Thread: the loop's.
struct Draft {
  std::shared_ptr<TierCore> core;
  ImageKey key;
  uint64_t image_bytes = 0;
  std::string path;
  std::shared_ptr<ImageFile> file;
  uint64_t written_bytes = 0;
  bool committing = false;
  bool committed = false;
  bool abandoned = false;     // the writer is gone
  absl::Status sync_failure;  // of fdatasync: the kernel reports it once, so it must not be tried again
};

void RemoveImage(const Draft& draft) {
  draft.core->write_behind.Forget(draft.file);
  // Only the file of this draft: another life may have begun the same image anew.
  const absl::StatusOr<struct stat> open = os::StatOpen(draft.file->file);
  const absl::StatusOr<struct stat> named = os::Stat(draft.path);
  if (open.ok() && named.ok() && (open->st_ino != named->st_ino || open->st_dev != named->st_dev)) return;
  if (named.ok()) os::Unlink(draft.path).IgnoreError();
  draft.core->folder.RemoveSaveFolderIfEmpty(draft.key);
}

// The name must still lead to the bytes that were written and synced.
absl::Status CheckNamed(const Draft& draft) {
  NEVE_ASSIGN_OR_RETURN(const struct stat open, os::StatOpen(draft.file->file));
  const absl::StatusOr<struct stat> named = os::Stat(draft.path);
  if (absl::IsNotFound(named.status())) {
    return Unavailable(absl::StrFormat("%s was removed while it was written", draft.path), ENOENT);
  }
  NEVE_RETURN_IF_ERROR(named.status());
  if (open.st_ino != named->st_ino || open.st_dev != named->st_dev) {
    return Unavailable(absl::StrFormat("%s was replaced while it was written", draft.path), EEXIST);
  }
  if (static_cast<uint64_t>(named->st_size) != draft.image_bytes) {
    return Damaged(absl::StrFormat("%s has %d bytes, %u were written", draft.path, named->st_size, draft.image_bytes));
  }
  return absl::OkStatus();
}

// Steps 5 to 7 of the commit.
absl::Status WriteRecord(const Draft& draft, const std::string& text) {
  const std::string folder = draft.core->folder.SaveFolder(draft.key);
  const std::string target = draft.core->folder.RecordPath(draft.key);
  const std::string temporary = os::JoinPath(folder, std::string(format::kTemporaryPrefix) + os::RandomHex(16));
  const auto write = [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const os::File file, os::Open(temporary, O_WRONLY | O_CREAT | O_EXCL));
    os::TryLock(file);   // as the image: no collector takes it for a dead one's
    NEVE_RETURN_IF_ERROR(os::WriteAt(file, 0, std::as_bytes(std::span(text))));
    NEVE_RETURN_IF_ERROR(os::Fsync(file));
    return os::RenameNoReplace(temporary, target);
  };
  if (absl::Status status = write(); !status.ok()) {
    os::Unlink(temporary).IgnoreError();
    return status;
  }
  absl::Status status = os::FsyncDirectory(folder);
  // Committed or not is for the disk to say now; taken back, so that what the caller is told is true as far as it can be.
  if (!status.ok()) os::Unlink(target).IgnoreError();
  return status;
}

// Steps 4 to 7, once the bytes are durable.
absl::Status PublishImage(const Draft& draft, const std::string& record) {
  const JobFolder& folder = draft.core->folder;
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(folder.SaveFolder(draft.key)));
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(folder.path()));
  NEVE_RETURN_IF_ERROR(CheckNamed(draft));
  return WriteRecord(draft, record);
}

void FinishCommit(const std::shared_ptr<Draft>& draft, absl::Status status, const Done& done) {
  draft->committing = false;
  draft->committed = status.ok();
  if (draft->committed) {
    draft->core->write_behind.Forget(draft->file);
  } else if (draft->abandoned) {
    RemoveImage(*draft);
  }
  done(status.ok() ? status : Annotate(MissingIsUnavailable(status), "commit of " + draft->path));
}

absl::Status CheckCommit(const Draft& draft, const format::CommitRecord& record) {
  if (draft.committed || draft.committing) {
    return Invalid(absl::StrFormat("%s: commit was called twice", draft.path));
  }
  if (record.key != draft.key || record.image_bytes != draft.image_bytes) {
    return Invalid(absl::StrFormat("%s: the record is of another image or of %u bytes, not %u", draft.path, record.image_bytes,
                                   draft.image_bytes));
  }
  if (draft.written_bytes != draft.image_bytes) {
    return Invalid(
        absl::StrFormat("%s: %u of %u bytes were written before the commit", draft.path, draft.written_bytes, draft.image_bytes));
  }
  NEVE_RETURN_IF_ERROR(draft.sync_failure);
  return draft.file->writeback;
}

void CommitDraft(const std::shared_ptr<Draft>& draft, std::string record, Done done) {
  draft->committing = true;
  // Step 2 ends here: the last block was padded, or a spare was larger.
  if (absl::Status status = os::Ftruncate(draft->file->file, draft->image_bytes); !status.ok()) {
    return FinishCommit(draft, status, done);
  }
  draft->core->loop->ring().Fdatasync(
      draft->file->file, [draft, record = std::move(record), done = std::move(done)](absl::StatusOr<uint64_t> synced) {
        draft->sync_failure.Update(synced.status());
        absl::Status status = draft->sync_failure;
        status.Update(draft->file->writeback);
        if (status.ok()) status = PublishImage(*draft, record);
        FinishCommit(draft, status, done);
      });
}

class FileImageWriter : public ImageWriter {
 public:
  explicit FileImageWriter(std::shared_ptr<Draft> draft) : draft_(std::move(draft)) {}

  ~FileImageWriter() override {
    draft_->core->loop->PostLast([draft = draft_] {
      draft->abandoned = true;
      if (!draft->committed && !draft->committing) RemoveImage(*draft);
    });
  }

  void Write(uint64_t offset, std::span<const std::byte> source, Done done) override {
    PostOrClose(*draft_->core, std::move(done), [draft = draft_, offset, source](Done done) {
      const uint64_t end = draft->image_bytes, bytes = source.size();
      if (offset % kBlockBytes != 0 || offset > end || bytes > end - offset ||
          (bytes % kBlockBytes != 0 && offset + bytes != end)) {
        return done(Invalid(absl::StrFormat("%s: a write of bytes [%u, %u) of %u: ranges begin and end at multiples of %u",
                                            draft->path, offset, offset + bytes, end, kBlockBytes)));
      }
      WriteRange(draft->core, draft->file, offset, source, [draft, bytes, done = std::move(done)](absl::Status status) {
        if (status.ok()) draft->written_bytes += bytes;
        done(status);
      });
    });
  }

  void Commit(const format::CommitRecord& record, Done done) override {
    PostOrClose(*draft_->core, std::move(done), [draft = draft_, record](Done done) {
      if (absl::Status status = CheckCommit(*draft, record); !status.ok()) return done(status);
      CommitDraft(draft, format::EncodeRecord(record), std::move(done));
    });
  }

 private:
  const std::shared_ptr<Draft> draft_;
};

// Creates the file, or takes a spare for it. The folder may vanish in between, where another rank aborts or retires there.
absl::StatusOr<std::shared_ptr<ImageFile>> CreateImageFile(TierCore& core, const ImageKey& key, uint64_t bytes,
                                                           const std::string& path) {
  constexpr int kAttempts = 3;
  absl::StatusOr<std::shared_ptr<ImageFile>> file;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    NEVE_RETURN_IF_ERROR(core.folder.MakeSaveFolder(key));
    file = core.OpenImageFile(path, core.spares.Take(key, bytes, path) ? O_RDWR : O_RDWR | O_CREAT | O_EXCL);
    if (absl::IsNotFound(file.status())) continue;
    NEVE_RETURN_IF_ERROR(file.status());
    // Locked until it is committed and closed: a collector takes an image without a record for a leftover otherwise, when the life
    // that saved it is dead and this one persists what it left in RAM.
    os::TryLock((*file)->file);
    NEVE_ASSIGN_OR_RETURN(const struct stat facts, os::StatOpen((*file)->file));
    if (facts.st_nlink > 0) break;
    file = NotFound(path + " was removed as soon as it was made");
  }
  return file;
}

// Room for all of the image, so that no later write fails for want of it, in its final size, so that no write extends it.
absl::Status ReserveRoom(const os::File& file, uint64_t bytes) {
  NEVE_ASSIGN_OR_RETURN(const struct stat status, os::StatOpen(file));
  if (static_cast<uint64_t>(status.st_size) > bytes) NEVE_RETURN_IF_ERROR(os::Ftruncate(file, bytes));
  if (bytes == 0) return absl::OkStatus();
  absl::Status reserved = os::Fallocate(file, bytes);
  // EINVAL: the emulation of a file system that cannot reserve met O_DIRECT.
  if (const int error = ErrnoOf(reserved); error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
    return os::Ftruncate(file, bytes);
  }
  return reserved;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ImageWriter>> BeginFileImage(const std::shared_ptr<TierCore>& core, const ImageKey& key,
                                                            uint64_t image_bytes) {
  if (key.rank >= key.world || key.step >= kStepLimit) {
    return Invalid(absl::StrFormat("no image can be of step %u, rank %u of %u", key.step, key.rank, key.world));
  }
  NEVE_RETURN_IF_ERROR(core->folder.Exists().status());
  const std::string record_path = core->folder.RecordPath(key);
  if (const absl::StatusOr<struct stat> record = os::Stat(record_path); record.ok()) {
    return Invalid(absl::StrFormat("%s is there already: a committed image is never replaced", record_path));
  } else if (!absl::IsNotFound(record.status())) {
    return record.status();
  }
  auto draft = std::make_shared<Draft>();
  draft->core = core;
  draft->key = key;
  draft->image_bytes = image_bytes;
  draft->path = core->folder.ImagePath(key);
  if (os::Exists(core->folder.SaveFolder(key))) {
    // A leftover without a record. A record that was taken back must be gone for good before its image's name is used again, else
    // power loss could bring it back beside bytes that are not its own.
    NEVE_RETURN_IF_ERROR(os::Unlink(draft->path));
    absl::Status synced = os::FsyncDirectory(core->folder.SaveFolder(key));
    if (absl::IsNotFound(synced)) synced = os::FsyncDirectory(core->folder.path());   // a collector took it, empty, in between
    NEVE_RETURN_IF_ERROR(synced);
  }

  const uint64_t room = RoundUpToBlock(image_bytes);
  absl::StatusOr<std::shared_ptr<ImageFile>> file = CreateImageFile(*core, key, room, draft->path);
  if (!file.ok()) {
    os::Unlink(draft->path).IgnoreError();
    core->folder.RemoveSaveFolderIfEmpty(key);
    return MissingIsUnavailable(file.status());
  }
  draft->file = std::move(*file);
  absl::Status reserved = ReserveRoom(draft->file->file, room);
  if (absl::IsResourceExhausted(reserved) && core->spares.Drop(key)) reserved = ReserveRoom(draft->file->file, room);
  if (!reserved.ok()) {
    RemoveImage(*draft);
    return Annotate(reserved, absl::StrFormat("room for an image of %u bytes in %s, where %u bytes are free", image_bytes,
                                              core->folder.path(), FreeBytes(core->folder.path())));
  }
  return std::shared_ptr<ImageWriter>(std::make_shared<FileImageWriter>(std::move(draft)));
}

}  // namespace neve::storage
