#include "storage/file/write_behind.h"

#include <algorithm>

#include "storage/file/kernel_file.h"

namespace neve::storage {

void WriteBehind::Wrote(const std::shared_ptr<ImageFile>& file, uint64_t offset, uint64_t bytes) {
  if (absl::Status status = StartWriteback(file->file, offset, bytes); !status.ok()) file->writeback.Update(status);
  ranges_.push_back({file, offset, bytes});
  bytes_ += bytes;
  while (bytes_ > window_) {
    const Range oldest = std::move(ranges_.front());
    ranges_.pop_front();
    Retire(oldest);
  }
}

void WriteBehind::Forget(const std::shared_ptr<ImageFile>& file) {
  std::erase_if(ranges_, [&](const Range& range) {
    if (range.file != file) return false;
    bytes_ -= range.bytes;
    return true;
  });
  if (!file->direct) DropCachedPages(file->file, 0, 0);
}

void WriteBehind::Retire(const Range& range) {
  bytes_ -= range.bytes;
  if (absl::Status status = WaitForWriteback(range.file->file, range.offset, range.bytes); !status.ok()) {
    range.file->writeback.Update(status);
    return;
  }
  DropCachedPages(range.file->file, range.offset, range.bytes);
}

}  // namespace neve::storage
