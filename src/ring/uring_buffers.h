// The table of registered memory of one ring: which transfer lies in which registered buffer.
//
// The kernel takes at most 1 GiB in one buffer, so a region fills a run of neighbouring entries. The table is made,
// empty, at the first registration, because a kernel that lacks sparse tables (before 5.19) can still do everything
// else.
#ifndef NEVE_RING_URING_BUFFERS_H_
#define NEVE_RING_URING_BUFFERS_H_

#if NEVE_HAVE_URING

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error/status.h"

namespace neve::ring {

class UringBuffers {
 public:
  static constexpr unsigned kBuffersMax = 1024;   // 1 TiB a ring

  absl::Status Register(io_uring* ring, std::span<std::byte> region);
  void Unregister(io_uring* ring, std::span<std::byte> region);

  struct Place {
    int index;
    uint64_t bytes;   // from the address to the end of the buffer: the transfer must not be longer
  };
  // The buffer that holds the address, if all of [address, address + bytes) is in one region.
  std::optional<Place> Find(const std::byte* address, uint64_t bytes) const;

 private:
  struct Region {
    std::span<std::byte> memory;
    unsigned first;
    unsigned count;
  };
  std::optional<unsigned> FreeRun(unsigned count) const;
  static int Update(io_uring* ring, unsigned first, const std::vector<iovec>& entries);

  bool table_made_ = false;
  std::vector<Region> regions_;   // by first entry
};

}  // namespace neve::ring

#endif  // NEVE_HAVE_URING

#endif  // NEVE_RING_URING_BUFFERS_H_
