#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/process.h"
#include "catalog/catalog.h"
#include "engine/places_folder.h"
#include "engine/places_ram.h"
#include "neve/places.h"
#include "slot/slot.h"
#include "slot/slot_header.h"

namespace neve {
namespace {

using engine::FoundImage;
using engine::FoundJob;
using engine::FoundStep;
using slot::SlotInfo;

uint64_t RoomOf(const std::string& path) {
  const absl::StatusOr<struct ::stat> facts = os::Stat(path);
  return facts.ok() ? static_cast<uint64_t>(facts->st_blocks) * 512 : 0;
}

bool HasWholeImage(const FoundImage& image) {
  if (image.image_path.empty() || image.record_path.empty()) return false;
  const absl::StatusOr<format::CommitRecord> record = engine::ReadRecord(image.record_path);
  return record.ok() && record->image_bytes == image.image_bytes;
}

// Removes one save: all records first, so that no reader meets a record whose image is gone after a crash between.
absl::Status RemoveSave(const FoundStep& step) {
  for (const FoundImage& image : step.images) {
    if (!image.record_path.empty()) NEVE_RETURN_IF_ERROR(os::Unlink(image.record_path));
  }
  if (step.has_complete_cache) {
    NEVE_RETURN_IF_ERROR(os::Unlink(os::JoinPath(step.path, format::kCompleteFile)));
  }
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(step.path));
  for (const FoundImage& image : step.images) {
    if (!image.image_path.empty()) NEVE_RETURN_IF_ERROR(os::Unlink(image.image_path));
  }
  return absl::OkStatus();
}

class Collector {
 public:
  Collector(const GcOptions& options, GcReport* report) : options_(options), report_(report) {}

  void Folder(const std::string& path) {
    absl::StatusOr<FoundJob> found = engine::ReadJob(path);
    if (!found.ok()) return Met(path, "job", found.status());
    job_ = *std::move(found);
    report_->worst = engine::Worse(report_->worst, job_.damage);
    steps_.clear();
    for (const std::string& step_path : job_.step_paths) {
      absl::StatusOr<FoundStep> step = engine::ReadStep(step_path);
      if (step.ok()) {
        steps_.push_back(*std::move(step));
      } else if (step.status().code() != absl::StatusCode::kNotFound) {
        Met(step_path, "save", step.status());
      }
    }
    const std::vector<catalog::Save> saves = Saves();
    const std::set<SaveId> retired = Retire(saves);
    for (const FoundStep& step : steps_) {
      if (!retired.contains(step.name->save)) Leftovers(step);
    }
    OfTheFolder();
    SlotsOfTheFolder(saves);
  }

  absl::Status Ram(const PlaceInfo& info) {
    NEVE_ASSIGN_OR_RETURN(const std::vector<SlotInfo> slots, engine::SlotsOf(info));
    if (info.path.empty()) return absl::OkStatus();
    for (const SlotInfo& found : slots) {
      if (!found.status.ok()) {
        Met(found.path, "dead slot", found.status);
        continue;
      }
      // A job that has no durable tier is known by its name alone; asked for by that name, there is nothing to wait for.
      const bool ram_only = !info.job.empty() && found.uid == format::UidFromName(found.job);
      const bool owes = !ram_only && Holds(found);
      RemoveSlot(found, owes ? absl::StrFormat("kept: holds step %d, save %s of job %s; `neve gc` of its job folder frees it "
                                               "once it is durable, `neve recover` makes it so", found.key.step,
                                               found.key.save.ToString(), found.job)
                             : "");
    }
    const absl::StatusOr<std::vector<os::DirectoryEntry>> folders = os::ListDirectory(info.path);
    if (!folders.ok()) return folders.status().code() == absl::StatusCode::kNotFound ? absl::OkStatus() : folders.status();
    for (const os::DirectoryEntry& entry : *folders) {
      Uid uid;
      if (entry.is_directory && Uid::FromHex(entry.name, &uid)) SlotTemporaries(os::JoinPath(info.path, entry.name));
    }
    return absl::OkStatus();
  }

 private:
  static bool Holds(const SlotInfo& found) {
    return found.state == slot::State::kCaptured || found.state == slot::State::kSealed;
  }

  void Met(const std::string& path, const std::string& what, const absl::Status& status) {
    report_->worst = engine::Worse(report_->worst, status);
    report_->items.push_back(GcReport::Item{path, what, 0, std::string(status.message())});
  }

