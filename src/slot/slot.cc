#include "slot/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/check.h"
#include "base/sync/crew.h"
#include "slot/folder.h"
#include "slot/notes.h"
#include "slot/slot_header.h"

namespace neve::slot {
namespace {

constexpr uint64_t kCrewBytes = 64u << 20;   // images from this size on are digested by several threads

class MappedSlot final : public Slot {
 public:
  MappedSlot(std::string path, const os::File& file, os::Mapping mapping, const Geometry& geometry, uint64_t generation,
             uint64_t chunk_count, bool writable)
      : path_(std::move(path)), mapping_(std::move(mapping)), geometry_(geometry), generation_(generation),
        chunk_count_(chunk_count), writable_(writable) {
    struct ::stat facts {};
    if (::fstat(file.fd.get(), &facts) != 0) return;   // then no file is this one
    device_ = facts.st_dev;
    inode_ = facts.st_ino;
  }

  const std::string& path() const override { return path_; }
  State state() const override { return static_cast<State>(StateBitsOf(Phase())); }
  uint64_t generation() const override { return GenerationOf(Phase()); }
  uint64_t image_capacity() const override { return geometry_.image_capacity; }
  std::span<std::byte> image() const override {
    return mapping_.bytes().subspan(geometry_.image_offset, geometry_.image_capacity);
  }
  std::span<codec::Digest> digests() const override {
    return {reinterpret_cast<codec::Digest*>(mapping_.bytes().data() + geometry_.digest_offset), chunk_count_};
  }
  absl::StatusOr<format::CommitRecord> Record() const override;

  absl::Status BeginFill(const FillIdentity& identity, const Tags& tags,
                         const std::map<std::string, std::string>& provenance) override;
  void MarkCaptured() override;
  void Seal() override;
  void Free() override;
  absl::Status DigestAndSeal() override;
  absl::Status Prefault(int threads) override { return mapping_.Prefault(threads); }
  absl::Status CheckFile() const override;
  absl::Status Remove() override;
  void Disown() override;

 private:
  friend class neve::slot::Slot;
  SlotHeader& header() const { return *reinterpret_cast<SlotHeader*>(mapping_.bytes().data()); }
  uint64_t Phase() const { return header().phase.load(std::memory_order_acquire); }
  void SetState(State state) { header().phase.store(MakePhase(generation_, state), std::memory_order_release); }

