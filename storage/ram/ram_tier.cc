#include "storage/ram/ram_tier.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "base/os/process.h"
#include "base/sync/mutex.h"
#include "slot/slot.h"

namespace neve::storage {
namespace {

using slot::Slot;
using slot::SlotInfo;
using slot::State;

std::string KeyText(const ImageKey& key) {
  return absl::StrFormat("step %d (%s) rank %d of %d in RAM", key.step, key.save.ToString(), key.rank, key.world);
}

// Whether the slot holds an image that may be offered: sealed, or captured by a process that is gone.
bool Offers(const SlotInfo& info) {
  return info.status.ok() && (info.state == State::kSealed || (info.state == State::kCaptured && !info.owner_alive));
}
// Also counts the image that another process is about to seal: whoever wants it may try again.
bool HoldsImage(const SlotInfo& info) {
  return info.status.ok() && (info.state == State::kSealed || info.state == State::kCaptured);
}

// [offset, offset + bytes) lies in an image of `image_bytes`, without overflow.
bool Within(uint64_t offset, uint64_t bytes, uint64_t image_bytes) {
  return offset <= image_bytes && bytes <= image_bytes - offset;
}

// Slots that became images through BeginImage of this tier: Retire gives their room back. A writer may outlive its tier,
// so both share it.
class MadeSlots {
 public:
  void Add(const std::string& path) {
    sync::MutexLock lock(mutex_);
    paths_.insert(path);
  }
  bool Take(const std::string& path) {
    sync::MutexLock lock(mutex_);
    return paths_.erase(path) != 0;
  }

 private:
  sync::Mutex mutex_;
  std::set<std::string> paths_ NEVE_GUARDED_BY(mutex_);
};

class RamReader final : public ImageReader {
 public:
  RamReader(std::unique_ptr<Slot> slot, format::CommitRecord record)
      : slot_(std::move(slot)), record_(std::move(record)), generation_(slot_->generation()) {}

  const format::CommitRecord& record() const override { return record_; }

  void Read(uint64_t offset, std::span<std::byte> target, Done done) override {
    if (!Within(offset, target.size(), record_.image_bytes)) {
      return done(Damaged(absl::StrFormat("%s: %d bytes at %d wanted, the image has %d", slot_->path(), target.size(), offset,
                                          record_.image_bytes)));
    }
    if (!target.empty()) std::memcpy(target.data(), slot_->image().data() + offset, target.size());
    // The owner raises the generation before it changes a byte, so an unchanged one vouches for the copy.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!SameContents()) return done(Unavailable(slot_->path() + ": its owner filled it anew while it was read"));
    done(absl::OkStatus());
  }

  std::span<const std::byte> Mapped() const override { return slot_->image().first(record_.image_bytes); }
  bool SameContents() const { return slot_->generation() == generation_; }

 private:
  const std::unique_ptr<Slot> slot_;
  const format::CommitRecord record_;
  const uint64_t generation_;
};

class RamTier final : public Tier {
 public:
  explicit RamTier(const RamTierOptions& options) : options_(options) {
    info_.kind = TierKind::kRam;
    info_.place = "ram:";
  }

  const TierInfo& info() const override { return info_; }
  void List(DoneWith<Listing> done) override { done(ListNow()); }
  void OpenImage(const ImageKey& key, DoneWith<std::shared_ptr<ImageReader>> done) override { done(OpenNow(key)); }
  void BeginImage(const ImageKey& key, uint64_t image_bytes, DoneWith<std::shared_ptr<ImageWriter>> done) override {
    done(BeginNow(key, image_bytes));
  }
  void Heal(const ImageKey& key, uint64_t offset, std::span<const std::byte> source, Done done) override {
    done(HealNow(key, offset, source));
  }
  void Retire(const ImageKey& key, Done done) override { done(RetireNow(key)); }
  void SetPinned(const ImageKey&, bool, Done done) override { done(Unsupported("pins do not live in RAM")); }
  void ReadNote(const std::string&, DoneWith<std::string> done) override { done(NoNotes()); }
  void WriteNote(const std::string&, const std::string&, bool, Done done) override { done(NoNotes()); }
  void RemoveNote(const std::string&, Done done) override { done(NoNotes()); }

 private:
  static absl::Status NoNotes() { return Unsupported("notes do not live in RAM"); }

  absl::StatusOr<std::vector<SlotInfo>> ScanNow() const;
  absl::StatusOr<std::vector<SlotInfo>> Find(const ImageKey& key) const;
  absl::StatusOr<Listing> ListNow() const;
  absl::StatusOr<std::shared_ptr<ImageReader>> OpenNow(const ImageKey& key) const;
  absl::StatusOr<std::shared_ptr<ImageReader>> OpenSlot(const SlotInfo& info, const ImageKey& key) const;
  absl::StatusOr<std::shared_ptr<ImageWriter>> BeginNow(const ImageKey& key, uint64_t image_bytes);
  absl::Status HealNow(const ImageKey& key, uint64_t offset, std::span<const std::byte> source) const;
  absl::Status RetireNow(const ImageKey& key);

