#include "storage/file/file_image_reader.h"

#include <fcntl.h>

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "storage/file/transfer.h"

namespace neve::storage {
namespace {

class FileImageReader : public ImageReader {
 public:
  FileImageReader(std::shared_ptr<TierCore> core, std::shared_ptr<ImageFile> file, format::CommitRecord record)
      : core_(std::move(core)), file_(std::move(file)), record_(std::move(record)) {}

  const format::CommitRecord& record() const override { return record_; }

  void Read(uint64_t offset, std::span<std::byte> target, Done done) override {
    PostOrClose(*core_, std::move(done), [core = core_, file = file_, offset, target, end = record_.image_bytes](Done done) {
      if (offset > end || target.size() > end - offset) {
        return done(Invalid(absl::StrFormat("%s: bytes [%u, %u) asked for, the image has %u", file->file.path, offset,
                                            offset + target.size(), end)));
      }
      ReadRange(core, file, offset, target, std::move(done));
    });
  }

 private:
  const std::shared_ptr<TierCore> core_;
  const std::shared_ptr<ImageFile> file_;
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
