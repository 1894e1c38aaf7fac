#include "support/sim_tier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error/status.h"
#include "format/names.h"

namespace neve::testing {
namespace {

constexpr uint64_t kBlock = 512;

std::string FolderOf(const ImageKey& key) { return format::FormatSaveName({key.step, key.save}); }
std::string ImageOf(const ImageKey& key) { return FolderOf(key) + "/" + format::FormatImageName(key.rank, key.world); }
std::string RecordOf(const ImageKey& key) {
  return FolderOf(key) + "/" + format::FormatRecordName(key.rank, key.world);
}
std::string PinOf(const ImageKey& key) { return FolderOf(key) + "/pinned"; }

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

SimDisk::FilePtr SimDisk::Find(const std::string& name) const {
  const auto found = live_.find(name);
  return found == live_.end() ? nullptr : found->second;
}

SimDisk::FilePtr SimDisk::Create(const std::string& name) {
  auto file = std::make_shared<File>();
  Link(name, file);
  return file;
}

void SimDisk::Link(const std::string& name, FilePtr file) {
  live_[name] = std::move(file);
  if (Chance(8)) SyncName(name);  // the kernel writes back when it likes
}

void SimDisk::Remove(const std::string& name) {
  live_.erase(name);
  if (Chance(8)) SyncName(name);
}

void SimDisk::Write(File& file, uint64_t offset, std::span<const std::byte> bytes) {
  if (file.live.size() < offset + bytes.size()) file.live.resize(offset + bytes.size());
  file.live.replace(offset, bytes.size(), AsText(bytes));
  if (Chance(16)) Sync(file);
}

void SimDisk::SyncName(const std::string& name) {
  if (const auto found = live_.find(name); found != live_.end()) {
    durable_[name] = found->second;
  } else {
    durable_.erase(name);
  }
}

void SimDisk::Crash() {
  std::set<std::string> all;
  for (const auto& [name, file] : live_) all.insert(name);
  for (const auto& [name, file] : durable_) all.insert(name);
  std::map<std::string, FilePtr> after;
  for (const std::string& name : all) {
    const FilePtr now = Find(name);
    const auto found = durable_.find(name);
    const FilePtr before = found == durable_.end() ? nullptr : found->second;
    const FilePtr file = now == before || Chance(2) ? now : before;
    if (file != now) ++lost_;
    if (file == nullptr) continue;
    std::string content = file->durable;
    if (file->live != file->durable) {
      ++torn_;
      content.resize(file->live.size(), '\0');
      for (uint64_t at = 0; at < content.size(); at += kBlock) {
        if (Chance(2)) content.replace(at, kBlock, file->live, at, kBlock);
      }
      if (Chance(4)) content.resize(random_.Below(content.size() + 1));
    }
    after[name] = std::make_shared<File>(File{content, content});
  }
  live_ = after;
  durable_ = std::move(after);
}

std::string_view Name(SimFault fault) {
  static constexpr std::string_view kNames[] = {"begin",       "no_room", "write",  "commit_before", "commit_unsure",
                                                "commit_lost", "list",    "retire", "slow"};
  return kNames[static_cast<size_t>(fault)];
}

SimTier::SimTier(SimDisk& disk, sync::SimExecutor& executor, SimFaults& faults)
    : disk_(disk), executor_(executor), faults_(faults) {
  info_.kind = TierKind::kFile;
  info_.place = "file:simulated";
  info_.durable = true;
  info_.alignment = kBlock;
  info_.queue_depth = 4;
}

bool SimTier::Hits(SimFault fault) {
  const auto index = static_cast<size_t>(fault);
  if (!faults_.on || executor_.Random() % 1000 >= faults_.per_mille[index]) return false;
  ++faults_.injected[index];
  return true;
}

void SimTier::Later(sync::Executor::Task task) {
  const bool slow = Hits(SimFault::kSlow);
  const uint64_t limit = slow ? 5 * sync::kSecond : 20 * sync::kMillisecond;
  // What a process has asked for ends with it, as its memory does.
  executor_.PostAfter(static_cast<sync::Nanos>(executor_.Random() % limit), [alive = alive_, task = std::move(task)]() mutable {
    if (*alive) task();
  });
}

class SimTier::Writer : public storage::ImageWriter {
 public:
  Writer(SimTier& tier, const ImageKey& key, uint64_t bytes, SimDisk::FilePtr file)
      : tier_(tier), disk_(tier.disk_), alive_(tier.alive_), key_(key), bytes_(bytes), file_(std::move(file)) {}
  ~Writer() override {
    if (*alive_ && !named_ && disk_.Find(ImageOf(key_)) == file_) disk_.Remove(ImageOf(key_));
  }

