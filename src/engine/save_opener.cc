#include "engine/save_opener.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "engine/blocking.h"

namespace neve::engine {
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

std::shared_ptr<storage::ImageReader> OwnReader(const std::shared_ptr<node::SlotPool>& pool, const ImageKey& key) {
  if (pool == nullptr) return nullptr;
  node::Entry* entry = pool->HoldByKey(key);
  if (entry == nullptr) return nullptr;
  absl::StatusOr<format::CommitRecord> record = entry->slot != nullptr ? entry->slot->Record() : NotFound("private memory");
  if (!record.ok() || record->digests.empty()) {
    pool->Release(entry);
    return nullptr;
  }
  return std::make_shared<OwnSlotReader>(pool, entry, *std::move(record));
}

}  // namespace

std::string FingerprintOf(const format::CommitRecord& record) {
  return absl::StrFormat("%d.%s", record.image_bytes, codec::DigestOf(std::as_bytes(std::span(record.digests))).ToHex());
}

bool SameBytes(const format::CommitRecord& a, const format::CommitRecord& b) {
  if (a.image_bytes != b.image_bytes || a.digests.size() != b.digests.size() || a.chunk_bytes != b.chunk_bytes) return false;
  size_t equal = 0;
  for (size_t i = 0; i < a.digests.size(); ++i) equal += a.digests[i] == b.digests[i] ? 1 : 0;
  return equal >= std::max<size_t>(1, a.digests.size() * 9 / 10);
}

absl::StatusOr<format::CommitRecord> SaveOpener::RecordOf(uint32_t rank, bool durable_only) const {
  if (rank >= save.ranks.size()) return NotFound("no image of that rank");
  for (const catalog::Copy& copy : save.ranks[rank]) {
    storage::Tier& tier = *tiers[static_cast<size_t>(copy.tier)].tier;
    if (!copy.entry.has_record || !copy.entry.has_image || (durable_only && !tier.info().durable)) continue;
    const auto reader = Await<std::shared_ptr<storage::ImageReader>>([&](auto done) { tier.OpenImage(copy.entry.key, done); });
    if (reader.ok() && !(*reader)->record().digests.empty()) return (*reader)->record();
  }
  return NotFound("no record of that rank can be read");
}

absl::StatusOr<ImageParts> SaveOpener::OpenRank(uint32_t rank, const std::function<void(const absl::Status&)>& failed,
                                                std::string* reason, const std::string& wanted) const {
  ImageParts parts;
  parts.info = info;
  const Uid& uid = info.uid;
  for (const catalog::Copy& copy : save.ranks[rank]) {
    if (!copy.entry.has_record || !copy.entry.has_image) continue;
    const auto& [tier, name, place] = tiers[static_cast<size_t>(copy.tier)];
    const bool is_ram = tier->info().kind == TierKind::kRam;
    absl::StatusOr<std::shared_ptr<storage::ImageReader>> reader = is_ram ? OwnReader(pool, copy.entry.key) : nullptr;
    if (*reader == nullptr) {
      reader = Await<std::shared_ptr<storage::ImageReader>>([&, open = tier.get()](auto done) { open->OpenImage(copy.entry.key, done); });
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
    if (opened.ok() && !wanted.empty() && FingerprintOf((*reader)->record()) != wanted) {
      opened = DataLoss("its bytes are not those of rank 0's image: the ranks did not hold the same state, though they were opened with "
                        "replicated=; without it each rank takes what its own host has");
    }
    if (!opened.ok()) {
      *reason += (reason->empty() ? "" : "; ") + name + ": " + std::string(opened.message());
      failed(opened);
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
    source.place = place;
    source.reader = *reader;
    source.queue_depth = tier->info().queue_depth;
    source.alignment = tier->info().alignment;
    source.heal = [tier = tier, key = copy.entry.key](uint64_t offset, std::span<const std::byte> bytes) {
      return AwaitStatus([&](auto done) { tier->Heal(key, offset, bytes, done); });
    };
    parts.sources.push_back(std::move(source));
    parts.keep.push_back(tier);
  }
  if (parts.sources.empty()) return NotFound(*reason);
  parts.image_bytes = parts.record->image_bytes;
  parts.others = others;
  parts.crew = crew;
  parts.metrics = metrics;
  held->Hold(save.save);
  parts.on_destroy = [held = held, id = save.save] { held->Release(id); };
  return parts;
}

absl::StatusOr<std::unique_ptr<RankFile>> SaveOpener::OpenFile(uint32_t rank, const std::function<void(const absl::Status&)>& failed,
                                                               std::string* reason, bool* header_lost,
                                                               const std::function<void(ImageParts&)>& prepare,
                                                               const std::string& wanted) const {
  *header_lost = false;
  NEVE_ASSIGN_OR_RETURN(ImageParts parts, OpenRank(rank, failed, reason, wanted));
  prepare(parts);
  absl::StatusOr<std::unique_ptr<RankFile>> image = MakeImage(std::move(parts));
  if (absl::IsDataLoss(image.status())) {
    std::string header = HeaderOfAnother(rank);
    if (!header.empty()) {
      NEVE_ASSIGN_OR_RETURN(ImageParts again, OpenRank(rank, failed, reason, wanted));
      prepare(again);
      again.header = std::move(header);
      image = MakeImage(std::move(again));
    }
  }
  *header_lost = !image.ok();
  return image;
}

std::string SaveOpener::HeaderOfAnother(uint32_t rank) const {
  const auto quiet = [](const absl::Status&) {};
  std::string reason;
  const absl::StatusOr<ImageParts> own = OpenRank(rank, quiet, &reason);
  if (!own.ok()) return "";
  const format::CommitRecord& record = *own->record;
  const uint64_t chunks = std::min<uint64_t>((record.header_bytes + record.chunk_bytes - 1) / record.chunk_bytes, record.digests.size());
  std::string header;
  for (uint32_t other = 0; other < save.ranks.size() && header.empty(); ++other) {
    if (other == rank) continue;
    const absl::StatusOr<ImageParts> theirs = OpenRank(other, quiet, &reason);
    if (!theirs.ok()) continue;
    bool same = theirs->record->chunk_bytes == record.chunk_bytes && theirs->record->digests.size() >= chunks;
    for (uint64_t chunk = 0; chunk < chunks && same; ++chunk) {
      same = theirs->record->digests[chunk] == record.digests[chunk] && theirs->record->ChunkBytesAt(chunk) == record.ChunkBytesAt(chunk);
    }
    if (same) {
      // The other rank's copies come last, and nothing is written over them: what follows the header there is its own.
      std::vector<restore::Source> sources = own->sources;
      for (restore::Source source : theirs->sources) {
        source.heal = nullptr;
        sources.push_back(std::move(source));
      }
      std::string bytes(record.header_bytes, '\0');
      const restore::Range range{0, bytes.size(), reinterpret_cast<std::byte*>(bytes.data()), nullptr, 1};
      const auto plan = restore::ReadPlan::Build({&range, 1}, record.image_bytes, record.chunk_bytes);
      restore::ReadResult result;
      if (plan.ok() && restore::ReadChunks(*plan, sources, record.digests, *crew, {}, {}, &result).ok()) {
        header = std::move(bytes);
        obs::Log(obs::Level::kWarning, absl::StrFormat("event=header_mended step=%d save=%s rank=%d from_rank=%d healed=%d", save.step,
                                                       save.save.ToString(), rank, other, result.chunks_healed));
      }
    }
    theirs->on_destroy();
  }
  own->on_destroy();
  return header;
}

}  // namespace neve::engine
