// Registered host memory: what copies to and from a device reach without a stop on the way.
//
// Regions come and go (Attach, Detach) whether or not a device is used; from UseDevice on all present and later ones are
// registered, in pieces of at most 1 GiB, since one registration of a large region stalls every call of the process.
//
// Invariants
//   - A region is unregistered before Detach returns, so before its memory is unmapped.
//   - A region is registered as a whole or not at all: what a refusal leaves half done is undone. Then smaller pieces are tried,
//     then the region stays as it is, and copies to it are slower: one warning says so.
//   - Memory that another mapping at the same address left registered is unregistered and tried again, once.
// Thread: any.
#ifndef NEVE_DEVICE_REGISTRATIONS_H_
#define NEVE_DEVICE_REGISTRATIONS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/sync/mutex.h"
#include "device/device.h"

namespace neve::device {

class Registrations {
 public:
  ~Registrations();
  void Attach(std::span<std::byte> region);
  void Detach(std::span<std::byte> region);
  // For good; the first device registers for all of them.
  void UseDevice(const std::shared_ptr<Device>& device);
  bool Covers(std::span<const std::byte> memory) const;

 private:
  struct Region {
    uint64_t bytes = 0;
    std::vector<std::byte*> pieces;  // empty: not registered
  };
  void RegisterLocked(std::byte* begin, Region& region) NEVE_REQUIRES(mutex_);
  absl::Status TryLocked(std::byte* begin, Region& region, uint64_t piece_bytes) NEVE_REQUIRES(mutex_);
  void UnregisterLocked(Region& region) NEVE_REQUIRES(mutex_);

  mutable sync::Mutex mutex_;
  std::shared_ptr<Device> device_ NEVE_GUARDED_BY(mutex_);
  std::map<std::byte*, Region> regions_ NEVE_GUARDED_BY(mutex_);
  bool told_ NEVE_GUARDED_BY(mutex_) = false;
};

}  // namespace neve::device

#endif  // NEVE_DEVICE_REGISTRATIONS_H_