  void Write(uint64_t offset, std::span<const std::byte> source, storage::Done done) override {
    if (offset % kBlock != 0 || offset + source.size() > bytes_ ||
        (source.size() % kBlock != 0 && offset + source.size() != bytes_)) {
      return done(Invalid("a write that is not aligned"));
    }
    tier_.Later([this, offset, source, done = std::move(done)]() mutable {
      const bool fails = tier_.Hits(SimFault::kWrite);
      disk_.Write(*file_, offset, fails ? source.first(tier_.executor_.Random() % (source.size() + 1)) : source);
      if (!fails) written_ += source.size();
      tier_.Later([done = std::move(done), status = fails ? ErrnoStatus(EIO, "write of " + ImageOf(key_))
                                                          : absl::OkStatus()] { done(status); });
    });
  }

  // Each step at a time of its own, so that a kill or a crash comes between any two.
  void Commit(const format::CommitRecord& record, storage::Done done) override {
    tier_.Later([this, text = format::EncodeRecord(record), done = std::move(done)]() mutable {
      if (written_ != bytes_) return done(Invalid("a commit before all bytes were written"));
      if (tier_.Hits(SimFault::kCommitBefore)) return done(ErrnoStatus(EIO, "fdatasync of " + ImageOf(key_)));
      disk_.Sync(*file_);
      disk_.SyncName(ImageOf(key_));
      tier_.Later([this, text = std::move(text), done = std::move(done)]() mutable {
        NameRecord(std::move(text), std::move(done));
      });
    });
  }

 private:
  void NameRecord(std::string text, storage::Done done) {
    const std::string name = RecordOf(key_);
    if (disk_.Find(name) != nullptr) return done(ErrnoStatus(EEXIST, name));
    disk_.Link(
        name, std::make_shared<SimDisk::File>(SimDisk::File{text, text}));  // written and synced under a temporary name
    named_ = true;
    tier_.Later([this, name, done = std::move(done)] {
      if (tier_.Hits(SimFault::kCommitUnsure)) {
        if (tier_.executor_.Random() % 2 == 0) {
          disk_.Remove(name);
          named_ = false;
        }
        return done(ErrnoStatus(EIO, "fsync of the folder of " + name));
      }
      disk_.SyncName(name);
      const absl::Status status =
          tier_.Hits(SimFault::kCommitLost) ? Unavailable("the answer was lost") : absl::OkStatus();
      tier_.Later([status, done = std::move(done)] { done(status); });
    });
  }

  SimTier& tier_;
  SimDisk& disk_;
  const std::shared_ptr<bool> alive_;
  const ImageKey key_;
  const uint64_t bytes_;
  const SimDisk::FilePtr file_;
  uint64_t written_ = 0;
  bool named_ = false;  // the record has its name: the image is no longer this writer's to take back
};

class SimTier::Reader : public storage::ImageReader {
 public:
  Reader(SimTier& tier, format::CommitRecord record, SimDisk::FilePtr file)
      : tier_(tier), record_(std::move(record)), file_(std::move(file)) {}
  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
    tier_.Later([file = file_, offset, target, done = std::move(done)] {
      if (offset + target.size() > file->live.size()) return done(Damaged("the file is too short"));
      std::memcpy(target.data(), file->live.data() + offset, target.size());
      done(absl::OkStatus());
    });
  }