  const RamTierOptions options_;
  TierInfo info_;
  const std::shared_ptr<MadeSlots> made_ = std::make_shared<MadeSlots>();
};

class RamWriter final : public ImageWriter {
 public:
  RamWriter(std::shared_ptr<MadeSlots> made, Uid uid, std::unique_ptr<Slot> slot, const ImageKey& key, uint64_t image_bytes)
      : made_(std::move(made)), uid_(uid), slot_(std::move(slot)), key_(key), image_bytes_(image_bytes) {}
  ~RamWriter() override {
    if (committed_) return;
    if (absl::Status status = slot_->Remove(); !status.ok()) {
      obs::Log(obs::Level::kWarning, "event=ram_abort_failed error=\"" + std::string(status.message()) + "\"");
    }
  }

  void Write(uint64_t offset, std::span<const std::byte> source, Done done) override {
    if (!Within(offset, source.size(), image_bytes_)) {
      return done(Invalid(absl::StrFormat("%s: a write of %d bytes at %d into an image of %d", slot_->path(), source.size(),
                                          offset, image_bytes_)));
    }
    // The slot is new and free: nobody reads it before Commit.
    if (!source.empty()) std::memcpy(slot_->image().data() + offset, source.data(), source.size());
    done(absl::OkStatus());
  }

  void Commit(const format::CommitRecord& record, Done done) override { done(CommitNow(record)); }

 private:
  absl::Status CommitNow(const format::CommitRecord& record) {
    if (committed_) return Invalid(KeyText(key_) + ": committed twice");
    if (record.key != key_ || record.uid != uid_ || record.image_bytes != image_bytes_ ||
        record.digests.size() != record.chunk_count()) {
      return Invalid(KeyText(key_) + ": the record is of another image");
    }
    slot::FillIdentity identity;
    identity.key = record.key;
    identity.image_bytes = record.image_bytes;
    identity.header_bytes = record.header_bytes;
    identity.chunk_bytes = record.chunk_bytes;
    identity.layout_id = record.layout_id;
    identity.time = record.time;
    NEVE_RETURN_IF_ERROR(slot_->BeginFill(identity, record.tags, record.provenance));
    std::copy(record.digests.begin(), record.digests.end(), slot_->digests().begin());
    slot_->MarkCaptured();
    slot_->Seal();
    committed_ = true;
    made_->Add(slot_->path());
    return absl::OkStatus();
  }

  const std::shared_ptr<MadeSlots> made_;
  const Uid uid_;
  const std::unique_ptr<Slot> slot_;
  const ImageKey key_;
  const uint64_t image_bytes_;
  bool committed_ = false;
};

absl::StatusOr<std::vector<SlotInfo>> RamTier::ScanNow() const {
  // A job whose uid is not known yet has no slots; an empty uid would mean every job's.
  if (!options_.uid.known()) return std::vector<SlotInfo>();
  return slot::Scan(options_.ram_folder, options_.uid);
}

// Slots that offer the image.
absl::StatusOr<std::vector<SlotInfo>> RamTier::Find(const ImageKey& key) const {
  NEVE_ASSIGN_OR_RETURN(std::vector<SlotInfo> slots, ScanNow());
  std::erase_if(slots, [&](const SlotInfo& info) { return !Offers(info) || info.key != key; });
  return slots;
}

absl::StatusOr<Listing> RamTier::ListNow() const {
  NEVE_ASSIGN_OR_RETURN(const std::vector<SlotInfo> slots, ScanNow());
  Listing listing;
  listing.exists = !slots.empty();
  for (const SlotInfo& info : slots) {
    if (!info.status.ok()) {
      obs::Log(obs::Level::kWarning, "event=slot_damaged error=\"" + std::string(info.status.message()) + "\"");
      continue;
    }
    if (!Offers(info)) continue;
    listing.incarnation_max = std::max(listing.incarnation_max, info.key.save.incarnation);
    ImageEntry entry;
    entry.key = info.key;
    entry.has_record = entry.has_image = true;
    entry.image_bytes = info.image_bytes;
    entry.stored_bytes = info.file_bytes;
    entry.path = info.path;
    listing.images.push_back(std::move(entry));
  }
  return listing;
}

absl::StatusOr<std::shared_ptr<ImageReader>> RamTier::OpenSlot(const SlotInfo& info, const ImageKey& key) const {
  if (info.state == State::kCaptured) {
    NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<Slot> orphan, Slot::Adopt(info.path));
    const absl::Status sealed = orphan->DigestAndSeal();
    orphan->Disown();   // sealing is all that was needed; whoever drains the slot adopts it for good
    NEVE_RETURN_IF_ERROR(sealed);
  }
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Slot> slot, Slot::OpenForReading(info.path));
  NEVE_ASSIGN_OR_RETURN(format::CommitRecord record, slot->Record());
  if (record.key != key || record.uid != options_.uid || record.digests.size() != record.chunk_count()) {
    return Unavailable(info.path + ": its owner filled it anew");
  }
  auto reader = std::make_shared<RamReader>(std::move(slot), std::move(record));
  if (!reader->SameContents()) return Unavailable(info.path + ": its owner filled it anew");
  return reader;
}

