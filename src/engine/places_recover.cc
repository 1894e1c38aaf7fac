#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/places_folder.h"
#include "engine/places_ram.h"
#include "engine/places_persist.h"
#include "neve/places.h"
#include "slot/slot.h"
#include "storage/file/file_tier.h"

namespace neve {
namespace {

using engine::FoundJob;
using slot::SlotInfo;

bool HoldsImage(const SlotInfo& found) {
  return found.state == slot::State::kCaptured || found.state == slot::State::kSealed;
}

RecoverReport::Item ItemOf(const SlotInfo& found) {
  RecoverReport::Item item{found.job, found.uid, found.key, found.image_bytes};
  item.state = found.state == slot::State::kSealed ? "sealed" : "captured";
  return item;
}

// Whether this folder holds that share of the save already: a record that can be read and an image of its size.
bool IsCommitted(const std::string& job_folder, const ImageKey& key) {
  const std::string step = os::JoinPath(job_folder, format::FormatSaveName({key.step, key.save}));
  const absl::StatusOr<format::CommitRecord> record =
      engine::ReadRecord(os::JoinPath(step, format::FormatRecordName(key.rank, key.world)));
  if (!record.ok()) return false;
  const absl::StatusOr<struct ::stat> image = os::Stat(os::JoinPath(step, format::FormatImageName(key.rank, key.world)));
  return image.ok() && static_cast<uint64_t>(image->st_size) == record->image_bytes;
}

class Recovery {
 public:
  Recovery(std::vector<SlotInfo> slots, const RecoverOptions& options, const Progress& progress, RecoverReport* report)
      : slots_(std::move(slots)), options_(options), progress_(progress), report_(report) {
    std::sort(slots_.begin(), slots_.end(), [](const SlotInfo& a, const SlotInfo& b) {
      return std::tie(a.key, a.uid) < std::tie(b.key, b.uid);
    });
  }

  // Slots that cannot be read: nobody can say whose they are.
  void ReportDamaged(const std::string& job) {
    for (const SlotInfo& found : slots_) {
      if (found.status.ok() || (!job.empty() && !found.job.empty() && found.job != job)) continue;
      RecoverReport::Item item{found.job, found.uid};
      item.state = "damaged";
      Finish(std::move(item), found.status);
    }
  }

  void ListOnly(const std::string& job) {
    for (const SlotInfo& found : slots_) {
      if (!found.status.ok() || !HoldsImage(found) || (!job.empty() && found.job != job)) continue;
      RecoverReport::Item item = ItemOf(found);
      item.outcome = found.owner_alive ? "owner alive" : "in RAM";
      report_->items.push_back(std::move(item));
    }
  }

  // Persists what belongs to the job of this folder, which may not exist yet.
  absl::Status Into(const std::string& folder, const std::string& job_name) {
    FoundJob job;
    job.path = folder;
    job.name = job_name;
    if (os::Exists(folder)) {
      NEVE_ASSIGN_OR_RETURN(job, engine::ReadJob(folder));
      NEVE_RETURN_IF_ERROR(job.damage);
      if (!job.uid.known()) job.name = job_name;
    }
    if (!job.uid.known()) {
      NEVE_ASSIGN_OR_RETURN(job.uid, OnlyUidOf(job.name));
      if (!job.uid.known()) return absl::OkStatus();
    }
    std::vector<const SlotInfo*> due;
    for (const SlotInfo& found : slots_) {
      if (!found.status.ok() || !HoldsImage(found)) continue;
      if (found.uid == job.uid || (found.job == job.name && options_.adopt)) {
        due.push_back(&found);
      } else if (found.job == job.name) {
        RecoverReport::Item item = ItemOf(found);
        item.outcome = absl::StrFormat("kept: of another job of that name (uid %s); --adopt takes it", found.uid.ToHex());
        report_->items.push_back(std::move(item));
      }
    }
    uint64_t total = 0;
    for (const SlotInfo* found : due) total += found->owner_alive ? 0 : found->image_bytes;
    std::unique_ptr<storage::Tier> tier;
    uint64_t done = 0;
    for (const SlotInfo* found : due) {
      RecoverReport::Item item = ItemOf(*found);
      if (found->owner_alive) {
        item.outcome = "owner alive";
        report_->items.push_back(std::move(item));
        continue;
      }
      const absl::Status status = One(*found, job, done, total, &tier, &item.outcome);
      done += found->image_bytes;
      if (progress_) progress_(done, total);
      Finish(std::move(item), status);
    }
    if (!options_.dry_run) RemoveEmptySlots(job.uid);
    return absl::OkStatus();
  }

