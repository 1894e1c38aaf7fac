#include "storage/file/file_image_reader.h"

#include <fcntl.h>

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "storage/file/kernel_file.h"
#include "storage/file/transfer.h"

namespace neve::storage {
namespace {

class FileImageReader : public ImageReader {
 public:
  FileImageReader(std::shared_ptr<TierCore> core, std::shared_ptr<ImageFile> file, format::CommitRecord record)
      : core_(std::move(core)), file_(std::move(file)), record_(std::move(record)) {}

  const format::CommitRecord& record() const override { return record_; }

  void Read(uint64_t offset, std::span<std::byte> target, Done done) override { Post(false, offset, target, std::move(done)); }
  void ReadShared(uint64_t offset, std::span<std::byte> target, Done done) override { Post(true, offset, target, std::move(done)); }

 private:
  // The image once more, opened through the page cache. Thread of the fields: the loop's.
  struct Cached {
    bool tried = false;
    std::shared_ptr<ImageFile> file;               // null: the name is another file's by now, or there are no descriptors
  };

  void Post(bool shared, uint64_t offset, std::span<std::byte> target, Done done) {
    PostOrClose(*core_, std::move(done),
                [core = core_, file = file_, cached = cached_, shared, offset, target, end = record_.image_bytes](Done done) {
      if (offset > end || target.size() > end - offset) {
        return done(Invalid(absl::StrFormat("%s: bytes [%u, %u) asked for, the image has %u", file->file.path, offset,
                                            offset + target.size(), end)));
      }
      if (shared && !cached->tried) {
        cached->tried = true;
        cached->file = OpenCached(*file);
      }
      ReadRange(core, shared && cached->file != nullptr ? cached->file : file, offset, target, std::move(done));
    });
  }

  static std::shared_ptr<ImageFile> OpenCached(const ImageFile& image) {
    absl::StatusOr<os::File> file = os::Open(image.file.path, O_RDONLY);
    if (!file.ok()) return nullptr;
    const absl::StatusOr<struct ::stat> found = os::StatOpen(*file), wanted = os::StatOpen(image.file);
    if (!found.ok() || !wanted.ok() || found->st_ino != wanted->st_ino || found->st_dev != wanted->st_dev) return nullptr;
    ReadOnlyWhatIsAsked(*file);
    auto cached = std::make_shared<ImageFile>();
    cached->file = *std::move(file);
    cached->shared = true;
    return cached;
  }

  const std::shared_ptr<TierCore> core_;
  const std::shared_ptr<ImageFile> file_;
  const std::shared_ptr<Cached> cached_ = std::make_shared<Cached>();
  const format::CommitRecord record_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ImageReader>> OpenFileImage(const std::shared_ptr<TierCore>& core, const ImageKey& key) {
  const std::string record_path = core->folder.RecordPath(key);
  const std::string image_path = core->folder.ImagePath(key);
  NEVE_ASSIGN_OR_RETURN(const bool exists, core->folder.Exists());
  if (!exists) return NotFound(absl::StrFormat("%s is not there: the job has no folder yet", record_path));
  NEVE_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(record_path, format::kRecordBytesMax));
  absl::StatusOr<format::CommitRecord> record = format::DecodeRecord(text);
  if (!record.ok()) return Annotate(record.status(), record_path);
  if (record->key != key) {
    return Damaged(absl::StrFormat("%s is the record of another image: step %u %s rank %u of %u", record_path, record->key.step,
                                   record->key.save.ToString(), record->key.rank, record->key.world));
  }
  absl::StatusOr<std::shared_ptr<ImageFile>> file = core->OpenImageFile(image_path, O_RDONLY);
  if (absl::IsNotFound(file.status())) {
    // Retired between the two opens, or lost: only the record tells.
    if (!os::Exists(record_path)) return NotFound(absl::StrFormat("%s was retired", record_path));
    return Damaged(absl::StrFormat("%s is not there, though its record %s is", image_path, record_path));
  }
  NEVE_RETURN_IF_ERROR(file.status());
  NEVE_ASSIGN_OR_RETURN(const struct stat status, os::StatOpen((*file)->file));
  if (static_cast<uint64_t>(status.st_size) != record->image_bytes) {
    return Damaged(absl::StrFormat("%s has %d bytes, its record says %u", image_path, status.st_size, record->image_bytes));
  }
  // A retirement that began after the record was read may have given the file away before it was opened here. While it is
  // open it cannot be recycled, so a record that is still there proves it.
  if (!os::Exists(record_path)) return NotFound(absl::StrFormat("%s was retired", record_path));
  return std::shared_ptr<ImageReader>(std::make_shared<FileImageReader>(core, std::move(*file), *std::move(record)));
}

}  // namespace neve::storage
