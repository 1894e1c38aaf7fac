#include "base/os/mapping.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/os/hooked_call.h"
#include "base/os/thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace neve::os {
namespace {

constexpr uint64_t kSliceBytes = 64u << 20;  // of Prefault: large enough to hide the call, small enough to share out

int64_t Advise(const std::string& path, std::byte* data, uint64_t bytes, int advice) {
  return MakeCall({.call = Call::kMadvise, .path = path, .length = bytes, .flags = advice},
                  [&](uint64_t) { return ::madvise(data, bytes, advice); });
}

// Writes one byte of each page back to itself, atomically: somebody else may be using the page already. A compare and
// exchange, since compilers turn an addition of zero into a load.
void TouchPages(std::byte* data, uint64_t bytes) {
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += page_bytes) {
    auto* const byte = reinterpret_cast<unsigned char*>(data + at);
    unsigned char value = __atomic_load_n(byte, __ATOMIC_RELAXED);
    // Failing means that somebody wrote the byte just now, so the page is present and writable.
    __atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

// The work that the threads of one Prefault share.
struct PrefaultJob {
  const std::string& path;
  std::byte* data;
  uint64_t bytes;
  std::atomic<uint64_t> next_slice{0};
  std::atomic<bool> populate{true};   // false once the kernel has said that it lacks MADV_POPULATE_WRITE
  std::atomic<int> error_number{0};   // the first failure; the others stop

  void Work() {
    while (error_number.load(std::memory_order_relaxed) == 0) {
      const uint64_t begin = next_slice.fetch_add(1, std::memory_order_relaxed) * kSliceBytes;
      if (begin >= bytes) return;
      const uint64_t length = std::min(kSliceBytes, bytes - begin);
      if (populate.load(std::memory_order_relaxed)) {
        const int64_t result = Advise(path, data + begin, length, MADV_POPULATE_WRITE);
        if (result >= 0) continue;
        if (result != -EINVAL) {
          error_number.store(static_cast<int>(-result), std::memory_order_relaxed);
          return;
        }
        populate.store(false, std::memory_order_relaxed);
      }
      TouchPages(data + begin, length);
    }
  }
};

void* PrefaultMain(void* job) {
  NameThisThread("neve-prefault");
  static_cast<PrefaultJob*>(job)->Work();
  return nullptr;
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      writable_(other.writable_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Mapping old(std::move(*this));
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    writable_ = other.writable_;
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

absl::StatusOr<Mapping> Mapping::Map(const File& file, uint64_t bytes, bool write) {
  if (bytes == 0) return Invalid(absl::StrFormat("map %s: nothing to map (0 bytes)", file.path));
  NEVE_ASSIGN_OR_RETURN(const struct ::stat details, StatOpen(file));
  if (static_cast<uint64_t>(details.st_size) < bytes) {
    return Damaged(absl::StrFormat("map %s: wanted %d bytes, the file has %d; the rest would raise SIGBUS", file.path,
                                   bytes, static_cast<int64_t>(details.st_size)));
  }
  void* data = MAP_FAILED;
  const int protection = write ? PROT_READ | PROT_WRITE : PROT_READ;
  const int64_t mapped = MakeCall({.call = Call::kMmap, .path = file.path, .length = bytes}, [&](uint64_t) {
    data = ::mmap(nullptr, bytes, protection, MAP_SHARED, file.fd.get(), 0);
    return data == MAP_FAILED ? -1 : 0;
  });
  if (mapped < 0) {
    return ErrnoStatus(static_cast<int>(-mapped), absl::StrFormat("map %d bytes of %s", bytes, file.path));
  }
  Mapping mapping;
  mapping.path_ = file.path;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = bytes;
  mapping.writable_ = write;
  const int64_t advised = Advise(file.path, mapping.data_, bytes, MADV_DONTFORK);
  if (advised < 0) {
    return ErrnoStatus(static_cast<int>(-advised),
                       absl::StrFormat("keep the mapping of %s out of forked children", file.path));
  }
  return mapping;
}

absl::Status Mapping::Prefault(int threads) const {
  if (!valid() || !writable_) return Invalid(absl::StrFormat("prefault %s: not mapped for writing", path_));
  PrefaultJob job{path_, data_, size_};
  const uint64_t slices = (size_ + kSliceBytes - 1) / kSliceBytes;
  const uint64_t wanted = std::min<uint64_t>(static_cast<uint64_t>(std::max(threads, 1)), slices);
  std::vector<pthread_t> crew;
  while (crew.size() + 1 < wanted) {
    pthread_t thread;
    if (!StartThread(&PrefaultMain, &job, &thread)) break;  // fewer hands, the same work
    crew.push_back(thread);
  }
  job.Work();
  for (const pthread_t thread : crew) ::pthread_join(thread, nullptr);
  const int failed = job.error_number.load(std::memory_order_relaxed);
  if (failed == 0) return absl::OkStatus();
  const std::string what = absl::StrFormat("make %d bytes of %s present", size_, path_);
  // EFAULT stands for the SIGBUS that a touch would have raised: no room behind the mapping.
  if (failed == EFAULT) return Exhausted(what + ": no room behind the mapping; reserve it before", EFAULT);
  return ErrnoStatus(failed, what);
}

bool Mapping::AdviseHugePages() const { return valid() && Advise(path_, data_, size_, MADV_HUGEPAGE) >= 0; }

}  // namespace neve::os
