// The first page of a slot file: what it holds, and how a copy of it is checked.
//
// Invariants
//   - Everything but `owner` and `phase` is covered by a digest that stands beside it.
//   - `geometry` is written before the file gets its name and never changes. `identity` and `seal` carry the generation they
//     belong to, so what an earlier image left behind never passes for the present one.
//   - `phase` holds generation and state in one word: a reader sees both change at once.
//   - While the owner changes, `pid` is 0 (nobody), so a killed adopter leaves a slot that the next one can take.
#ifndef NEVE_SLOT_SLOT_HEADER_H_
#define NEVE_SLOT_SLOT_HEADER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "base/os/process.h"
#include "base/os/syscalls.h"
#include "slot/slot.h"

namespace neve::slot {

inline constexpr uint64_t kHeaderPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = 2u << 20;
inline constexpr uint64_t kNotesBytesMax = 64u << 10;   // tags and provenance of one save, as text
inline constexpr uint64_t kJobBytesMax = 1024;          // name of a job
inline constexpr uint64_t kSlotFileBytesMax = uint64_t{1} << 50;   // keeps sums of sizes far from overflow
inline constexpr uint32_t kSlotVersion = 1;
inline constexpr std::array<char, 8> kSlotMagic = {'n', 'e', 'v', 'e', 's', 'l', 'o', 't'};

struct Geometry {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t rank;
  uint64_t image_offset;
  uint64_t image_capacity;
  uint64_t digest_offset;
  uint64_t digest_capacity;   // entries of 16 bytes
  uint64_t notes_offset;
  uint64_t notes_capacity;
  std::array<uint8_t, 16> uid;
  uint64_t job_bytes;
  std::array<char, kJobBytesMax> job;
};

struct OwnerBlock {
  std::atomic<uint64_t> pid;   // 0: nobody
  std::atomic<uint64_t> start_time;
  std::array<std::atomic<uint64_t>, 2> boot_id;
  std::atomic<uint64_t> check;   // low half of the digest of the fields above
};

struct IdentityBlock {
  uint64_t generation;
  uint64_t sequence;
  uint64_t step;
  uint32_t incarnation;
  uint32_t rank;
  uint32_t world;
  uint32_t reserved;
  uint64_t image_bytes;
  uint64_t header_bytes;
  uint64_t chunk_bytes;
  uint64_t layout_id;
  int64_t time;
  uint64_t notes_bytes;
  codec::Digest notes_digest;

  uint64_t chunk_count() const { return chunk_bytes == 0 ? 0 : (image_bytes + chunk_bytes - 1) / chunk_bytes; }
};

struct SealBlock {
  uint64_t generation;
  codec::Digest table_digest;   // of the digest table's used entries
};

struct SlotHeader {
  Geometry geometry;
  codec::Digest geometry_digest;
  OwnerBlock owner;
  std::atomic<uint64_t> phase;   // generation << 8 | state
  IdentityBlock identity;
  codec::Digest identity_digest;
  SealBlock seal;
  codec::Digest seal_digest;
};

// Other processes, of other builds too, read these bytes.
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::has_unique_object_representations_v<Geometry> && std::is_trivially_copyable_v<Geometry>);
static_assert(std::has_unique_object_representations_v<IdentityBlock> && std::is_trivially_copyable_v<IdentityBlock>);
static_assert(std::has_unique_object_representations_v<SealBlock> && std::is_trivially_copyable_v<SealBlock>);
static_assert(sizeof(Geometry) == 1112 && sizeof(IdentityBlock) == 104 && sizeof(SealBlock) == 24);
static_assert(offsetof(SlotHeader, geometry_digest) == 1112 && offsetof(SlotHeader, owner) == 1128 &&
              offsetof(SlotHeader, phase) == 1168 && offsetof(SlotHeader, identity) == 1176 &&
              offsetof(SlotHeader, identity_digest) == 1280 && offsetof(SlotHeader, seal) == 1296 &&
              offsetof(SlotHeader, seal_digest) == 1320 && sizeof(SlotHeader) <= kHeaderPageBytes);

inline constexpr uint64_t MakePhase(uint64_t generation, State state) {
  return generation << 8 | static_cast<uint64_t>(state);
}
inline constexpr uint64_t GenerationOf(uint64_t phase) { return phase >> 8; }
inline constexpr uint64_t StateBitsOf(uint64_t phase) { return phase & 0xff; }

// A header that holds: digests match and every size fits the file.
struct HeaderFacts {
  Geometry geometry;
  os::ProcessId owner;   // pid 0: nobody
  uint64_t generation = 0;
  State state = State::kFree;
  IdentityBlock identity{};   // valid when captured or sealed
  codec::Digest table_digest;   // valid when sealed
};

template <typename Block>
codec::Digest DigestOfBlock(const Block& block) {
  return codec::DigestOf(std::as_bytes(std::span<const Block>(&block, 1)));
}

// Sizes and offsets for a slot of this capacity (already a multiple of the page).
Geometry MakeGeometry(const Slot::CreateOptions& options, uint64_t image_capacity);
void StoreOwner(OwnerBlock& block, const os::ProcessId& owner);

// Whether an identity makes sense in a slot of this geometry; the reason otherwise.
absl::Status CheckIdentity(const IdentityBlock& identity, const Geometry& geometry);
// Checks a copy of the page. Damaged, or Unsupported for another version; `path` is for the message.
absl::StatusOr<HeaderFacts> ParseHeader(std::span<const std::byte> page, uint64_t file_bytes, const std::string& path);
// Reads and checks the page of an open slot file. A copy torn by a change under way is read again.
absl::StatusOr<HeaderFacts> ReadHeader(const os::File& file, uint64_t file_bytes);

// Opens a slot file without following links or hanging on a fifo. NotFound: no such file. Invalid: not a regular file of
// this user. `file_bytes` receives the size.
absl::StatusOr<os::File> OpenSlotFile(const std::string& path, bool write, uint64_t* file_bytes);

// "r<rank>-<16 hex digits>.slot": what Create makes and Scan looks at. All else in the folder is somebody else's.
std::string MakeSlotName(uint32_t rank);
bool IsSlotName(std::string_view name);
// ".tmp-<pid>-<start time>-<nonce>": a slot being made. False when the name is none of ours.
std::string MakeTemporaryName(const os::ProcessId& owner);
bool ParseTemporaryName(std::string_view name, os::ProcessId* owner);

}  // namespace neve::slot

#endif  // NEVE_SLOT_SLOT_HEADER_H_
