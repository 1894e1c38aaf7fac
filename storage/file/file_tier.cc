#include "storage/file/file_tier.h"

#include <fcntl.h>

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "storage/file/file_image_reader.h"
#include "storage/file/file_image_writer.h"
#include "storage/file/listing.h"
#include "storage/file/notes.h"
#include "storage/file/tier_core.h"
#include "storage/file/transfer.h"

namespace neve::storage {
namespace {

// Record first: from the fsync of its folder on the image does not exist, whatever becomes of its bytes.
absl::Status RetireImage(TierCore& core, const ImageKey& key) {
  NEVE_ASSIGN_OR_RETURN(const bool exists, core.folder.Exists());
  const std::string folder = core.folder.SaveFolder(key), image_path = core.folder.ImagePath(key);
  if (!exists || !os::Exists(folder)) return absl::OkStatus();
  NEVE_RETURN_IF_ERROR(os::Unlink(core.folder.RecordPath(key)));
  if (absl::Status synced = os::FsyncDirectory(folder); !synced.ok()) {
    return absl::IsNotFound(synced) ? absl::OkStatus() : synced;  // another rank took the last of it away
  }
  if (!core.spares.Keep(image_path, key.rank)) NEVE_RETURN_IF_ERROR(os::Unlink(image_path));
  core.folder.RemoveSaveFolderIfEmpty(key);
  return absl::OkStatus();
}

absl::Status SetPin(TierCore& core, const ImageKey& key, bool pinned) {
  NEVE_ASSIGN_OR_RETURN(const bool exists, core.folder.Exists());
  const std::string folder = core.folder.SaveFolder(key), path = core.folder.PinPath(key);
  if (!exists || !os::Exists(folder)) return NotFound(absl::StrFormat("%s is not there", folder));
  if (pinned) {
    NEVE_RETURN_IF_ERROR(os::Open(path, O_WRONLY | O_CREAT).status());
  } else {
    NEVE_RETURN_IF_ERROR(os::Unlink(path));
  }
  return os::FsyncDirectory(folder);
}

// Through the page cache: the last block must not be padded in a file that has its final size.
void HealImage(const std::shared_ptr<TierCore>& core, const ImageKey& key, uint64_t offset, std::span<const std::byte> source,
               Done done) {
  const std::string path = core->folder.ImagePath(key);
  auto file = std::make_shared<ImageFile>();
  const absl::Status opened = [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const bool exists, core->folder.Exists());
    if (!exists) return NotFound(absl::StrFormat("%s is not there: the job has no folder yet", path));
    NEVE_RETURN_IF_ERROR(os::Stat(core->folder.RecordPath(key)).status());
    NEVE_ASSIGN_OR_RETURN(file->file, os::Open(path, O_WRONLY));
    NEVE_ASSIGN_OR_RETURN(const struct stat status, os::StatOpen(file->file));
    const uint64_t end = static_cast<uint64_t>(status.st_size);
    if (offset > end || source.size() > end - offset) {
      return Invalid(absl::StrFormat("%s: bytes [%u, %u) to heal, the image has %u", path, offset, offset + source.size(), end));
    }
    return absl::OkStatus();
  }();
  if (!opened.ok()) return done(opened);
  WriteRange(core, file, offset, source, [core, file, done = std::move(done)](absl::Status written) {
    if (!written.ok()) return done(written);
    core->loop->ring().Fdatasync(file->file, [core, file, done](absl::StatusOr<uint64_t> synced) {
      absl::Status status = synced.status();
      status.Update(file->writeback);
      core->write_behind.Forget(file);
      done(status);
    });
  });
}

class FileTier : public Tier {
 public:
  explicit FileTier(std::shared_ptr<TierCore> core) : core_(std::move(core)) {}
  ~FileTier() override { core_->loop->Stop(); }

  const TierInfo& info() const override { return core_->info; }

  void AttachRegion(std::span<std::byte> region) override {
    core_->loop->Post([core = core_, region] { core->loop->ring().RegisterRegion(region).IgnoreError(); });
  }
  // Waits: after it the memory may be unmapped and its addresses used for other things, which a registration that is still
  // there would not see.
  void DetachRegion(std::span<std::byte> region) override {
    core_->loop->RunAndWait([this, region] { core_->loop->ring().UnregisterRegion(region); });
  }

  void List(DoneWith<Listing> done) override {
    PostOrClose(*core_, std::move(done), [core = core_](DoneWith<Listing> done) { done(ListJobFolder(core->folder)); });
  }
  void OpenImage(const ImageKey& key, DoneWith<std::shared_ptr<ImageReader>> done) override {
    PostOrClose(*core_, std::move(done),
                [core = core_, key](DoneWith<std::shared_ptr<ImageReader>> done) { done(OpenFileImage(core, key)); });
  }
  void BeginImage(const ImageKey& key, uint64_t image_bytes, DoneWith<std::shared_ptr<ImageWriter>> done) override {
    PostOrClose(*core_, std::move(done), [core = core_, key, image_bytes](DoneWith<std::shared_ptr<ImageWriter>> done) {
      done(BeginFileImage(core, key, image_bytes));
    });
  }
  void Heal(const ImageKey& key, uint64_t offset, std::span<const std::byte> source, Done done) override {
    PostOrClose(*core_, std::move(done),
                [core = core_, key, offset, source](Done done) { HealImage(core, key, offset, source, std::move(done)); });
  }
  void Retire(const ImageKey& key, Done done) override {
    PostOrClose(*core_, std::move(done), [core = core_, key](Done done) { done(RetireImage(*core, key)); });
  }
  void SetPinned(const ImageKey& key, bool pinned, Done done) override {
    PostOrClose(*core_, std::move(done), [core = core_, key, pinned](Done done) { done(SetPin(*core, key, pinned)); });
  }
  void Settle(const ImageKey& key, Done done) override {
    PostOrClose(*core_, std::move(done), [core = core_, key](Done done) { done(os::FsyncDirectory(core->folder.SaveFolder(key))); });
  }
  void ReadNote(const std::string& name, DoneWith<std::string> done) override {
    PostOrClose(*core_, std::move(done),
                [core = core_, name](DoneWith<std::string> done) { done(ReadNoteFile(core->folder, name)); });
  }
  void WriteNote(const std::string& name, const std::string& content, bool exclusive, Done done) override {
    PostOrClose(*core_, std::move(done), [core = core_, name, content, exclusive](Done done) {
      done(WriteNoteFile(core->folder, name, content, exclusive));
    });
  }
  void RemoveNote(const std::string& name, Done done) override {
    PostOrClose(*core_, std::move(done), [core = core_, name](Done done) { done(RemoveNoteFile(core->folder, name)); });
  }

 private:
  const std::shared_ptr<TierCore> core_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tier>> OpenFileTier(const FileTierOptions& options) {
  if (options.job_folder.empty()) return Invalid("file tier: the job folder has no name");
  if (options.job_folder.find('\0') != std::string::npos) return Invalid("file tier: the job folder's name has a NUL in it");
  auto core = std::make_shared<TierCore>(options);
  core->info = {.kind = TierKind::kFile,
                .place = "file:" + options.job_folder,
                .durable = true,
                .alignment = kBlockBytes,
                .queue_depth = options.queue_depth};
  NEVE_ASSIGN_OR_RETURN(core->loop, IoLoop::Start({.depth = options.queue_depth, .engine = options.engine}));
  return std::unique_ptr<Tier>(std::make_unique<FileTier>(std::move(core)));
}

}  // namespace neve::storage
