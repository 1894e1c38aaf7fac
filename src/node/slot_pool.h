// SlotPool: the slots of one rank, own and adopted: which may be filled next, which are held, which may be freed.
//
// Invariants
//   - At most one fill at a time.
//   - A full slot is reused, the oldest that nobody holds first, only while the newest and in all `min(2, slots - 1)` full ones
//     are left: after any kill a whole image is there (with one slot the durable copy is, so it is held until written).
//   - Slots never outgrow `slots`, nor the budget (slot::Budget) at the time they are made.
//   - A slot whose file somebody removed or cut holds no save from then on; it is found out before each fill and each use.
//   - Memory of a slot is given back off the step path only, but where a state has outgrown its slots.
//
// Thread: any; one mutex, uncontended on the step path.
#ifndef NEVE_NODE_SLOT_POOL_H_
#define NEVE_NODE_SLOT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "base/sync/mutex.h"
#include "neve/types.h"
#include "node/slot_choice.h"
#include "slot/slot.h"

namespace neve::node {

// One image in memory: a slot, or private memory where there is no RAM tier. Owned by the pool.
struct Entry {
  std::unique_ptr<slot::Slot> slot;                  // null: private memory
  struct Free {
    void operator()(std::byte* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<std::byte[], Free> memory;
  std::vector<codec::Digest> memory_digests;
  uint64_t capacity = 0;
  ImageKey key;                                      // when full
  uint64_t image_bytes = 0;
  bool filling = false, full = false;
  bool lost = false;                                 // somebody removed or cut its file: not offered, not reused, not touched
  int holds = 0;                                     // flushes and readers

  std::span<std::byte> image() const {
    return slot != nullptr ? slot->image() : std::span<std::byte>(memory.get(), capacity);
  }
  std::span<codec::Digest> digests() {
    return slot != nullptr ? slot->digests() : std::span<codec::Digest>(memory_digests);
  }
};

class SlotPool {
 public:
  struct Options {
    bool shared = true;                              // in slot::RamFolder(); false: one transient slot in private memory
    Uid uid;
    std::string job;
    uint32_t rank = 0;
    uint64_t slots = 3;
    uint64_t budget_bytes = 0;                       // ram:?bytes=, 0: measured
    int prefault_threads = 2;
  };
  // `attach` and `detach` tell the durable tiers of memory that comes and goes.
  SlotPool(Options options, std::function<void(std::span<std::byte>)> attach, std::function<void(std::span<std::byte>)> detach);
  ~SlotPool();   // slots' files stay

  // Takes over slots of this rank whose owner is dead. Captured ones are digested and sealed. Returns how many hold a save.
  absl::StatusOr<int> AdoptDead();

  // An entry to fill with an image of `image_bytes`, marked filling. Makes a slot where allowed. Timeout after `timeout_s`
  // (< 0: none) when all are held. Exhausted when not even one slot fits the budget (the caller streams).
  absl::StatusOr<Entry*> Acquire(uint64_t image_bytes, double timeout_s);
  // Without waiting: null when none is free.
  absl::StatusOr<Entry*> TryAcquire(uint64_t image_bytes);
  void Filled(Entry* entry, const ImageKey& key, uint64_t image_bytes);   // now full
  void Abandon(Entry* entry);                                             // fill failed: free again

  void Hold(Entry* entry);
  void Release(Entry* entry);
  // Of kKeepsToo slots or more, this save (what all ranks have in RAM) is reused only where nothing else can be. Fewer are needed for
  // the newest ones: the watermark may stand still, when its connections do.
  void KeepToo(const SaveId& save);
  // Makes slots up to the configured number, for images of this size; stops where the budget ends.
  absl::Status Fill(uint64_t image_bytes);

  // The newest full entry, held for the caller (Release it); null when there is none.
  Entry* HoldNewest();
  std::vector<ImageKey> Full() const;                // newest first
  Entry* HoldByKey(const ImageKey& key);
  // Frees and removes the slots that nobody holds and for which `owes_nothing` says so.
  void RemoveIf(const std::function<bool(const ImageKey&)>& owes_nothing);
  uint64_t slot_count() const;
  uint64_t bytes() const;
  void Wake();                                       // waiters look again

 private:
  static constexpr size_t kKeepsToo = 4;
  bool FillingLocked() const NEVE_REQUIRES(mutex_);
  Entry* PickLocked(uint64_t image_bytes) NEVE_REQUIRES(mutex_);
  absl::StatusOr<std::unique_ptr<Entry>> Make(uint64_t image_bytes, uint64_t own_bytes) const;
  void DropLocked(Entry* entry) NEVE_REQUIRES(mutex_);
  void DropLostLocked() NEVE_REQUIRES(mutex_);

  const Options options_;
  const std::function<void(std::span<std::byte>)> attach_, detach_;
  mutable sync::Mutex mutex_;
  sync::Condition changed_;
  std::vector<std::unique_ptr<Entry>> entries_ NEVE_GUARDED_BY(mutex_);
  std::vector<SlotFacts> facts_ NEVE_GUARDED_BY(mutex_);   // of PickLocked
  int making_ NEVE_GUARDED_BY(mutex_) = 0;           // slots being made, counted against `slots`
  bool budget_ended_ NEVE_GUARDED_BY(mutex_) = false;
  std::optional<SaveId> kept_too_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve::node

#endif  // NEVE_NODE_SLOT_POOL_H_
