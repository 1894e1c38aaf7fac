// Choosing what to restore: the newest complete save, from the tiers that hold it, nearest first.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "engine/blocking.h"
#include "engine/engine_impl.h"
#include "engine/find_refusals.h"
#include "engine/save_info.h"

namespace neve {
namespace {

// A slot of the pool, held while it is read.
class OwnSlotReader : public storage::ImageReader {
 public:
  OwnSlotReader(std::shared_ptr<node::SlotPool> pool, node::Entry* entry, format::CommitRecord record)
      : pool_(std::move(pool)), entry_(entry), record_(std::move(record)) {}
  ~OwnSlotReader() override { pool_->Release(entry_); }
  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
    const std::span<const std::byte> image = Mapped();
    if (offset > image.size() || image.size() - offset < target.size()) {
      done(Damaged(absl::StrFormat("a read of %d bytes at %d of an image of %d", target.size(), offset, image.size())));
      return;
    }
    if (!target.empty()) std::memcpy(target.data(), image.data() + offset, target.size());
    done(absl::OkStatus());
  }
  std::span<const std::byte> Mapped() const override { return entry_->image().first(record_.image_bytes); }

 private:
  const std::shared_ptr<node::SlotPool> pool_;
  node::Entry* const entry_;
  const format::CommitRecord record_;
};

}  // namespace

std::shared_ptr<storage::ImageReader> EngineImpl::OwnReader(const ImageKey& key) {
  if (ready_pool_ == nullptr) return nullptr;
  node::Entry* entry = pool_->HoldByKey(key);
  if (entry == nullptr) return nullptr;
  absl::StatusOr<format::CommitRecord> record = entry->slot != nullptr ? entry->slot->Record() : NotFound("private memory");
  if (!record.ok() || record->digests.empty()) {
    pool_->Release(entry);
    return nullptr;
  }
  return std::make_shared<OwnSlotReader>(pool_, entry, *std::move(record));
}