  const std::string path_;
  ::dev_t device_ = 0;
  ::ino_t inode_ = 0;
  os::Mapping mapping_;
  const Geometry geometry_;   // checked when opened; the one in shared memory is never trusted again
  uint64_t generation_;       // of the contents that this handle speaks of
  uint64_t chunk_count_;
  bool writable_;
};

absl::StatusOr<format::CommitRecord> MappedSlot::Record() const {
  const uint64_t phase = Phase();
  const State state = static_cast<State>(StateBitsOf(phase));
  if (state != State::kCaptured && state != State::kSealed) return Unavailable(path_ + ": holds no image");
  if (GenerationOf(phase) != generation_) return Unavailable(path_ + ": was filled anew since it was opened");

  std::array<std::byte, sizeof(SlotHeader)> copy;
  std::memcpy(copy.data(), mapping_.bytes().data(), copy.size());
  IdentityBlock identity;
  codec::Digest identity_digest;
  std::memcpy(&identity, copy.data() + offsetof(SlotHeader, identity), sizeof identity);
  std::memcpy(&identity_digest, copy.data() + offsetof(SlotHeader, identity_digest), sizeof identity_digest);
  std::string text;
  std::vector<codec::Digest> table;
  absl::Status status;
  if (DigestOfBlock(identity) != identity_digest || identity.generation != generation_) {
    status = Damaged("identity of the image does not match its digest");
  } else {
    status = CheckIdentity(identity, geometry_);
  }
  if (status.ok()) {
    text.assign(reinterpret_cast<const char*>(mapping_.bytes().data() + geometry_.notes_offset), identity.notes_bytes);
    if (codec::DigestOf(std::as_bytes(std::span(text))) != identity.notes_digest) {
      status = Damaged("tags and provenance do not match their digest");
    }
  }
  if (status.ok() && state == State::kSealed) {
    SealBlock seal;
    codec::Digest seal_digest;
    std::memcpy(&seal, copy.data() + offsetof(SlotHeader, seal), sizeof seal);
    std::memcpy(&seal_digest, copy.data() + offsetof(SlotHeader, seal_digest), sizeof seal_digest);
    table.resize(identity.chunk_count());
    std::memcpy(table.data(), mapping_.bytes().data() + geometry_.digest_offset, table.size() * sizeof(codec::Digest));
    if (DigestOfBlock(seal) != seal_digest || seal.generation != generation_ ||
        codec::DigestOf(std::as_bytes(std::span(table))) != seal.table_digest) {
      status = Damaged("digests of the chunks do not match their seal");
    }
  }
  // Only now is it known whether all of the above belongs to one image.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (header().phase.load(std::memory_order_relaxed) != phase) return Unavailable(path_ + ": changed while it was read");
  if (!status.ok()) return Annotate(status, path_);
  absl::StatusOr<Notes> notes = DecodeNotes(text);
  if (!notes.ok()) return Annotate(notes.status(), path_);

  format::CommitRecord record;
  record.job.assign(geometry_.job.data(), geometry_.job_bytes);
  record.uid.bytes = geometry_.uid;
  record.key = {{identity.incarnation, identity.sequence}, identity.step, identity.rank, identity.world};
  record.time = identity.time;
  record.tags = std::move(notes->tags);
  record.layout_id = identity.layout_id;
  record.image_bytes = identity.image_bytes;
  record.header_bytes = identity.header_bytes;
  record.chunk_bytes = identity.chunk_bytes;
  record.digests = std::move(table);
  record.provenance = std::move(notes->provenance);
  return record;
}

absl::Status MappedSlot::BeginFill(const FillIdentity& identity, const Tags& tags,
                                   const std::map<std::string, std::string>& provenance) {
  if (!writable_) return Internal(path_ + ": a fill of a slot opened for reading");
  if (Phase() != MakePhase(generation_, State::kFree)) return Internal(path_ + ": a fill of a slot that is not free");
  NEVE_ASSIGN_OR_RETURN(const std::string text, EncodeNotes(tags, provenance));
  IdentityBlock block{};
  block.generation = generation_ + 1;
  block.sequence = identity.key.save.sequence;
  block.step = identity.key.step;
  block.incarnation = identity.key.save.incarnation;
  block.rank = identity.key.rank;
  block.world = identity.key.world;
  block.image_bytes = identity.image_bytes;
  block.header_bytes = identity.header_bytes;
  block.chunk_bytes = identity.chunk_bytes;
  block.layout_id = identity.layout_id;
  block.time = identity.time;
  block.notes_bytes = text.size();
  block.notes_digest = codec::DigestOf(std::as_bytes(std::span(text)));
  if (absl::Status status = CheckIdentity(block, geometry_); !status.ok()) {
    return Invalid(path_ + ": cannot hold this image: " + std::string(status.message()));
  }
  // An exchange, not a store: what follows, streaming stores too, must not be seen before the generation is.
  ++generation_;
  header().phase.exchange(MakePhase(generation_, State::kFilling), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(mapping_.bytes().data() + geometry_.notes_offset, text.data(), text.size());
  header().identity = block;
  header().identity_digest = DigestOfBlock(block);
  chunk_count_ = block.chunk_count();
  return absl::OkStatus();
}

void MappedSlot::MarkCaptured() {
  NEVE_CHECK(writable_ && Phase() == MakePhase(generation_, State::kFilling));
  SetState(State::kCaptured);
}

void MappedSlot::Seal() {
  NEVE_CHECK(writable_ && Phase() == MakePhase(generation_, State::kCaptured));
  SealBlock seal{};
  seal.generation = generation_;
  seal.table_digest = codec::DigestOf(std::as_bytes(digests()));
  header().seal = seal;
  header().seal_digest = DigestOfBlock(seal);
  SetState(State::kSealed);
}

void MappedSlot::Free() {
  NEVE_CHECK(writable_);
  uint64_t phase = Phase();
  while (GenerationOf(phase) == generation_ && StateBitsOf(phase) != static_cast<uint64_t>(State::kFree)) {
    if (header().phase.compare_exchange_weak(phase, MakePhase(generation_, State::kFree), std::memory_order_acq_rel)) break;
  }
}

absl::Status MappedSlot::DigestAndSeal() {
  if (!writable_) return Internal(path_ + ": a seal of a slot opened for reading");
  const uint64_t phase = Phase();
  if (phase == MakePhase(generation_, State::kSealed)) return absl::OkStatus();
  if (phase != MakePhase(generation_, State::kCaptured)) return Internal(path_ + ": a seal of a slot that holds no capture");
  NEVE_ASSIGN_OR_RETURN(const format::CommitRecord record, Record());
  chunk_count_ = record.chunk_count();
  const std::span<codec::Digest> table = digests();
  auto digest = [&](uint64_t chunk, int) {
    table[chunk] = codec::DigestOf(image().subspan(chunk * record.chunk_bytes, record.ChunkBytesAt(chunk)));
  };
  if (record.image_bytes < kCrewBytes) {
    for (uint64_t chunk = 0; chunk < chunk_count_; ++chunk) digest(chunk, 0);
  } else {
    sync::Crew::Create(sync::UsableCores() - 1, /*background=*/true)->Run(chunk_count_, digest);
  }
  Seal();
  return absl::OkStatus();
}

absl::Status MappedSlot::CheckFile() const {
  struct ::stat named {};
  if (::lstat(path_.c_str(), &named) != 0) return ErrnoStatus(errno, path_);
  if (named.st_dev != device_ || named.st_ino != inode_) return Unavailable(path_ + ": another file has its name", ESTALE);
  if (static_cast<uint64_t>(named.st_size) < mapping_.bytes().size()) {
    return Unavailable(absl::StrFormat("%s: was cut to %d of its %d bytes", path_, named.st_size, mapping_.bytes().size()), ESTALE);
  }
  return absl::OkStatus();
}

absl::Status MappedSlot::Remove() {
  if (!writable_) return Internal(path_ + ": removal of a slot opened for reading");
  struct ::stat named {};
  const bool there = ::lstat(path_.c_str(), &named) == 0;
  if (there ? named.st_dev != device_ || named.st_ino != inode_ : errno == ENOENT) return absl::OkStatus();
  NEVE_RETURN_IF_ERROR(os::Unlink(path_));
  os::Rmdir(os::DirName(path_)).IgnoreError();   // the job's folder goes with its last slot
  return absl::OkStatus();
}

void MappedSlot::Disown() {
  NEVE_CHECK(writable_);
  writable_ = false;
  header().owner.pid.store(0, std::memory_order_release);
}

uint64_t FreeBytesBeside(const std::string& folder) {
  struct ::statvfs facts {};
  if (::statvfs(folder.c_str(), &facts) != 0) return 0;
  return static_cast<uint64_t>(facts.f_bavail) * facts.f_frsize;
}

// Removes what processes that died in Create left. A failure here fails nothing: the next Create tries again.
void RemoveDeadTemporaries(const std::string& folder) {
  absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder);
  if (!entries.ok()) return;
  os::ProcessId owner = os::CurrentProcess();  // the boot id is this one's: temporary names of another boot are dead too
  for (const os::DirectoryEntry& entry : *entries) {
    if (entry.is_directory || !ParseTemporaryName(entry.name, &owner) || os::IsAlive(owner)) continue;
    os::Unlink(os::JoinPath(folder, entry.name)).IgnoreError();
  }
}

absl::Status CheckOptions(const Slot::CreateOptions& options) {
  if (!options.uid.known()) return Invalid("a slot needs the uid of its job");
  if (options.job.size() > kJobBytesMax) {
    return Invalid(absl::StrFormat("job name of %d bytes; the limit is %d", options.job.size(), kJobBytesMax));
  }
  if (options.image_capacity == 0 || options.image_capacity > kSlotFileBytesMax / 2) {
    return Invalid(absl::StrFormat("a slot for images of %d bytes; 1 to %d are possible", options.image_capacity,
                                   kSlotFileBytesMax / 2));
  }
  if (options.chunk_bytes < format::kChunkBytesMin || options.chunk_bytes > format::kChunkBytesMax) {
    return Invalid(absl::StrFormat("chunks of %d bytes; they are %d to %d", options.chunk_bytes, format::kChunkBytesMin,
                                   format::kChunkBytesMax));
  }
  return absl::OkStatus();
}

// The lock lasts for one exchange of ownership. It is given back by an explicit call, because a child forked meanwhile
// shares it and closing our descriptor alone would leave it held.
class ExchangeLock {
 public:
  explicit ExchangeLock(int fd) : fd_(fd) {
    int result;
    do {
      result = ::flock(fd, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    error_ = result == 0 ? 0 : errno;
  }
  ~ExchangeLock() {
    if (error_ == 0) ::flock(fd_, LOCK_UN);
  }
  ExchangeLock(const ExchangeLock&) = delete;
  int error() const { return error_; }

 private:
  int fd_;
  int error_;
};

std::string OwnerText(const os::ProcessId& owner) { return absl::StrFormat("process %d", owner.pid); }

}  // namespace

absl::StatusOr<std::unique_ptr<Slot>> Slot::Create(const CreateOptions& options) {
  NEVE_RETURN_IF_ERROR(CheckOptions(options));
  const std::string folder = os::JoinPath(options.ram_folder, options.uid.ToHex());
  NEVE_RETURN_IF_ERROR(PrivateFolder(options.ram_folder, /*create=*/true));

  const os::ProcessId owner = os::CurrentProcess();
  const Geometry geometry = MakeGeometry(options, (options.image_capacity + kPageBytes - 1) / kPageBytes * kPageBytes);
  const uint64_t file_bytes = geometry.image_offset + geometry.image_capacity;
  // The file gets its name when it is whole, so nobody ever sees a slot without a header or without its room.
  const std::string temporary = os::JoinPath(folder, MakeTemporaryName(owner));
  const std::string path = os::JoinPath(folder, MakeSlotName(options.rank));
  absl::StatusOr<os::File> opened = NotFound(folder);
  for (int attempt = 0; attempt < 1000; ++attempt) {   // another process may remove the folder with its last slot in between
    const absl::Status ready = PrivateFolder(folder, /*create=*/true);
    if (absl::IsNotFound(ready)) continue;
    NEVE_RETURN_IF_ERROR(ready);
    RemoveDeadTemporaries(folder);
    opened = os::Open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (!absl::IsNotFound(opened.status())) break;
  }
  NEVE_RETURN_IF_ERROR(opened.status());
  const os::File file = *std::move(opened);
  auto make = [&]() -> absl::StatusOr<std::unique_ptr<Slot>> {
    NEVE_RETURN_IF_ERROR(SetMode(file, 0600));
    const uint64_t free_bytes = FreeBytesBeside(folder);
    if (absl::Status status = os::Fallocate(file, file_bytes); !status.ok()) {
      if (!absl::IsResourceExhausted(status)) return status;
      return Exhausted(absl::StrFormat("no room for a slot: %d bytes wanted, %d bytes free in %s; set NEVE_RAM_DIR to a "
                                       "folder with more room, or make /dev/shm larger (containers: --shm-size) (%s)",
                                       file_bytes, free_bytes, options.ram_folder, std::string(status.message())),
                       ErrnoOf(status));
    }
    NEVE_ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Map(file, file_bytes, /*write=*/true));
    mapping.AdviseHugePages();
    auto slot = std::make_unique<MappedSlot>(path, file, std::move(mapping), geometry, 0, 0, /*writable=*/true);
    SlotHeader& header = slot->header();
    header.geometry = geometry;
    header.geometry_digest = DigestOfBlock(geometry);
    StoreOwner(header.owner, owner);
    slot->SetState(State::kFree);
    if (options.prefault_threads > 0) NEVE_RETURN_IF_ERROR(slot->Prefault(options.prefault_threads));
    NEVE_RETURN_IF_ERROR(os::RenameNoReplace(temporary, path));
    return slot;
  };
  absl::StatusOr<std::unique_ptr<Slot>> slot = make();
  if (!slot.ok()) os::Unlink(temporary).IgnoreError();   // the first error is the one to tell
  return slot;
}

absl::StatusOr<std::unique_ptr<Slot>> Slot::Adopt(const std::string& path) {
  uint64_t file_bytes = 0;
  NEVE_ASSIGN_OR_RETURN(const os::File file, OpenSlotFile(path, /*write=*/true, &file_bytes));
  const ExchangeLock lock(file.fd.get());
  if (lock.error() == EWOULDBLOCK) return Unavailable(path + ": another process is taking this slot over", EWOULDBLOCK);
  if (lock.error() != 0) return ErrnoStatus(lock.error(), path + ": flock");
  // The adopter before us may have removed the file while we waited to open or lock it.
  NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file));
  if (facts.st_nlink == 0) return NotFound(path + ": was removed");
  NEVE_ASSIGN_OR_RETURN(const HeaderFacts header, ReadHeader(file, file_bytes));
  if (header.owner.pid != 0 && os::IsAlive(header.owner)) {
    return Unavailable(path + ": its owner, " + OwnerText(header.owner) + ", is alive");
  }
  const bool holds_image = header.state == State::kCaptured || header.state == State::kSealed;
  NEVE_ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Map(file, file_bytes, /*write=*/true));
  auto slot = std::make_unique<MappedSlot>(path, file, std::move(mapping), header.geometry, header.generation,
                                           holds_image ? header.identity.chunk_count() : 0, /*writable=*/true);
  if (!holds_image) slot->SetState(State::kFree);
  StoreOwner(slot->header().owner, os::CurrentProcess());
  return slot;
}