 private:
  SimTier& tier_;
  const format::CommitRecord record_;
  const SimDisk::FilePtr file_;
};

void SimTier::List(storage::DoneWith<storage::Listing> done) {
  Later([this, done = std::move(done)] {
    if (Hits(SimFault::kList)) return done(ErrnoStatus(EIO, "readdir"));
    storage::Listing listing;
    listing.exists = !disk_.names().empty();
    std::map<ImageKey, storage::ImageEntry> entries;
    for (const auto& [name, file] : disk_.names()) {
      if (const auto life = format::ParseLifeName(name); life.has_value()) {
        listing.incarnation_max = std::max(listing.incarnation_max, *life);
      }
      const size_t slash = name.find('/');
      if (slash == name.npos) continue;
      const auto save = format::ParseSaveName(name.substr(0, slash));
      const auto shard = format::ParseShardName(name.substr(slash + 1));
      if (!save.has_value()) continue;
      listing.incarnation_max = std::max(listing.incarnation_max, save->save.incarnation);
      if (!shard.has_value()) continue;
      const ImageKey key{.save = save->save, .step = save->step, .rank = shard->rank, .world = shard->world};
      storage::ImageEntry& entry = entries[key];
      entry.key = key;
      entry.path = name;
      entry.pinned = disk_.Find(PinOf(key)) != nullptr;
      if (shard->is_record) {
        entry.has_record = true;
      } else {
        entry.has_image = true;
        entry.image_bytes = entry.stored_bytes = file->live.size();
      }
    }
    for (auto& [key, entry] : entries) listing.images.push_back(std::move(entry));
    done(std::move(listing));
  });
}

void SimTier::OpenImage(const ImageKey& key, storage::DoneWith<std::shared_ptr<storage::ImageReader>> done) {
  Later([this, key, done = std::move(done)] {
    const SimDisk::FilePtr record_file = disk_.Find(RecordOf(key)), image = disk_.Find(ImageOf(key));
    if (record_file == nullptr) return done(NotFound(RecordOf(key)));
    absl::StatusOr<format::CommitRecord> record = format::DecodeRecord(record_file->live);
    if (!record.ok()) return done(record.status());
    if (image == nullptr || image->live.size() != record->image_bytes) {
      return done(Damaged(ImageOf(key) + " has another size than its record says"));
    }
    done(std::shared_ptr<storage::ImageReader>(std::make_shared<Reader>(*this, *std::move(record), image)));
  });
}

void SimTier::BeginImage(const ImageKey& key, uint64_t image_bytes,
                         storage::DoneWith<std::shared_ptr<storage::ImageWriter>> done) {
  Later([this, key, image_bytes, done = std::move(done)] {
    if (disk_.Find(RecordOf(key)) != nullptr)
      return done(Invalid(RecordOf(key) + ": a committed image is never replaced"));
    if (Hits(SimFault::kBegin)) return done(ErrnoStatus(EIO, "open of " + ImageOf(key)));
    if (Hits(SimFault::kNoRoom)) return done(ErrnoStatus(ENOSPC, "room for " + ImageOf(key)));
    // A record that was taken back must be gone for good before other bytes lie under the image's name.
    disk_.SyncName(RecordOf(key));
    disk_.Remove(ImageOf(key));
    const SimDisk::FilePtr file = disk_.Create(ImageOf(key));
    file->live.resize(image_bytes);
    done(std::shared_ptr<storage::ImageWriter>(std::make_shared<Writer>(*this, key, image_bytes, file)));
  });
}

void SimTier::Heal(const ImageKey& key, uint64_t offset, std::span<const std::byte> source, storage::Done done) {
  Later([this, key, offset, source, done = std::move(done)] {
    const SimDisk::FilePtr file = disk_.Find(ImageOf(key));
    if (file == nullptr) return done(NotFound(ImageOf(key)));
    disk_.Write(*file, offset, source);
    disk_.Sync(*file);
    done(absl::OkStatus());
  });
}

void SimTier::Retire(const ImageKey& key, storage::Done done) {
  Later([this, key, done = std::move(done)]() mutable {
    if (Hits(SimFault::kRetire)) return done(ErrnoStatus(EIO, "unlink of " + RecordOf(key)));
    disk_.Remove(RecordOf(key));
    Later([this, key, done = std::move(done)]() mutable {
      disk_.SyncName(RecordOf(key));
      Later([this, key, done = std::move(done)] {
        disk_.Remove(ImageOf(key));
        done(absl::OkStatus());
      });
    });
  });
}

void SimTier::SetPinned(const ImageKey& key, bool pinned, storage::Done done) {
  Later([this, key, pinned, done = std::move(done)] {
    if (pinned) {
      disk_.Create(PinOf(key));
    } else {
      disk_.Remove(PinOf(key));
    }
    disk_.SyncName(PinOf(key));
    done(absl::OkStatus());
  });
}

void SimTier::ReadNote(const std::string& name, storage::DoneWith<std::string> done) {
  Later([this, name, done = std::move(done)] {
    const SimDisk::FilePtr file = disk_.Find(name);
    if (file == nullptr) return done(NotFound(name));
    done(file->live);
  });
}

void SimTier::WriteNote(const std::string& name, const std::string& content, bool exclusive, storage::Done done) {
  Later([this, name, content, exclusive, done = std::move(done)]() mutable {
    if (exclusive && disk_.Find(name) != nullptr) return done(ErrnoStatus(EEXIST, name));
    disk_.Link(name, std::make_shared<SimDisk::File>(SimDisk::File{content, content}));
    Later([this, name, done = std::move(done)] {
      disk_.SyncName(name);
      done(absl::OkStatus());
    });
  });
}

void SimTier::RemoveNote(const std::string& name, storage::Done done) {
  Later([this, name, done = std::move(done)] {
    disk_.Remove(name);
    disk_.SyncName(name);
    done(absl::OkStatus());
  });
}

}  // namespace neve::testing
