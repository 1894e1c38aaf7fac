// A shared memory mapping of a file, move-only.
#ifndef NEVE_BASE_OS_MAPPING_H_
#define NEVE_BASE_OS_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve::os {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();  // unmaps

  // Maps [0, bytes) of the file, shared. `write`: readable and writable, else read only. Marked MADV_DONTFORK.
  static absl::StatusOr<Mapping> Map(const File& file, uint64_t bytes, bool write);

  std::span<std::byte> bytes() const { return {data_, size_}; }
  bool valid() const { return data_ != nullptr; }

  // Makes every page present and writable now, by MADV_POPULATE_WRITE in slices on `threads` threads; where the kernel
  // lacks it, by touching each page. The room must have been reserved before (Fallocate), else this can raise SIGBUS.
  absl::Status Prefault(int threads) const;
  // Asks for huge pages; best effort, false when the kernel refused.
  bool AdviseHugePages() const;

 private:
  std::string path_;  // for messages
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool writable_ = false;
};

}  // namespace neve::os

#endif  // NEVE_BASE_OS_MAPPING_H_