absl::StatusOr<std::unique_ptr<Slot>> Slot::OpenOwn(const std::string& path) {
  uint64_t file_bytes = 0;
  NEVE_ASSIGN_OR_RETURN(const os::File file, OpenSlotFile(path, /*write=*/true, &file_bytes));
  NEVE_ASSIGN_OR_RETURN(const HeaderFacts header, ReadHeader(file, file_bytes));
  if (header.owner != os::CurrentProcess()) return Unavailable(path + ": belongs to " + OwnerText(header.owner));
  NEVE_ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Map(file, file_bytes, /*write=*/true));
  const bool holds_image = header.state == State::kCaptured || header.state == State::kSealed;
  return std::make_unique<MappedSlot>(path, file, std::move(mapping), header.geometry, header.generation,
                                      holds_image ? header.identity.chunk_count() : 0, /*writable=*/true);
}

absl::StatusOr<std::unique_ptr<Slot>> Slot::OpenForReading(const std::string& path) {
  uint64_t file_bytes = 0;
  NEVE_ASSIGN_OR_RETURN(const os::File file, OpenSlotFile(path, /*write=*/false, &file_bytes));
  NEVE_ASSIGN_OR_RETURN(const HeaderFacts header, ReadHeader(file, file_bytes));
  const bool orphan = header.owner.pid == 0 || !os::IsAlive(header.owner);
  if (header.state != State::kSealed && !(header.state == State::kCaptured && orphan)) {
    return Unavailable(path + ": holds no finished image");
  }
  NEVE_ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Map(file, file_bytes, /*write=*/false));
  return std::make_unique<MappedSlot>(path, file, std::move(mapping), header.geometry, header.generation,
                                      header.identity.chunk_count(), /*writable=*/false);
}

}  // namespace neve::slot