absl::StatusOr<std::shared_ptr<ImageReader>> RamTier::OpenNow(const ImageKey& key) const {
  constexpr int kAttempts = 3;   // a slot may be sealed, freed or refilled by its owner between the scan and the open
  absl::Status last;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    NEVE_ASSIGN_OR_RETURN(std::vector<SlotInfo> slots, ScanNow());
    std::erase_if(slots, [&](const SlotInfo& info) { return info.key != key || !HoldsImage(info); });
    if (slots.empty()) return NotFound(KeyText(key) + ": no slot on this host holds it");
    std::stable_partition(slots.begin(), slots.end(), [](const SlotInfo& info) { return info.state == State::kSealed; });
    for (const SlotInfo& info : slots) {
      absl::StatusOr<std::shared_ptr<ImageReader>> reader = OpenSlot(info, key);
      if (reader.ok()) return reader;
      last = reader.status();
    }
    if (!absl::IsUnavailable(last) && !absl::IsNotFound(last)) return last;
  }
  return Unavailable(std::string(last.message()));
}

absl::StatusOr<std::shared_ptr<ImageWriter>> RamTier::BeginNow(const ImageKey& key, uint64_t image_bytes) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<SlotInfo> slots, Find(key));
  if (!slots.empty()) return Invalid(KeyText(key) + ": is there already; nothing is ever replaced");
  Slot::CreateOptions create;
  create.ram_folder = options_.ram_folder;
  create.uid = options_.uid;
  create.job = options_.job;
  create.rank = key.rank;
  create.image_capacity = image_bytes;
  create.chunk_bytes = format::kChunkBytesMin;   // the record, and with it the size of chunks, comes only at the commit
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Slot> slot, Slot::Create(create));
  return std::make_shared<RamWriter>(made_, options_.uid, std::move(slot), key, image_bytes);
}

absl::Status RamTier::HealNow(const ImageKey& key, uint64_t offset, std::span<const std::byte> source) const {
  NEVE_ASSIGN_OR_RETURN(const std::vector<SlotInfo> slots, Find(key));
  if (slots.empty()) return NotFound(KeyText(key) + ": no slot on this host holds it");
  absl::Status result;
  for (const SlotInfo& info : slots) {
    const bool own = info.owner == os::CurrentProcess();
    absl::StatusOr<std::unique_ptr<Slot>> slot = own ? Slot::OpenOwn(info.path) : Slot::Adopt(info.path);
    absl::Status status = slot.status();
    if (status.ok()) {
      if ((*slot)->generation() != info.generation) {
        status = Unavailable(info.path + ": was filled anew");
      } else if (!Within(offset, source.size(), info.image_bytes)) {
        status = Invalid(absl::StrFormat("%s: %d bytes at %d do not lie in the image of %d", info.path, source.size(), offset,
                                         info.image_bytes));
      } else if (!source.empty()) {
        std::memcpy((*slot)->image().data() + offset, source.data(), source.size());
      }
      if (!own) (*slot)->Disown();
    }
    if (result.ok()) result = status;
  }
  return result;
}

absl::Status RamTier::RetireNow(const ImageKey& key) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<SlotInfo> slots, Find(key));
  absl::Status result;
  for (const SlotInfo& info : slots) {
    const bool own = info.owner == os::CurrentProcess();
    absl::StatusOr<std::unique_ptr<Slot>> slot = own ? Slot::OpenOwn(info.path) : Slot::Adopt(info.path);
    absl::Status status = absl::IsNotFound(slot.status()) ? absl::OkStatus() : slot.status();
    if (slot.ok()) {
      const bool remove = !own || made_->Take(info.path);
      // Another image may have come since the scan: that one is not ours to retire.
      if ((*slot)->generation() == info.generation) {
        (*slot)->Free();
        if (remove) status = (*slot)->Remove();
      }
      if (!own) (*slot)->Disown();
    }
    if (result.ok()) result = status;
  }
  return result;
}

}  // namespace

std::unique_ptr<Tier> OpenRamTier(const RamTierOptions& options) { return std::make_unique<RamTier>(options); }

}  // namespace neve::storage