absl::Status EngineImpl::CheckListed(const std::vector<catalog::TierListing>& listings, const std::vector<std::string>& names,
                                     const FindRequest& request) const {
  for (size_t t = 0; t < listings.size(); ++t) {
    if (listings[t].status.ok()) continue;
    const bool allowed =
        std::find(request.allow_missing.begin(), request.allow_missing.end(), names[t]) != request.allow_missing.end();
    if (!allowed) {
      return Unavailable(
          absl::StrFormat("tier %s (%s) could not be listed: %s; bring it back, or allow it to be missing (allow_missing)",
                          names[t], listings[t].place, std::string(listings[t].status.message())),
          ErrnoOf(listings[t].status));
    }
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=tier_missing tier=%s error=\"%s\"", names[t], std::string(listings[t].status.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImageParts> EngineImpl::OpenCopies(const catalog::Save& save, const std::vector<catalog::TierListing>& listings,
                                                  const std::vector<std::string>& names, engine::FindRefusals& refusals,
                                                  std::string* reason) {
  ImageParts parts;
  parts.info = engine::ToSaveInfo(save, listings, names);
  parts.info.job = options_.job;
  {
    sync::MutexLock lock(uid_mutex_);
    parts.info.uid = uid_;
  }
  const Uid& uid = parts.info.uid;
  for (const catalog::Copy& copy : save.ranks[options_.rank]) {
    if (!copy.entry.has_record || !copy.entry.has_image) continue;
    const bool is_ram = listings[static_cast<size_t>(copy.tier)].kind == TierKind::kRam;
    std::shared_ptr<storage::Tier> tier =
        is_ram ? RamTier() : durable_[static_cast<size_t>(copy.tier) - (ram_.has_value() ? 1 : 0)]->tier;
    const std::string& name = names[static_cast<size_t>(copy.tier)];
    absl::StatusOr<std::shared_ptr<storage::ImageReader>> reader = is_ram ? OwnReader(copy.entry.key) : nullptr;
    if (*reader == nullptr) {
      reader = Await<std::shared_ptr<storage::ImageReader>>([&](auto done) { tier->OpenImage(copy.entry.key, done); });
    }
    absl::Status opened = reader.status();
    if (opened.ok() && uid.known() && (*reader)->record().uid != uid) {
      opened = Damaged(
          absl::StrFormat("its record belongs to job uid %s, not to %s", (*reader)->record().uid.ToHex(), uid.ToHex()));
    }
    if (opened.ok() && parts.record != nullptr &&
        ((*reader)->record().digests != parts.record->digests || (*reader)->record().image_bytes != parts.record->image_bytes)) {
      opened = DataLoss("its record disagrees with the nearer copy's");
    }
    if (!opened.ok()) {
      *reason += (reason->empty() ? "" : "; ") + name + ": " + std::string(opened.message());
      refusals.CopyFailed(opened);
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=copy_unusable step=%d save=%s tier=%s error=\"%s\"", save.step,
                                                     save.save.ToString(), name, std::string(opened.message())));
      continue;
    }
    if (parts.record == nullptr) {
      parts.record = std::make_shared<const format::CommitRecord>((*reader)->record());
      parts.info.time = parts.record->time;
      parts.info.tags = parts.record->tags;
    }
    restore::Source source;
    source.name = name;
    source.place = listings[static_cast<size_t>(copy.tier)].place;
    source.reader = *reader;
    source.queue_depth = tier->info().queue_depth;
    source.alignment = tier->info().alignment;
    source.heal = [tier, key = copy.entry.key](uint64_t offset, std::span<const std::byte> bytes) {
      return AwaitStatus([&](auto done) { tier->Heal(key, offset, bytes, done); });
    };
    parts.sources.push_back(std::move(source));
    parts.keep.push_back(tier);
  }
  if (parts.sources.empty()) return NotFound(*reason);
  parts.image_bytes = parts.record->image_bytes;
  parts.crew = crew_;
  parts.metrics = metrics_;
  held_->Hold(save.save);
  parts.on_destroy = [held = held_, id = save.save] { held->Release(id); };
  return parts;
}

absl::StatusOr<std::unique_ptr<Image>> EngineImpl::Find(const FindRequest& request) {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  if (options_.world > 1) {
    const GroupCall call(this);
    return FindTogether(request);
  }
  // A tier that cannot be read must not look like a job that never was.
  NEVE_RETURN_IF_ERROR(EnsureUid());
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  NEVE_RETURN_IF_ERROR(CheckListed(listings, names, request));
  engine::FindRefusals refusals(request);
  for (const catalog::Save& save : catalog::GroupSaves(listings)) {
    if (!refusals.Wants(save.save, save.step)) continue;
    refusals.Saw(save.any_record);
    std::string reason = save.reason;
    if (save.complete && save.world != options_.world) {
      return Unsupported(absl::StrFormat("%s is of %d ranks, and this job has %d: restoring on another number of ranks is not in this "
                                         "version of neve",
                                         engine::SaveText(save.save, save.step), save.world, options_.world));
    }
    if (save.complete) {
      absl::StatusOr<ImageParts> parts = OpenCopies(save, listings, names, refusals, &reason);
      if (parts.ok()) {
        auto made = MakeImage(*std::move(parts));
        if (made.ok()) return made;
        // The header itself is lost.
        if (!request.fallback) return Annotate(made.status(), engine::SaveText(save.save, save.step));
        reason = std::string(made.status().message());
        refusals.CopyFailed(made.status());
      }
    }
    NEVE_RETURN_IF_ERROR(refusals.Refuse(save.save, save.step, reason));
  }
  return refusals.Nothing(options_.job, Places(listings));
}

std::string EngineImpl::Places(const std::vector<catalog::TierListing>& listings) {
  std::string places;
  for (const auto& listing : listings) places += (places.empty() ? "" : ", ") + listing.place;
  return places;
}

}  // namespace neve
