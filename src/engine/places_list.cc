#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "catalog/catalog.h"
#include "engine/places_folder.h"
#include "engine/save_info.h"
#include "neve/places.h"
#include "slot/slot.h"

namespace neve {
namespace {

using engine::FoundImage;
using engine::FoundJob;
using engine::FoundStep;

// What the records of one save say beside names and sizes.
struct RecordFacts {
  Uid uid;
  int64_t time = 0;
  Tags tags;
  std::string place;
  std::string damage;      // the first thing wrong with a record or the size of an image
};

// A record that cannot be trusted is one that cannot be read: its save is damaged, whatever its image holds.
absl::Status AsDamaged(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDataLoss ? Damaged(std::string(status.message())) : status;
}

absl::Status CheckShare(const FoundImage& image, const ImageKey& key, const format::CommitRecord& record, const Uid& uid) {
  if (record.key != key) {
    return Damaged(absl::StrFormat("%s is the record of step %d, save %s, rank %d of %d; its name says otherwise",
                                   image.record_path, record.key.step, record.key.save.ToString(), record.key.rank,
                                   record.key.world));
  }
  if (uid.known() && record.uid != uid) {
    return Damaged(absl::StrFormat("%s belongs to a job of uid %s, this folder to %s", image.record_path, record.uid.ToHex(),
                                   uid.ToHex()));
  }
  if (image.image_path.empty()) return Damaged(absl::StrFormat("%s: the record is there, its image is not", image.record_path));
  if (image.image_bytes != record.image_bytes) {
    return Damaged(absl::StrFormat("%s has %d bytes, its record says %d", image.image_path, image.image_bytes,
                                   record.image_bytes));
  }
  return absl::OkStatus();
}

class Lister {
 public:
  explicit Lister(ListReport* report) : report_(report) {}

  void AddFolder(const std::string& path) {
    absl::StatusOr<FoundJob> job = engine::ReadJob(path);
    if (!job.ok()) return Met(job.status());
    report_->worst = engine::Worse(report_->worst, job->damage);
    report_->notes.insert(report_->notes.end(), job->damages.begin(), job->damages.end());
    storage::Listing listing;
    std::map<SaveId, RecordFacts> facts;
    for (const std::string& step_path : job->step_paths) {
      const absl::StatusOr<FoundStep> step = engine::ReadStep(step_path);
      if (!step.ok()) {
        if (step.status().code() != absl::StatusCode::kNotFound) Met(step.status());   // else retired while we looked
        continue;
      }
      AddStep(*step, job->uid, &listing, &facts);
    }
    Report(job->name, job->uid, TierKind::kFile, std::move(listing), facts);
    NoteRam(*job);
  }

  void AddStepFolder(const std::string& path) {
    const absl::StatusOr<FoundStep> step = engine::ReadStep(path);
    if (!step.ok()) return Met(step.status());
    std::string job_name = os::BaseName(os::DirName(path));
    Uid uid;
    if (const absl::StatusOr<FoundJob> job = engine::ReadJob(os::DirName(path)); job.ok() && job->uid.known()) {
      job_name = job->name;
      uid = job->uid;
    }
    storage::Listing listing;
    std::map<SaveId, RecordFacts> facts;
    AddStep(*step, uid, &listing, &facts);
    Report(job_name, uid, TierKind::kFile, std::move(listing), facts);
  }

  absl::Status AddRam(const PlaceInfo& info) {
    if (info.path.empty()) return absl::OkStatus();
    NEVE_ASSIGN_OR_RETURN(const std::vector<slot::SlotInfo> slots, slot::Scan(info.path, Uid{}));
    struct Job {
      storage::Listing listing;
      std::map<SaveId, RecordFacts> facts;
    };
    std::map<std::pair<std::string, Uid>, Job> jobs;
    for (const slot::SlotInfo& found : slots) {
      if (!info.job.empty() && found.job != info.job) continue;
      if (!found.status.ok()) {
        Met(AsDamaged(found.status));
        continue;
      }
      const bool offered = found.state == slot::State::kSealed || (found.state == slot::State::kCaptured && !found.owner_alive);
      if (!offered) continue;
      Job& job = jobs[{found.job, found.uid}];
      storage::ImageEntry entry{found.key, true, true, found.image_bytes, found.file_bytes, false, found.path};
      RecordFacts& facts = job.facts[found.key.save];
      facts.uid = found.uid;
      facts.time = found.time;
      facts.place = "ram:" + found.job;
      if (const auto open = slot::Slot::OpenForReading(found.path); open.ok()) {
        if (const auto record = (*open)->Record(); record.ok()) facts.tags = record->tags;
      }
      job.listing.images.push_back(std::move(entry));
    }
    for (auto& [name, job] : jobs) Report(name.first, name.second, TierKind::kRam, std::move(job.listing), job.facts);
    return absl::OkStatus();
  }