  // One thing to remove: `keep` says why it stays, "" when it may go.
  template <typename Remove>
  void Item(const std::string& path, const std::string& what, uint64_t bytes, const std::string& keep, Remove remove) {
    GcReport::Item item{path, what, bytes, options_.dry_run ? "would remove" : "removed"};
    if (!keep.empty()) {
      item.outcome = keep;
    } else if (!options_.dry_run) {
      const absl::Status status = remove();
      if (ErrnoOf(status) == EWOULDBLOCK) {
        item.outcome = "kept: " + std::string(status.message());
      } else if (!status.ok()) {
        item.outcome = std::string(status.message());
        report_->worst = engine::Worse(report_->worst, status);
      }
    }
    report_->items.push_back(std::move(item));
  }

  std::string WhyKept(uint32_t incarnation) const {
    std::string why;
    return engine::LifeIsDead(job_, incarnation, &why) ? "" : "kept: " + why;
  }

  std::vector<catalog::Save> Saves() const {
    catalog::TierListing listing{TierKind::kFile, job_.path};
    for (const FoundStep& step : steps_) {
      for (const FoundImage& image : step.images) {
        listing.listing.images.push_back(storage::ImageEntry{
            ImageKey{step.name->save, step.name->step, image.rank, image.world}, HasWholeImage(image),
            !image.image_path.empty(), image.image_bytes, image.stored_bytes, step.pinned, step.path});
      }
    }
    return catalog::GroupSaves(std::span(&listing, 1));
  }

  // Retention: the complete saves that the rule names, and below the oldest kept one what can never become complete.
  std::set<SaveId> Retire(const std::vector<catalog::Save>& saves) {
    std::set<SaveId> retired;
    if (!options_.keep.has_value()) return retired;
    const catalog::RetentionRule rule{.keep = *options_.keep};
    for (const catalog::Save* save : catalog::ToRetire(saves, 0, rule, {}, {}, std::nullopt)) retired.insert(save->save);
    std::optional<SaveId> oldest_kept;
    for (const catalog::Save& save : saves) {
      if (save.complete && !save.pinned && !retired.contains(save.save)) oldest_kept = save.save;
    }
    for (const FoundStep& step : steps_) {
      const SaveId id = step.name->save;
      const bool named = retired.contains(id);
      const auto save = std::find_if(saves.begin(), saves.end(), [&](const catalog::Save& s) { return s.save == id; });
      const bool hopeless = save != saves.end() && !save->complete && save->any_record && !step.pinned &&
                            oldest_kept.has_value() && id < *oldest_kept && WhyKept(id.incarnation).empty();
      if (!named && !hopeless) continue;
      uint64_t bytes = 0;
      for (const FoundImage& image : step.images) bytes += image.stored_bytes;
      Item(step.path, named ? "save" : "incomplete save", bytes, "", [&] {
        NEVE_RETURN_IF_ERROR(RemoveSave(step));
        for (const std::string& temporary : step.temporaries) {
          if (WhyKept(id.incarnation).empty()) NEVE_RETURN_IF_ERROR(UnlinkIdle(temporary));
        }
        RemoveFolderIfEmpty(step.path);
        return absl::OkStatus();
      });
      retired.insert(id);
    }
    return retired;
  }

  // Files of others may stand in it: then it stays.
  static void RemoveFolderIfEmpty(const std::string& path) { os::Rmdir(path).IgnoreError(); }

  static absl::Status UnlinkIdle(const std::string& path) {
    NEVE_ASSIGN_OR_RETURN(const os::File idle, os::LockIdle(path));
    return os::Unlink(path);
  }

  void Leftovers(const FoundStep& step) {
    const std::string keep = step.pinned ? "kept: the save is pinned" : WhyKept(step.name->save.incarnation);
    bool bare = true;
    for (const FoundImage& image : step.images) {
      if (!image.record_path.empty()) {
        bare = false;
        continue;
      }
      Item(image.image_path, "leftover", image.stored_bytes, keep, [&]() -> absl::Status {
        // The life that saved it is dead, but another may be bringing the image here from RAM at this moment: then it is locked,
        // and when it was committed before our lock its record is there.
        NEVE_ASSIGN_OR_RETURN(const os::File idle, os::LockIdle(image.image_path));
        const std::string record = os::JoinPath(step.path, format::FormatRecordName(image.rank, image.world));
        return os::Exists(record) ? Unavailable(record + " has come meanwhile; kept") : os::Unlink(image.image_path);
      });
    }
    for (const std::string& path : step.temporaries) {
      Item(path, "temporary", RoomOf(path), keep, [&] { return UnlinkIdle(path); });
    }
    if (bare && keep.empty() && !options_.dry_run) {
      if (step.has_complete_cache) os::Unlink(os::JoinPath(step.path, format::kCompleteFile)).IgnoreError();   // only a cache
      RemoveFolderIfEmpty(step.path);
    }
  }

