// Private memory for what is captured and not yet written.
//
// Memory that was used is kept for the next save: making a GiB of pages present takes longer than filling it. While it is kept
// the kernel may take its pages whenever it needs them (MADV_FREE), so keeping it never runs anybody out of memory.
#ifndef NEVE_ENGINE_STAGING_MEMORY_H_
#define NEVE_ENGINE_STAGING_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error/status.h"

namespace neve {

class StagingMemory {
 public:
  // Begins at a page. Its content is whatever it was. Exhausted.
  static absl::StatusOr<StagingMemory> Take(uint64_t bytes);
  StagingMemory(StagingMemory&& other) noexcept;
  StagingMemory& operator=(StagingMemory&&) = delete;
  ~StagingMemory();   // keeps it, or what is kept already if that is larger; the other is unmapped

  std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  StagingMemory(std::byte* data, uint64_t bytes, uint64_t mapped) : data_(data), bytes_(bytes), mapped_(mapped) {}

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0, mapped_ = 0;
};

}  // namespace neve

#endif  // NEVE_ENGINE_STAGING_MEMORY_H_