 private:
  void Met(const absl::Status& status) {
    report_->worst = engine::Worse(report_->worst, status);
    report_->notes.push_back(std::string(status.message()));
  }

  void AddStep(const FoundStep& step, const Uid& uid, storage::Listing* listing, std::map<SaveId, RecordFacts>* all_facts) {
    if (step.images.empty()) report_->notes.push_back(step.path + " holds no image and no record");
    for (const FoundImage& image : step.images) {
      absl::StatusOr<format::CommitRecord> record = NotFound("no record");
      if (!image.record_path.empty()) record = engine::ReadRecord(image.record_path);
      ImageKey key{{}, 0, image.rank, image.world};
      if (step.name.has_value()) {
        key.save = step.name->save;
        key.step = step.name->step;
      } else if (record.ok()) {
        key.save = record->key.save;
        key.step = record->key.step;
      } else {
        report_->notes.push_back((image.image_path.empty() ? image.record_path : image.image_path) +
                                 ": neither the folder's name nor a record tells the save");
        continue;
      }
      absl::Status status = image.record_path.empty() ? absl::OkStatus() : AsDamaged(record.status());
      if (record.ok()) status = CheckShare(image, key, *record, uid);
      RecordFacts& facts = (*all_facts)[key.save];
      facts.place = step.path;
      const bool good = record.ok() && status.ok();
      if (!status.ok()) {
        Met(status);
        if (facts.damage.empty()) facts.damage = std::string(status.message());
      }
      if (record.ok() && facts.time == 0) {
        facts.uid = record->uid;
        facts.time = record->time;
        facts.tags = record->tags;
      }
      listing->images.push_back(storage::ImageEntry{key, good, !image.image_path.empty(), image.image_bytes,
                                                    image.stored_bytes, step.pinned, step.path});
    }
  }

  void Report(const std::string& job, const Uid& uid, TierKind kind, storage::Listing listing,
              const std::map<SaveId, RecordFacts>& all_facts) {
    const catalog::TierListing tier{kind, "", absl::OkStatus(), std::move(listing)};
    const std::string name(Name(kind));
    for (const catalog::Save& save : catalog::GroupSaves(std::span(&tier, 1))) {
      SaveInfo info = engine::ToSaveInfo(save, std::span(&tier, 1), std::span(&name, 1));
      const RecordFacts& facts = all_facts.at(save.save);
      info.job = job;
      info.uid = uid.known() ? uid : facts.uid;
      info.time = facts.time;
      info.tags = facts.tags;
      info.tiers[name].place = facts.place;
      if (!save.complete && !facts.damage.empty()) info.reason = facts.damage;
      report_->saves.push_back(std::move(info));
    }
  }

  // What a killed job left in RAM is often newer than what the folder holds: say where it is.
  void NoteRam(const FoundJob& job) {
    if (!job.uid.known()) return;
    const absl::StatusOr<std::string> folder = slot::RamFolder(/*create=*/false);
    if (!folder.ok()) return;
    const absl::StatusOr<std::vector<slot::SlotInfo>> slots = slot::Scan(*folder, job.uid);
    if (!slots.ok()) return;
    const int64_t dead = std::count_if(slots->begin(), slots->end(), [](const slot::SlotInfo& found) {
      return found.status.ok() && !found.owner_alive &&
             (found.state == slot::State::kSealed || found.state == slot::State::kCaptured);
    });
    if (dead == 0) return;
    report_->notes.push_back(absl::StrFormat("%d image%s of an ended process of job %s lie%s in RAM: `neve ls ram:%s` shows, "
                                             "`neve recover %s` persists", dead, dead == 1 ? "" : "s", job.name,
                                             dead == 1 ? "s" : "", job.name, job.path));
  }

  ListReport* report_;
};

}  // namespace

absl::StatusOr<ListReport> ListSaves(const std::string& place) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  ListReport report;
  Lister lister(&report);
  switch (info.kind) {
    case PlaceKind::kImageFile:
      if (!format::ParseShardName(os::BaseName(info.path)).has_value()) {
        return Unsupported(absl::StrFormat("%s is a single file, not a folder of saves: `neve inspect` shows what is in it",
                                           place));
      }
      lister.AddStepFolder(os::DirName(info.path));
      break;
    case PlaceKind::kStepFolder:
      lister.AddStepFolder(info.path);
      break;
    case PlaceKind::kJobFolder:
    case PlaceKind::kRoot:
      for (const std::string& folder : engine::JobFoldersOf(info)) lister.AddFolder(folder);
      break;
    case PlaceKind::kRam:
      NEVE_RETURN_IF_ERROR(lister.AddRam(info));
      break;
    case PlaceKind::kForeign:
      report.notes.push_back(absl::StrFormat("%s is %s", place, info.what));
      break;
    case PlaceKind::kEmptyFolder:
      break;
  }
  return report;
}

}  // namespace neve