  void OfTheFolder() {
    const std::string keep = job_.lives.empty() ? "kept: no claim says who made it" : WhyKept(job_.lives.back().incarnation);
    for (const std::string& path : job_.temporaries) {
      Item(path, "temporary", RoomOf(path), keep, [&] { return UnlinkIdle(path); });
    }
    for (const std::string& path : job_.spares) {
      Item(path, "spare", RoomOf(path), keep, [&] { return os::Unlink(path); });
    }
    if (!options_.dry_run && keep.empty() && !job_.spares.empty()) {
      RemoveFolderIfEmpty(os::JoinPath(job_.path, format::kSpareFolder));
    }
  }

  void SlotsOfTheFolder(const std::vector<catalog::Save>& saves) {
    if (!job_.uid.known()) return;
    const absl::StatusOr<std::string> folder = slot::RamFolder(/*create=*/false);
    if (!folder.ok()) {
      if (folder.status().code() != absl::StatusCode::kNotFound) Met("ram:", "dead slot", folder.status());
      return;
    }
    const absl::StatusOr<std::vector<SlotInfo>> slots = slot::Scan(*folder, job_.uid);
    if (!slots.ok()) return Met(*folder, "dead slot", slots.status());
    SlotTemporaries(os::JoinPath(*folder, job_.uid.ToHex()));
    std::optional<SaveId> newest;
    for (const catalog::Save& save : saves) {
      if (save.complete && (!newest.has_value() || save.save > *newest)) newest = save.save;
    }
    for (const SlotInfo& found : *slots) {
      if (!found.status.ok()) {
        Met(found.path, "dead slot", found.status);
        continue;
      }
      const bool owes = Holds(found) && (!newest.has_value() || found.key.save > *newest) && !IsDurable(saves, found.key);
      RemoveSlot(found, owes ? absl::StrFormat("kept: step %d, save %s is not in %s yet; `neve recover %s` persists it",
                                               found.key.step, found.key.save.ToString(), job_.path, job_.path)
                             : "");
    }
  }

  // A process that was killed while it made a slot leaves its memory reserved under a name that tells the process.
  void SlotTemporaries(const std::string& folder) {
    const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder);
    if (!entries.ok()) return;   // no slots of this job, or not ours to look at
    for (const os::DirectoryEntry& entry : *entries) {
      os::ProcessId owner = os::CurrentProcess();   // RAM does not outlive a boot: it is the owner's too
      if (entry.is_directory || !slot::ParseTemporaryName(entry.name, &owner) || os::IsAlive(owner)) continue;
      const std::string path = os::JoinPath(folder, entry.name);
      Item(path, "temporary", RoomOf(path), "", [&] { return os::Unlink(path); });
    }
  }

  static bool IsDurable(const std::vector<catalog::Save>& saves, const ImageKey& key) {
    const auto save = std::find_if(saves.begin(), saves.end(), [&](const catalog::Save& s) { return s.save == key.save; });
    if (save == saves.end() || key.rank >= save->ranks.size()) return false;
    return std::any_of(save->ranks[key.rank].begin(), save->ranks[key.rank].end(), [](const catalog::Copy& copy) {
      return copy.entry.has_record && copy.entry.has_image;
    });
  }

  void RemoveSlot(const SlotInfo& found, const std::string& keep) {
    if (found.owner_alive) return;   // a slot at work is no garbage
    Item(found.path, "dead slot", found.file_bytes, keep, [&]() -> absl::Status {
      NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<slot::Slot> slot, slot::Slot::Adopt(found.path));
      if (slot->generation() != found.generation) {
        slot->Disown();
        return Unavailable(found.path + ": was filled anew meanwhile; kept");
      }
      return slot->Remove();
    });
  }

  const GcOptions& options_;
  GcReport* report_;
  FoundJob job_;
  std::vector<FoundStep> steps_;
};

}  // namespace

absl::StatusOr<GcReport> CollectGarbage(const std::string& place, const GcOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  if (options.keep.has_value() && *options.keep == 0) return Invalid("--keep must be at least 1: the newest save always stays");
  GcReport report;
  Collector collector(options, &report);
  switch (info.kind) {
    case PlaceKind::kJobFolder:
    case PlaceKind::kRoot:
      for (const std::string& folder : engine::JobFoldersOf(info)) collector.Folder(folder);
      return report;
    case PlaceKind::kRam:
      NEVE_RETURN_IF_ERROR(collector.Ram(info));
      return report;
    case PlaceKind::kImageFile:
    case PlaceKind::kStepFolder:
      return Unsupported(absl::StrFormat("%s is one save, not a job folder", place));
    case PlaceKind::kEmptyFolder:
      return Unsupported(absl::StrFormat("%s holds nothing of neve", place));
    case PlaceKind::kForeign:
      break;
  }
  return Unsupported(absl::StrFormat("%s is %s", place, info.what));
}

}  // namespace neve
