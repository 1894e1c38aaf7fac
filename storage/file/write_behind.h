// Keeps the page cache of buffered writes small: writeback of each range starts as soon as it is written, and when more than
// `window` bytes are under way the oldest are waited for and dropped. A job in a small cgroup is then not killed for pages
// that it never asked for, and the final sync has little left to do. Thread: the loop's.
#ifndef NEVE_STORAGE_FILE_WRITE_BEHIND_H_
#define NEVE_STORAGE_FILE_WRITE_BEHIND_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve::storage {

// An image file in use by operations in flight. Thread of the fields: the loop's.
struct ImageFile {
  os::File file;
  bool direct = false;  // opened with O_DIRECT, which has not been refused
  bool shared = false;  // what is read stays in the page cache, for other processes to find
  // The first error of writeback. The kernel reports such an error once and forgets it, so a later fdatasync would succeed:
  // a file that has one must never be committed.
  absl::Status writeback;
};

class WriteBehind {
 public:
  static constexpr uint64_t kWindowBytes = 64u << 20;
  explicit WriteBehind(uint64_t window = kWindowBytes) : window_(window) {}

  void Wrote(const std::shared_ptr<ImageFile>& file, uint64_t offset, uint64_t bytes);
  // Everything of this file is durable, or its bytes do not matter any more.
  void Forget(const std::shared_ptr<ImageFile>& file);
  uint64_t bytes_under_way() const { return bytes_; }

 private:
  struct Range {
    std::shared_ptr<ImageFile> file;
    uint64_t offset, bytes;
  };
  void Retire(const Range& range);

  const uint64_t window_;
  std::deque<Range> ranges_;  // oldest first
  uint64_t bytes_ = 0;
};

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_WRITE_BEHIND_H_