  // One of several jobs could not be recovered: the others are all the same.
  void Note(const std::string& job, const absl::Status& status) {
    if (!status.ok()) Finish(RecoverReport::Item{job}, status);
  }

  // Names of the jobs that hold images here, each once.
  std::set<std::string> Jobs() const {
    std::set<std::string> jobs;
    for (const SlotInfo& found : slots_) {
      if (found.status.ok() && HoldsImage(found)) jobs.insert(found.job);
    }
    return jobs;
  }

 private:
  // Slots of ended processes that hold no image only hold memory.
  void RemoveEmptySlots(const Uid& uid) {
    for (const SlotInfo& found : slots_) {
      if (!found.status.ok() || HoldsImage(found) || found.owner_alive || found.uid != uid) continue;
      const absl::StatusOr<std::unique_ptr<slot::Slot>> slot = slot::Slot::Adopt(found.path);
      if (slot.ok()) (*slot)->Remove().IgnoreError();   // another was first, or gc will: nothing is lost either way
    }
  }

  void Finish(RecoverReport::Item item, const absl::Status& status) {
    if (!status.ok()) item.outcome = std::string(status.message());
    report_->worst = engine::Worse(report_->worst, status);
    report_->items.push_back(std::move(item));
  }

  // The uid of the one job of that name in RAM: what a folder without job.json becomes.
  absl::StatusOr<Uid> OnlyUidOf(const std::string& job) const {
    Uid uid;
    for (const SlotInfo& found : slots_) {
      if (!found.status.ok() || !HoldsImage(found) || found.job != job) continue;
      if (uid.known() && found.uid != uid) {
        return Invalid(absl::StrFormat("RAM holds two jobs named %s, of uid %s and %s, and the folder has no job.json to tell "
                                       "which is its own: recover each into its own job folder, which has one", job, uid.ToHex(),
                                       found.uid.ToHex()));
      }
      uid = found.uid;
    }
    return uid;
  }

  absl::Status One(const SlotInfo& found, const FoundJob& job, uint64_t done, uint64_t total,
                   std::unique_ptr<storage::Tier>* tier, std::string* outcome) {
    const bool committed = found.uid == job.uid && IsCommitted(job.path, found.key);
    *outcome = committed ? "already there" : "would persist";
    if (options_.dry_run) return absl::OkStatus();
    NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<slot::Slot> slot, slot::Slot::Adopt(found.path));
    if (slot->state() == slot::State::kCaptured) NEVE_RETURN_IF_ERROR(slot->DigestAndSeal());
    if (!committed) {
      NEVE_ASSIGN_OR_RETURN(format::CommitRecord record, slot->Record());
      if (record.key != found.key) return Unavailable(found.path + ": was filled anew meanwhile; run recover once more");
      if (record.uid != job.uid) {
        record.provenance["adopted_from"] = record.uid.ToHex();
        record.uid = job.uid;
        record.job = job.name;
      }
      if (*tier == nullptr) {
        NEVE_ASSIGN_OR_RETURN(*tier, storage::OpenFileTier({.job_folder = job.path}));
        NEVE_RETURN_IF_ERROR(engine::EnsureIdentity(tier->get(), {job.name, job.uid}));
      }
      uint64_t written = 0;
      NEVE_RETURN_IF_ERROR(engine::PersistSlot(*slot, record, tier->get(), [&](uint64_t bytes) {
        written += bytes;   // the tier's one thread calls this
        if (progress_) progress_(std::min(done + written, total), total);
      }));
      *outcome = "persisted";
    }
    return slot->Remove();   // it owes nothing any more
  }

