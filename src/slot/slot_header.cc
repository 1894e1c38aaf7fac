#include "slot/slot_header.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/os/random.h"

namespace neve::slot {
namespace {

constexpr int kNonceDigits = 16;
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kSlotSuffix = ".slot";

uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

template <typename T>
T LoadAt(std::span<const std::byte> page, size_t offset) {
  T value;
  std::memcpy(&value, page.data() + offset, sizeof value);
  return value;
}

uint64_t OwnerCheck(uint64_t pid, uint64_t start_time, uint64_t boot_first, uint64_t boot_second) {
  const std::array<uint64_t, 4> fields = {pid, start_time, boot_first, boot_second};
  return DigestOfBlock(fields).low;
}

absl::Status CheckGeometry(const Geometry& geometry, uint64_t file_bytes) {
  if (file_bytes > kSlotFileBytesMax) return Damaged(absl::StrFormat("file of %d bytes is larger than any slot", file_bytes));
  if (geometry.image_offset % kPageBytes != 0 || geometry.image_capacity % kPageBytes != 0) {
    return Damaged("image does not lie on pages");
  }
  if (geometry.image_offset > file_bytes || geometry.image_capacity > file_bytes - geometry.image_offset) {
    return Damaged(absl::StrFormat("file has %d bytes, the header needs %d + %d", file_bytes, geometry.image_offset,
                                   geometry.image_capacity));
  }
  if (geometry.digest_offset != kHeaderPageBytes || geometry.notes_offset < geometry.digest_offset ||
      geometry.notes_offset > geometry.image_offset ||
      geometry.digest_capacity > (geometry.notes_offset - geometry.digest_offset) / sizeof(codec::Digest) ||
      geometry.notes_capacity > geometry.image_offset - geometry.notes_offset) {
    return Damaged("digest table, notes and image overlap");
  }
  if (geometry.job_bytes > kJobBytesMax) return Damaged("job name is longer than its place");
  return absl::OkStatus();
}

bool ParseNumber(std::string_view text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && (text.size() == 1 || text[0] != '0');
}

bool IsNonce(std::string_view text) {
  return text.size() == kNonceDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

Geometry MakeGeometry(const Slot::CreateOptions& options, uint64_t image_capacity) {
  Geometry geometry{};
  geometry.magic = kSlotMagic;
  geometry.version = kSlotVersion;
  geometry.rank = options.rank;
  geometry.image_capacity = image_capacity;
  geometry.digest_offset = kHeaderPageBytes;
  geometry.digest_capacity = (image_capacity + options.chunk_bytes - 1) / options.chunk_bytes;
  geometry.notes_offset = geometry.digest_offset + geometry.digest_capacity * sizeof(codec::Digest);
  geometry.notes_capacity = kNotesBytesMax;
  // Big images begin on a huge page, so that one can map them.
  geometry.image_offset = RoundUp(geometry.notes_offset + geometry.notes_capacity,
                                  image_capacity >= kHugePageBytes ? kHugePageBytes : kPageBytes);
  geometry.uid = options.uid.bytes;
  geometry.job_bytes = options.job.size();
  std::copy(options.job.begin(), options.job.end(), geometry.job.begin());
  return geometry;
}

void StoreOwner(OwnerBlock& block, const os::ProcessId& owner) {
  std::array<uint64_t, 2> boot;
  static_assert(sizeof boot == sizeof owner.boot_id);
  std::memcpy(boot.data(), owner.boot_id.data(), sizeof boot);
  block.pid.store(0, std::memory_order_seq_cst);
  block.start_time.store(owner.start_time, std::memory_order_relaxed);
  block.boot_id[0].store(boot[0], std::memory_order_relaxed);
  block.boot_id[1].store(boot[1], std::memory_order_relaxed);
  const uint64_t pid = static_cast<uint64_t>(owner.pid);
  block.check.store(OwnerCheck(pid, owner.start_time, boot[0], boot[1]), std::memory_order_relaxed);
  block.pid.store(pid, std::memory_order_release);
}

absl::Status CheckIdentity(const IdentityBlock& identity, const Geometry& geometry) {
  if (identity.image_bytes > geometry.image_capacity) {
    return Damaged(absl::StrFormat("image of %d bytes in a slot for %d", identity.image_bytes, geometry.image_capacity));
  }
  if (identity.header_bytes > identity.image_bytes) {
    return Damaged(absl::StrFormat("header of %d bytes in an image of %d", identity.header_bytes, identity.image_bytes));
  }
  if (identity.chunk_bytes < format::kChunkBytesMin || identity.chunk_bytes > format::kChunkBytesMax) {
    return Damaged(absl::StrFormat("chunks of %d bytes; they are %d to %d", identity.chunk_bytes, format::kChunkBytesMin,
                                   format::kChunkBytesMax));
  }
  if (identity.chunk_count() > geometry.digest_capacity) {
    return Damaged(absl::StrFormat("%d chunks in a slot with room for %d digests", identity.chunk_count(),
                                   geometry.digest_capacity));
  }
  if (identity.notes_bytes > geometry.notes_capacity) {
    return Damaged(absl::StrFormat("tags and provenance of %d bytes in a slot with room for %d", identity.notes_bytes,
                                   geometry.notes_capacity));
  }
  if (identity.world == 0 || identity.rank >= identity.world || identity.step >= kStepLimit) {
    return Damaged(absl::StrFormat("rank %d of %d at step %d", identity.rank, identity.world, identity.step));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeaderFacts> ParseHeader(std::span<const std::byte> page, uint64_t file_bytes, const std::string& path) {
  if (page.size() < kHeaderPageBytes) {
    return Damaged(absl::StrFormat("%s: %d bytes are too few for a slot", path, page.size()));
  }
  HeaderFacts facts;
  facts.geometry = LoadAt<Geometry>(page, offsetof(SlotHeader, geometry));
  if (facts.geometry.magic != kSlotMagic) return Damaged(path + ": not a slot (its first bytes are others)");
  if (DigestOfBlock(facts.geometry) != LoadAt<codec::Digest>(page, offsetof(SlotHeader, geometry_digest))) {
    return Damaged(path + ": slot header does not match its digest");
  }
  if (facts.geometry.version != kSlotVersion) {
    return Unsupported(absl::StrFormat("%s: slot of version %d, this build reads %d", path, facts.geometry.version,
                                       kSlotVersion));
  }
  if (absl::Status status = CheckGeometry(facts.geometry, file_bytes); !status.ok()) return Annotate(status, path);

  constexpr size_t kOwner = offsetof(SlotHeader, owner);
  const auto pid = LoadAt<uint64_t>(page, kOwner + offsetof(OwnerBlock, pid));
  const auto start_time = LoadAt<uint64_t>(page, kOwner + offsetof(OwnerBlock, start_time));
  const auto boot_id = LoadAt<std::array<uint64_t, 2>>(page, kOwner + offsetof(OwnerBlock, boot_id));
  if (pid != 0) {
    // A damaged owner must not look like a dead one: its slot would be taken from under a live process.
    if (LoadAt<uint64_t>(page, kOwner + offsetof(OwnerBlock, check)) != OwnerCheck(pid, start_time, boot_id[0], boot_id[1]) ||
        pid > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Damaged(path + ": owner does not match its check");
    }
    facts.owner.pid = static_cast<int64_t>(pid);
    facts.owner.start_time = start_time;
    std::memcpy(facts.owner.boot_id.data(), boot_id.data(), sizeof boot_id);
  }

  const auto phase = LoadAt<uint64_t>(page, offsetof(SlotHeader, phase));
  if (StateBitsOf(phase) > static_cast<uint64_t>(State::kSealed)) {
    return Damaged(absl::StrFormat("%s: unknown state %d", path, StateBitsOf(phase)));
  }
  facts.generation = GenerationOf(phase);
  facts.state = static_cast<State>(StateBitsOf(phase));
  if (facts.state != State::kCaptured && facts.state != State::kSealed) return facts;

  facts.identity = LoadAt<IdentityBlock>(page, offsetof(SlotHeader, identity));
  if (DigestOfBlock(facts.identity) != LoadAt<codec::Digest>(page, offsetof(SlotHeader, identity_digest)) ||
      facts.identity.generation != facts.generation) {
    return Damaged(path + ": identity of the image does not match its digest");
  }
  if (absl::Status status = CheckIdentity(facts.identity, facts.geometry); !status.ok()) return Annotate(status, path);
  if (facts.state != State::kSealed) return facts;

  const auto seal = LoadAt<SealBlock>(page, offsetof(SlotHeader, seal));
  if (DigestOfBlock(seal) != LoadAt<codec::Digest>(page, offsetof(SlotHeader, seal_digest)) ||
      seal.generation != facts.generation) {
    return Damaged(path + ": seal does not match its digest");
  }
  facts.table_digest = seal.table_digest;
  return facts;
}

absl::StatusOr<HeaderFacts> ReadHeader(const os::File& file, uint64_t file_bytes) {
  if (file_bytes < kHeaderPageBytes) {
    return Damaged(absl::StrFormat("%s: %d bytes are too few for a slot", file.path, file_bytes));
  }
  constexpr int kAttempts = 4;   // a change takes microseconds; two in a row while we read twice is already unlikely
  alignas(64) std::array<std::byte, kHeaderPageBytes> page;
  absl::StatusOr<HeaderFacts> facts = Internal("not read");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    NEVE_RETURN_IF_ERROR(os::ReadAt(file, 0, page));
    facts = ParseHeader(page, file_bytes, file.path);
    if (facts.ok() || !IsDamaged(facts.status())) return facts;
  }
  return facts;
}

absl::StatusOr<os::File> OpenSlotFile(const std::string& path, bool write, uint64_t* file_bytes) {
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, (write ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file));
  if (!S_ISREG(facts.st_mode)) return Invalid(path + ": not a regular file");
  if (facts.st_uid != ::geteuid()) {
    return Invalid(absl::StrFormat("%s: belongs to user %d, not to %d", path, facts.st_uid, ::geteuid()));
  }
  if (facts.st_nlink == 0) return NotFound(path + ": was removed");
  *file_bytes = static_cast<uint64_t>(facts.st_size);
  return file;
}

std::string MakeSlotName(uint32_t rank) {
  return absl::StrFormat("r%d-%s%s", rank, os::RandomHex(kNonceDigits), std::string(kSlotSuffix));
}

bool IsSlotName(std::string_view name) {
  if (!name.starts_with('r') || !name.ends_with(kSlotSuffix)) return false;
  name = name.substr(1, name.size() - 1 - kSlotSuffix.size());
  const size_t dash = name.find('-');
  uint64_t rank = 0;
  return dash != std::string_view::npos && ParseNumber(name.substr(0, dash), &rank) && IsNonce(name.substr(dash + 1));
}

std::string MakeTemporaryName(const os::ProcessId& owner) {
  return absl::StrFormat("%s%d-%d-%s", std::string(kTemporaryPrefix), owner.pid, owner.start_time,
                         os::RandomHex(kNonceDigits));
}

bool ParseTemporaryName(std::string_view name, os::ProcessId* owner) {
  if (!name.starts_with(kTemporaryPrefix)) return false;
  name.remove_prefix(kTemporaryPrefix.size());
  const size_t first = name.find('-');
  if (first == std::string_view::npos) return false;
  const size_t second = name.find('-', first + 1);
  uint64_t pid = 0, start_time = 0;
  if (second == std::string_view::npos || !ParseNumber(name.substr(0, first), &pid) ||
      !ParseNumber(name.substr(first + 1, second - first - 1), &start_time) || !IsNonce(name.substr(second + 1))) {
    return false;
  }
  owner->pid = static_cast<int64_t>(pid);
  owner->start_time = start_time;
  return true;
}

}  // namespace neve::slot
