// Slots: reusable places in shared memory for one image each, which outlive the process that filled them.
//
// A slot is one file `<ram dir>/<uid hex>/r<rank>-<nonce>.slot`, mode 0600 in folders of mode 0700:
//
//   [0, 4096)                   SlotHeader
//   [4096, image_offset)        digest table (16 bytes a chunk), tags and provenance (64 KiB at most, JSON text)
//   [image_offset, file end)    the image, padded to 4096; image_offset is a multiple of 2 MiB for capacities of 2 MiB or more
//
// States: free -> filling -> captured -> sealed -> free. `captured` is a release store after all bytes are in; `sealed` after
// the digests are. A slot found `filling` never held a save. A slot found `captured` by a dead owner is digested and sealed.
//
// Invariants
//   - Only the owner, (boot id, pid, start time) in the header, changes a slot. Ownership is never a lock held open. A dead
//     owner's slot may be adopted; the adopter takes a short flock for the exchange only.
//   - `generation` is raised before the contents begin to change. A reader of another's slot copies, then checks generation
//     and digests; it never trusts a pointer or size in the header beyond the file's own size.
//   - The room is reserved (fallocate) before any page is touched: never a bus error.
//   - Identity (key, sizes, layout, time) carries its own digest; a slot whose identity does not match it is Damaged.
//   - Images of another uid are never offered.
//   - Nothing is made by Scan or by opening a slot to read.
#ifndef NEVE_SLOT_SLOT_H_
#define NEVE_SLOT_SLOT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "base/os/mapping.h"
#include "base/os/process.h"
#include "format/commit_record.h"
#include "neve/types.h"

namespace neve::slot {

enum class State : uint32_t { kFree = 0, kFilling = 1, kCaptured = 2, kSealed = 3 };

// The RAM folder: NEVE_RAM_DIR, else /dev/shm/neve-<user id>. Made with mode 0700 when `create`; must be a real directory
// (no link) owned by this user with no access for others, else Invalid that says what to do. Missing without create: NotFound;
// where it cannot be made because the folder above it is missing: Unavailable.
absl::StatusOr<std::string> RamFolder(bool create);
std::string ConfiguredRamFolder();   // its path, whether it can be used or not

// What a scan tells of one slot file. Taken without locks; re-checked by whoever acts on it.
struct SlotInfo {
  std::string path;
  Uid uid;
  std::string job;
  uint32_t rank = 0;
  State state = State::kFree;
  os::ProcessId owner;
  bool owner_alive = false;
  uint64_t generation = 0;
  uint64_t file_bytes = 0;
  uint64_t image_capacity = 0;
  ImageKey key;               // valid when captured or sealed
  uint64_t image_bytes = 0;
  int64_t time = 0;
  absl::Status status;        // Damaged when the header or identity does not hold
};
// Slots of one uid, or of every job (`uid` unknown). A missing folder is an empty answer.
absl::StatusOr<std::vector<SlotInfo>> Scan(const std::string& ram_folder, const Uid& uid);

// What a fill writes beside the bytes.
struct FillIdentity {
  ImageKey key;
  uint64_t image_bytes = 0;
  uint64_t header_bytes = 0;
  uint64_t chunk_bytes = kDefaultChunkBytes;
  uint64_t layout_id = 0;
  int64_t time = 0;
};

class Slot {
 public:
  struct CreateOptions {
    std::string ram_folder;
    Uid uid;
    std::string job;
    uint32_t rank = 0;
    uint64_t image_capacity = 0;       // bytes; rounded up to 4096
    uint64_t chunk_bytes = kDefaultChunkBytes;
    int prefault_threads = 2;          // 0: pages are reserved but not touched yet; call Prefault
  };
  // Makes a slot file, reserves its room (Exhausted with numbers wanted and free, file removed), maps it.
  static absl::StatusOr<std::unique_ptr<Slot>> Create(const CreateOptions& options);
  // Takes over the slot of a dead owner; Unavailable when the owner lives or another adopter was first. A fill that the
  // dead owner did not finish never was: the slot is free then.
  static absl::StatusOr<std::unique_ptr<Slot>> Adopt(const std::string& path);
  // A second handle on a slot that this very process owns, for those who know only its path; Unavailable otherwise. The
  // transitions of such a handle take effect only while the slot holds what it held at the open.
  static absl::StatusOr<std::unique_ptr<Slot>> OpenOwn(const std::string& path);
  // Read only. Refuses a header that does not hold (Damaged) and states other than sealed, or captured by a dead owner
  // (Unavailable).
  static absl::StatusOr<std::unique_ptr<Slot>> OpenForReading(const std::string& path);
  virtual ~Slot() = default;   // unmaps; the file stays

  virtual const std::string& path() const = 0;
  virtual State state() const = 0;
  virtual uint64_t generation() const = 0;       // loaded with acquire from shared memory
  virtual uint64_t image_capacity() const = 0;
  virtual std::span<std::byte> image() const = 0;    // whole capacity, page aligned
  virtual std::span<codec::Digest> digests() const = 0;   // as many as the identity's chunks
  // Identity, digests, tags and provenance as a record. Captured without digests yet: the list is empty.
  virtual absl::StatusOr<format::CommitRecord> Record() const = 0;

  // The owner's transitions. Calls out of order, or on a slot opened for reading, are Internal; those without a Status
  // end the process then, because going on would offer wrong bytes. BeginFill is for free slots only; Invalid (tags too
  // long, sizes that do not fit) leaves the slot as it was.
  virtual absl::Status BeginFill(const FillIdentity& identity, const Tags& tags,
                                 const std::map<std::string, std::string>& provenance) = 0;
  virtual void MarkCaptured() = 0;
  virtual void Seal() = 0;               // after digests() was filled
  virtual void Free() = 0;               // contents no longer offered; memory stays
  // Computes digests from the bytes and seals: for captured slots of dead owners, and captures without digests.
  virtual absl::Status DigestAndSeal() = 0;
  virtual absl::Status Prefault(int threads) = 0;
  // Whether the path still leads to this slot, whole: Unavailable says what became of it. A slot that was truncated must not be
  // touched any more, not even to free it. One system call.
  virtual absl::Status CheckFile() const = 0;
  // Unlinks the file if the path still leads to it, and the job's folder when it was its last; the mapping stays until destruction.
  virtual absl::Status Remove() = 0;
  // Gives the ownership up: anyone may adopt the slot from now on. This handle only reads afterwards.
  virtual void Disown() = 0;
};

// ---- Budget (docs/operations.md, "host memory") ----
struct MemoryFacts {
  uint64_t ram_folder_free = 0;        // bytes free in its file system
  uint64_t available = 0;              // MemAvailable
  uint64_t cgroup_limit = 0;           // 0: none; v1 and v2
  uint64_t cgroup_usage = 0;           // page cache that can be dropped not counted
};
absl::StatusOr<MemoryFacts> ReadMemoryFacts(const std::string& ram_folder);
// The least of the folder's free space, 0.8 x available, 0.8 x (limit - usage); `configured` (ram:?bytes=) overrides when
// not 0. `reason` names the binding one, with what to set.
uint64_t Budget(const MemoryFacts& facts, uint64_t configured, std::string* reason);

}  // namespace neve::slot

#endif  // NEVE_SLOT_SLOT_H_
