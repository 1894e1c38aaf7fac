#include "ring/uring_buffers.h"

#if NEVE_HAVE_URING

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "ring/operation.h"

namespace neve::ring {
namespace {

absl::Status RegistrationFailed(uint64_t bytes, int error_number) {
  std::string what = absl::StrFormat("register %d bytes with io_uring; transfers work unregistered", bytes);
  struct ::rlimit limit;
  if (error_number == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    what += absl::StrFormat(" (the limit of locked memory is %d bytes: ulimit -l)", limit.rlim_cur);
  }
  return ErrnoStatus(error_number, std::move(what));
}

bool SameMemory(std::span<std::byte> a, std::span<std::byte> b) { return a.data() == b.data() && a.size() == b.size(); }

}  // namespace

int UringBuffers::Update(io_uring* ring, unsigned first, const std::vector<iovec>& entries) {
  const std::vector<__u64> tags(entries.size(), 0);
  return io_uring_register_buffers_update_tag(ring, first, entries.data(), tags.data(), entries.size());
}

std::optional<unsigned> UringBuffers::FreeRun(unsigned count) const {
  unsigned begin = 0;
  for (const Region& region : regions_) {
    if (region.first - begin >= count) return begin;
    begin = region.first + region.count;
  }
  return kBuffersMax - begin >= count ? std::optional<unsigned>(begin) : std::nullopt;
}

absl::Status UringBuffers::Register(io_uring* ring, std::span<std::byte> region) {
  if (region.empty()) return absl::OkStatus();
  for (const Region& known : regions_) {
    if (SameMemory(known.memory, region)) return absl::OkStatus();
  }
  if (!table_made_) {
    const int result = io_uring_register_buffers_sparse(ring, kBuffersMax);
    if (result < 0) return RegistrationFailed(region.size(), -result);
    table_made_ = true;
  }
  std::vector<iovec> entries;
  for (uint64_t at = 0; at < region.size(); at += kTransferBytesMax) {
    entries.push_back({region.data() + at, std::min<uint64_t>(kTransferBytesMax, region.size() - at)});
  }
  const std::optional<unsigned> first = FreeRun(entries.size());
  if (!first.has_value()) {
    return Exhausted(absl::StrFormat("register %d bytes with io_uring: the %d buffers of the ring are taken; transfers "
                                     "work unregistered",
                                     region.size(), kBuffersMax));
  }
  const int updated = Update(ring, *first, entries);
  if (updated != static_cast<int>(entries.size())) {
    // Part of the region may be in: all of it goes out again.
    if (updated > 0) Update(ring, *first, std::vector<iovec>(updated, iovec{}));
    return RegistrationFailed(region.size(), updated < 0 ? -updated : ENOMEM);
  }
  const Region added{region, *first, static_cast<unsigned>(entries.size())};
  const auto next = std::ranges::find_if(regions_, [&](const Region& known) { return known.first > added.first; });
  regions_.insert(next, added);
  return absl::OkStatus();
}

void UringBuffers::Unregister(io_uring* ring, std::span<std::byte> region) {
  const auto is_it = [&](const Region& known) { return SameMemory(known.memory, region); };
  const auto found = std::ranges::find_if(regions_, is_it);
  if (found == regions_.end()) return;
  // The kernel keeps a buffer until the transfers that use it are over. Should it refuse, the entry stays unused.
  Update(ring, found->first, std::vector<iovec>(found->count, iovec{}));
  regions_.erase(found);
}

std::optional<UringBuffers::Place> UringBuffers::Find(const std::byte* address, uint64_t bytes) const {
  for (const Region& region : regions_) {
    const auto begin = reinterpret_cast<uintptr_t>(region.memory.data()), at = reinterpret_cast<uintptr_t>(address);
    if (at < begin || at - begin >= region.memory.size() || bytes > region.memory.size() - (at - begin)) continue;
    const uint64_t within = at - begin, entry = within / kTransferBytesMax;
    const uint64_t entry_end = std::min<uint64_t>((entry + 1) * kTransferBytesMax, region.memory.size());
    return Place{static_cast<int>(region.first + entry), entry_end - within};
  }
  return std::nullopt;
}

}  // namespace neve::ring

#endif  // NEVE_HAVE_URING