  std::vector<SlotInfo> slots_;
  const RecoverOptions& options_;
  const Progress& progress_;
  RecoverReport* report_;
};

// `to` is a job folder, or a root that holds one folder a job; a folder that is empty or missing is the job's own when it
// has the job's name.
absl::StatusOr<std::string> FolderFor(const std::string& to, const std::string& job) {
  if (job.empty() || job.front() == '.' || job.find('/') != std::string::npos) {
    return Invalid(absl::StrFormat("job '%s' in RAM has a name that cannot be a folder; give its job folder as the place", job));
  }
  const std::string named = os::JoinPath(to, job);
  if (!os::Exists(to)) return os::BaseName(to) == job ? to : named;
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(to));
  switch (info.kind) {
    case PlaceKind::kJobFolder:
      return info.path;
    case PlaceKind::kRoot:
      return os::JoinPath(info.path, job);
    case PlaceKind::kEmptyFolder:
      return os::BaseName(info.path) == job ? info.path : os::JoinPath(info.path, job);
    default:
      return Invalid(absl::StrFormat("--to %s is neither a job folder nor a root of some", to));
  }
}

}  // namespace

absl::StatusOr<RecoverReport> RecoverPlace(const std::string& place, const RecoverOptions& options, const Progress& progress) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  if (info.kind != PlaceKind::kRam && !options.to.empty()) {
    return Invalid("--to goes with ram:[JOB]; a folder as the place is itself where its job is persisted");
  }
  switch (info.kind) {
    case PlaceKind::kRam:
    case PlaceKind::kJobFolder:
    case PlaceKind::kRoot:
      break;
    case PlaceKind::kEmptyFolder:
      return Unsupported(absl::StrFormat("%s holds nothing of neve; `neve recover ram:JOB --to %s` persists a job there", place,
                                         place));
    case PlaceKind::kForeign:
      return Unsupported(absl::StrFormat("%s is %s", place, info.what));
    case PlaceKind::kImageFile:
    case PlaceKind::kStepFolder:
      return Unsupported(absl::StrFormat("%s is one save, not a job folder", place));
  }
  std::vector<SlotInfo> slots;
  if (absl::StatusOr<std::string> folder = slot::RamFolder(/*create=*/false); folder.ok()) {
    NEVE_ASSIGN_OR_RETURN(slots, slot::Scan(*folder, Uid{}));
  } else if (folder.status().code() != absl::StatusCode::kNotFound) {
    return Unavailable(std::string(folder.status().message()), ErrnoOf(folder.status()));
  }
  if (info.kind == PlaceKind::kRam) NEVE_RETURN_IF_ERROR(engine::SlotsOf(info).status());   // a name that is not there
  RecoverReport report;
  Recovery recovery(std::move(slots), options, progress, &report);
  if (info.kind == PlaceKind::kRam) {
    recovery.ReportDamaged(info.job);
    if (options.to.empty()) {
      recovery.ListOnly(info.job);
      return report;
    }
    for (const std::string& job : recovery.Jobs()) {
      if (!info.job.empty() && job != info.job) continue;
      const absl::StatusOr<std::string> folder = FolderFor(options.to, job);
      const absl::Status status = folder.ok() ? recovery.Into(*folder, job) : folder.status();
      if (!status.ok() && !info.job.empty()) return status;
      recovery.Note(job, status);
    }
    return report;
  }
  for (const std::string& folder : engine::JobFoldersOf(info)) {
    const absl::Status status = recovery.Into(folder, os::BaseName(folder));
    if (!status.ok() && info.kind == PlaceKind::kJobFolder) return status;
    recovery.Note(os::BaseName(folder), status);
  }
  return report;
}

}  // namespace neve
