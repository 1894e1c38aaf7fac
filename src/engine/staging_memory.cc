#include "engine/staging_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/sync/mutex.h"

namespace neve {
namespace {

constexpr uint64_t kHugePageBytes = 2 << 20;

// The one that is kept. Never destroyed: a save may end after the program's own statics.
struct Kept {
  sync::Mutex mutex;
  std::byte* data NEVE_GUARDED_BY(mutex) = nullptr;
  uint64_t mapped NEVE_GUARDED_BY(mutex) = 0;
};
Kept& TheKept() {
  static Kept* const kept = new Kept;
  return *kept;
}

}  // namespace

absl::StatusOr<StagingMemory> StagingMemory::Take(uint64_t bytes) {
  const uint64_t wanted = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  Kept& kept = TheKept();
  {
    sync::MutexLock lock(kept.mutex);
    if (kept.data != nullptr && kept.mapped >= wanted && kept.mapped / 2 <= wanted) {
      return StagingMemory(std::exchange(kept.data, nullptr), bytes, kept.mapped);
    }
  }
  void* const data = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Exhausted(absl::StrFormat("no memory to stage %d bytes", bytes), errno);
  ::madvise(data, wanted, MADV_HUGEPAGE);   // best effort: the first touch is several times faster
  return StagingMemory(static_cast<std::byte*>(data), bytes, wanted);
}

StagingMemory::StagingMemory(StagingMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), mapped_(other.mapped_) {}

StagingMemory::~StagingMemory() {
  if (data_ == nullptr) return;
  ::madvise(data_, mapped_, MADV_FREE);
  Kept& kept = TheKept();
  {
    sync::MutexLock lock(kept.mutex);
    if (kept.data == nullptr || kept.mapped < mapped_) {
      std::swap(kept.data, data_);
      std::swap(kept.mapped, mapped_);
    }
  }
  if (data_ != nullptr) ::munmap(data_, mapped_);
}

}  // namespace neve
