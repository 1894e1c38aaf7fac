#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/places_choose.h"
#include "engine/places_folder.h"
#include "engine/places_ram.h"
#include "engine/places_verify_image.h"
#include "engine/places_verify_pieces.h"
#include "engine/verify_contents.h"
#include "format/global_image.h"
#include "format/own_digests.h"
#include "neve/places.h"
#include "slot/slot.h"

namespace neve {
namespace {

using engine::FoundImage;
using engine::FoundJob;
using engine::FoundStep;

constexpr std::string_view kImageSuffix = ".safetensors", kRecordSuffix = ".commit.json";

// The record of `model.safetensors` would be `model.commit.json`; "" when the file has another ending.
std::string RecordPathOf(const std::string& image_path) {
  if (!image_path.ends_with(kImageSuffix)) return "";
  return image_path.substr(0, image_path.size() - kImageSuffix.size()) + std::string(kRecordSuffix);
}

struct FileTask {
  std::string place, path, record_path;     // record_path "": none
  uint64_t bytes = 0;
  std::optional<ImageKey> key;              // what the names say
  Uid uid;
  bool alone = false;                       // given by path: then also an image without a record is looked at
};

// A save of several ranks, all of them there: files [first, first + world).
struct SaveTask {
  std::string place, path;
  size_t first = 0, world = 0;
};

class Verifier {
 public:
  Verifier(VerifyReport* report, const Progress& progress, int64_t rank)
      : report_(report), progress_(progress), rank_(rank), crew_(sync::Crew::Create(1)) {}

  absl::Status AddFile(const PlaceInfo& info) {
    NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::Stat(info.path));
    FileTask task{info.path, info.path, RecordPathOf(info.path), static_cast<uint64_t>(facts.st_size)};
    task.alone = true;
    if (!task.record_path.empty() && !os::Exists(task.record_path)) task.record_path.clear();
    const std::optional<format::ShardName> shard = format::ParseShardName(os::BaseName(info.path));
    const std::optional<format::SaveName> save = format::ParseSaveName(os::BaseName(os::DirName(info.path)));
    if (shard.has_value() && save.has_value()) task.key = ImageKey{save->save, save->step, shard->rank, shard->world};
    files_.push_back(std::move(task));
    return absl::OkStatus();
  }

  // asked: the save was asked for by itself.
  void AddStep(const std::string& path, const std::string& place, const Uid& uid, bool asked) {
    const absl::StatusOr<FoundStep> step = engine::ReadStep(path);
    if (!step.ok()) {
      if (step.status().code() != absl::StatusCode::kNotFound) Unreadable(place, path, step.status());
      return;
    }
    uint64_t world = 0;
    std::vector<uint32_t> recorded;
    const size_t first = files_.size();
    bool one_world = true;
    for (const FoundImage& image : step->images) {
      if (rank_ >= 0 && image.rank != static_cast<uint64_t>(rank_)) continue;
      found_ = true;
      one_world = one_world && (world == 0 || world == image.world);
      world = std::max<uint64_t>(world, image.world);
      if (image.record_path.empty()) {
        report_->notes.push_back(image.image_path + " has no commit record: it is not part of any save");
        continue;
      }
      recorded.push_back(image.rank);
      if (image.image_path.empty()) {
        Structural("missing", place, image.record_path, "the record is there, its image is not");
        continue;
      }
      FileTask task{place, image.image_path, image.record_path, image.image_bytes, std::nullopt, uid, false};
      if (step->name.has_value()) task.key = ImageKey{step->name->save, step->name->step, image.rank, image.world};
      files_.push_back(std::move(task));
    }
    if (step->images.empty()) {
      if (asked) {
        Structural("missing", place, path, "it holds no image and no record");
      } else {
        report_->notes.push_back(path + " holds no image and no record");
      }
      return;
    }
    if (rank_ >= 0 || !one_world) return;
    if (recorded.size() < world) {
      ReportMissing(*step, place, recorded, asked);
    } else if (world > 1 && files_.size() - first == world) {
      saves_.push_back({place, path, first, world});
    }
  }

  // Returns whether a save of that step was there (any, for step < 0).
  absl::StatusOr<bool> AddJob(const std::string& path, int64_t step) {
    NEVE_ASSIGN_OR_RETURN(const FoundJob job, engine::ReadJob(path));
    bool found = step < 0;
    for (const std::string& damage : job.damages) Structural("record", path, path, damage);
    if (job.damage.code() == absl::StatusCode::kUnavailable) report_->worst = engine::Worse(report_->worst, job.damage);
    for (const std::string& step_path : job.step_paths) {
      const std::optional<format::SaveName> name = format::ParseSaveName(os::BaseName(step_path));
      if (step >= 0 && name->step != static_cast<uint64_t>(step)) continue;
      found = true;
      AddStep(step_path, path, job.uid, step >= 0);
    }
    return found;
  }

  bool found() const { return found_; }   // an image or a record, of that rank where one is asked for

  absl::StatusOr<bool> AddRam(const PlaceInfo& info, int64_t step) {
    NEVE_ASSIGN_OR_RETURN(const std::vector<slot::SlotInfo> slots, engine::SlotsOf(info));
    if (slots.empty()) report_->notes.push_back("no slot is in RAM");
    bool found = step < 0;
    for (const slot::SlotInfo& info_of_slot : slots) {
      if (!info_of_slot.status.ok()) {
        Structural("record", "ram:", info_of_slot.path, std::string(info_of_slot.status.message()));
        continue;
      }
      if (info_of_slot.state != slot::State::kSealed && info_of_slot.state != slot::State::kCaptured) continue;
      if (step >= 0 && info_of_slot.key.step != static_cast<uint64_t>(step)) continue;
      if (rank_ >= 0 && info_of_slot.key.rank != static_cast<uint64_t>(rank_)) continue;
      found = found_ = true;
      slots_.push_back(info_of_slot);
    }
    return found;
  }

  absl::Status Run() {
    for (const FileTask& task : files_) total_ += task.bytes;
    for (const slot::SlotInfo& found : slots_) total_ += found.image_bytes;
    std::vector<FileResult> results;
    for (const FileTask& task : files_) {
      VerifyReport found;   // of this file alone, so that it is known whether it is sound
      NEVE_ASSIGN_OR_RETURN(const bool there, CheckFile(task, &found));
      results.push_back({there, found.problems.empty(), !found.structural && found.worst.ok()});
      Take(std::move(found));
    }
    for (const SaveTask& save : saves_) CheckSave(save, std::span(results).subspan(save.first, save.world));
    results.clear();
    for (const slot::SlotInfo& found : slots_) {
      NEVE_ASSIGN_OR_RETURN(const FileResult result, CheckSlot(found));
      results.push_back(result);
    }
    if (rank_ < 0) CheckSlots(results);
    return absl::OkStatus();
  }

 private:
  struct FileResult {
    bool there, good, sound;                // sound: at most bytes differ from their digests
  };

  void Structural(std::string code, const std::string& place, const std::string& file, std::string message) {
    Structural(report_, std::move(code), place, file, std::move(message));
  }
  static void Structural(VerifyReport* report, std::string code, const std::string& place, const std::string& file,
                         std::string message) {
    engine::AddProblem(report, Problem{std::move(code), place, file, "", -1, -1, std::move(message)}, true);
  }

  void Unreadable(const std::string& place, const std::string& file, const absl::Status& status) {
    Unreadable(report_, place, file, status);
  }
  static void Unreadable(VerifyReport* report, const std::string& place, const std::string& file, const absl::Status& status) {
    report->worst = engine::Worse(report->worst, status);
    engine::AddProblem(report, Problem{"io", place, file, "", -1, -1, std::string(status.message())}, false);
  }

  void Take(VerifyReport found) {
    report_->checked_bytes += found.checked_bytes;
    report_->worst = engine::Worse(report_->worst, found.worst);
    report_->notes.insert(report_->notes.end(), found.notes.begin(), found.notes.end());
    for (Problem& problem : found.problems) engine::AddProblem(report_, std::move(problem), found.structural);
  }

  // recorded: the ranks that have a record. An image without one is not damage, whoever asks.
  void ReportMissing(const FoundStep& step, const std::string& place, std::span<const uint32_t> recorded, bool asked) {
    const uint32_t world = step.images.front().world;
    std::vector<uint32_t> without;
    for (uint32_t rank = 0; rank < world; ++rank) {
      if (std::find(recorded.begin(), recorded.end(), rank) == recorded.end()) without.push_back(rank);
    }
    const std::string text = absl::StrFormat("not a complete save: %d of %d ranks have a record, %s not", recorded.size(), world,
                                             format::RanksText(without));
    if (const std::vector<uint32_t> missing = engine::MissingRanks(step); asked && !missing.empty()) {
      Structural("missing", place, step.path, absl::StrFormat("%s; of %s nothing is here", text, format::RanksText(missing)));
    } else {
      report_->notes.push_back(step.path + " is " + text);
    }
  }

  // Ranks against each other.
  void CheckSave(const SaveTask& task, std::span<const FileResult> results) {
    engine::SaveToVerify save{task.place, task.path, {}};
    bool all_there = true, all_sound = true;
    for (size_t i = 0; i < results.size(); ++i) {
      all_there = all_there && results[i].there;
      all_sound = all_sound && results[i].sound;
      save.ranks.push_back({[path = files_[task.first + i].path, crew = crew_] { return OpenRankFile(path, crew); }, results[i].good});
    }
    if (!all_there) return;                 // retired since we listed it
    CheckRanks(save, all_sound);
  }

  // The images of a save in RAM, once all its ranks' are here and sealed.
  void CheckSlots(std::span<const FileResult> results) {
    std::map<std::pair<std::string, SaveId>, std::map<uint32_t, size_t>> saves;   // of each uid: slots, by rank
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (results[i].there && slots_[i].key.world > 1) saves[{slots_[i].uid.ToHex(), slots_[i].key.save}].emplace(slots_[i].key.rank, i);
    }
    for (const auto& [id, ranks] : saves) {
      const slot::SlotInfo& first = slots_[ranks.begin()->second];
      if (ranks.size() != first.key.world || ranks.rbegin()->first + 1 != first.key.world) continue;
      const std::string place = "ram:" + first.job;
      engine::SaveToVerify save{place, absl::StrFormat("%s step %d (save %s)", place, first.key.step, id.second.ToString()), {}};
      bool all_sound = true;
      std::vector<std::shared_ptr<const slot::Slot>> open(ranks.size());
      for (const auto& [rank, index] : ranks) {
        all_sound = all_sound && results[index].sound;
        save.ranks.push_back({[path = slots_[index].path, crew = crew_, slot = &open[rank]] {
                                return engine::OpenSlotImage(path, crew, slot);
                              },
                              results[index].good});
      }
      VerifyReport found;
      std::swap(*report_, found);
      CheckRanks(save, all_sound);
      std::swap(*report_, found);
      bool same = true;
      for (const auto& [rank, index] : ranks) same = same && open[rank] != nullptr && open[rank]->generation() == slots_[index].generation;
      if (same || !all_sound) {
        Take(std::move(found));
      } else {
        report_->notes.push_back(save.path + " was filled anew while its ranks were compared");
      }
    }
  }

  // Ranks against each other. all_sound: each image by itself.
  void CheckRanks(const engine::SaveToVerify& save, bool all_sound) {
    if (!all_sound) {
      report_->notes.push_back(save.path + ": an image is damaged, so that the ranks' pieces are not checked against each other");
      return;
    }
    const absl::Status status = engine::VerifyPieces(save, crew_, report_);
    if (status.ok()) return;
    if (absl::IsDataLoss(status) || absl::IsNotFound(status)) {   // a header that was told already; or retired by now
      report_->notes.push_back(absl::StrFormat("%s: the ranks' pieces are not checked against each other: %s", save.path,
                                               std::string(status.message())));
    } else if (IsDamaged(status)) {
      Structural("pieces", save.place, save.path, std::string(status.message()));
    } else {
      Unreadable(save.place, save.path, status);
    }
  }

  void Advance(uint64_t bytes) {
    const uint64_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (progress_) progress_(std::min(done, total_), total_);
  }

  // None when there is none or it was refused, which is reported.
  static std::optional<format::CommitRecord> CheckedRecord(const FileTask& task, VerifyReport* report) {
    absl::StatusOr<format::CommitRecord> record = engine::ReadRecord(task.record_path);
    if (!record.ok()) {
      if (record.status().code() == absl::StatusCode::kUnavailable) {
        Unreadable(report, task.place, task.record_path, record.status());
      } else {
        Structural(report, "record", task.place, task.record_path, std::string(record.status().message()));
      }
      return std::nullopt;
    }
    if (task.key.has_value() && record->key != *task.key) {
      Structural(report, "identity", task.place, task.record_path,
                 absl::StrFormat("the record is of step %d, save %s, rank %d of %d; its name says step %d, save %s, rank %d of "
                                 "%d",
                                 record->key.step, record->key.save.ToString(), record->key.rank, record->key.world,
                                 task.key->step, task.key->save.ToString(), task.key->rank, task.key->world));
    }
    if (task.uid.known() && record->uid != task.uid) {
      Structural(report, "identity", task.place, task.record_path,
                 absl::StrFormat("the record belongs to a job of uid %s, the folder to %s", record->uid.ToHex(),
                                 task.uid.ToHex()));
    }
    return *std::move(record);
  }

  // Those of a single file, where its header is good enough to have any. What is wrong with them is told by the report.
  static std::optional<format::OwnDigests> OwnDigestsOf(const os::File& file, uint64_t bytes, const FileTask& task, VerifyReport* report) {
    std::string head(std::min<uint64_t>(bytes, 512), '\0');
    if (!os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))).ok()) return std::nullopt;   // told where it is read again
    const absl::StatusOr<uint64_t> needed = format::HeaderBytesNeeded(head, bytes);
    if (!needed.ok()) return std::nullopt;
    head.resize(*needed);
    if (!os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))).ok()) return std::nullopt;
    absl::StatusOr<std::optional<format::OwnDigests>> own = format::ReadOwnDigests(head, bytes);
    if (own.ok()) return *std::move(own);
    Structural(report, "header", task.place, task.path, std::string(own.status().message()));
    return std::nullopt;
  }

  // Whether it is still there; what is wrong is told by the report.
  absl::StatusOr<bool> CheckFile(const FileTask& task, VerifyReport* report) {
    std::optional<format::CommitRecord> record;
    if (!task.record_path.empty()) {
      if (!os::Exists(task.record_path)) return false;   // retired since we listed it
      record = CheckedRecord(task, report);
    }
    absl::StatusOr<os::File> file = os::Open(task.path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!file.ok() && file.status().code() == absl::StatusCode::kNotFound && !task.record_path.empty() &&
        !os::Exists(task.record_path)) {
      return false;
    }
    const absl::StatusOr<struct ::stat> facts = file.ok() ? os::StatOpen(*file) : absl::StatusOr<struct ::stat>(file.status());
    if (!facts.ok()) {
      Unreadable(report, task.place, task.path, facts.status());
      return true;
    }
    if (!S_ISREG(facts->st_mode)) {
      Structural(report, "missing", task.place, task.path, "not a regular file");
      return true;
    }
    if (!record.has_value() && !task.alone) return true;   // the refused record is the finding
    engine::ImageToVerify image{task.place, task.path, static_cast<uint64_t>(facts->st_size)};
    std::optional<format::OwnDigests> own;
    if (!record.has_value()) own = OwnDigestsOf(*file, image.bytes, task, report);
    image.read = [&file, &own](uint64_t offset, std::span<std::byte> target) {
      const absl::Status status = os::ReadAt(*file, offset, target);
      if (status.ok() && own.has_value()) own->Mask(offset, target);
      return status;
    };
    if (own.has_value()) record = own->record;
    if (!record.has_value() && task.record_path.empty()) {
      report->notes.push_back(task.path + " has no commit record and no digests of its own: only its structure is checked");
    }
    image.record = std::move(record);
    const absl::Status status = engine::VerifyImage(image, crew_.get(), [this](uint64_t n) { Advance(n); }, report);
    if (!status.ok()) return Annotate(status, task.path);
    return true;
  }

  // The contents of a slot may be replaced by its owner while they are read: then what was found says nothing.
  // Whether it is there and sealed, and what it is worth.
  absl::StatusOr<FileResult> CheckSlot(const slot::SlotInfo& info) {
    const FileResult none{false, false, false};
    absl::StatusOr<std::unique_ptr<slot::Slot>> open = slot::Slot::OpenForReading(info.path);
    if (!open.ok()) {
      if (IsDamaged(open.status())) {
        Structural("record", "ram:" + info.job, info.path, std::string(open.status().message()));
      } else {
        report_->notes.push_back(std::string(open.status().message()));
      }
      return none;
    }
    const slot::Slot& slot = **open;
    const uint64_t generation = slot.generation();
    absl::StatusOr<format::CommitRecord> record = slot.Record();
    if (!record.ok()) {
      if (slot.generation() == generation) {
        Structural("record", "ram:" + info.job, info.path, std::string(record.status().message()));
      }
      return none;
    }
    const std::span<const std::byte> bytes = slot.image().first(std::min<uint64_t>(record->image_bytes, slot.image().size()));
    engine::ImageToVerify image{"ram:" + info.job, info.path, bytes.size()};
    image.read = [bytes](uint64_t offset, std::span<std::byte> target) {
      if (offset > bytes.size() || target.size() > bytes.size() - offset) {
        return Damaged(absl::StrFormat("bytes [%d, %d) lie outside of the image of %d bytes", offset, offset + target.size(),
                                       bytes.size()));
      }
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), target.size(), target.begin());
      return absl::OkStatus();
    };
    const bool sealed = !record->digests.empty() || record->image_bytes == 0;
    if (sealed) image.record = *std::move(record);
    VerifyReport found;
    const absl::Status status = engine::VerifyImage(image, crew_.get(), [this](uint64_t n) { Advance(n); }, &found);
    if (slot.generation() != generation) {
      report_->notes.push_back(info.path + " was filled anew while it was read");
      return none;
    }
    if (!status.ok()) Structural("header", "ram:" + info.job, info.path, std::string(status.message()));
    const FileResult result{sealed && status.ok(), found.problems.empty(), !found.structural && found.worst.ok()};
    if (!sealed) report_->notes.push_back(info.path + " was captured and not sealed: it has no digests yet");
    Take(std::move(found));
    return result;
  }

  VerifyReport* report_;
  const Progress& progress_;
  const int64_t rank_;
  std::shared_ptr<sync::Crew> crew_;
  std::vector<FileTask> files_;
  std::vector<SaveTask> saves_;
  bool found_ = false;
  std::vector<slot::SlotInfo> slots_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyPlace(const std::string& place, int64_t step, const Progress& progress, int64_t rank) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  const bool one_checkpoint = info.kind == PlaceKind::kImageFile || info.kind == PlaceKind::kForeign;
  NEVE_RETURN_IF_ERROR(engine::CheckSelection(info, place, step, rank));
  if (one_checkpoint && engine::IsForeignContents(info.path)) return engine::VerifyContents(info.path, progress);
  VerifyReport report;
  Verifier verifier(&report, progress, rank);
  bool found = step < 0;
  switch (info.kind) {
    case PlaceKind::kImageFile:
      NEVE_RETURN_IF_ERROR(verifier.AddFile(info));
      found = true;
      break;
    case PlaceKind::kStepFolder: {
      Uid uid;
      if (const absl::StatusOr<FoundJob> job = engine::ReadJob(os::DirName(info.path)); job.ok()) uid = job->uid;
      verifier.AddStep(info.path, info.path, uid, /*asked=*/true);
      found = true;
      break;
    }
    case PlaceKind::kJobFolder:
    case PlaceKind::kRoot:
      for (const std::string& folder : engine::JobFoldersOf(info)) {
        NEVE_ASSIGN_OR_RETURN(const bool here, verifier.AddJob(folder, step));
        found = found || here;
      }
      break;
    case PlaceKind::kRam: {
      NEVE_ASSIGN_OR_RETURN(const bool here, verifier.AddRam(info, step));
      found = found || here;
      break;
    }
    case PlaceKind::kEmptyFolder:
      return Unsupported(absl::StrFormat("%s holds nothing of neve", place));
    case PlaceKind::kForeign:
      return Unsupported(absl::StrFormat("%s is %s", place, info.what));
  }
  if (!found) return NotFound(absl::StrFormat("%s holds no save of step %d", place, step));
  const bool jobs = info.kind == PlaceKind::kJobFolder || info.kind == PlaceKind::kRoot;
  if ((jobs || rank >= 0) && !verifier.found() && report.problems.empty() && report.worst.ok()) {
    if (rank >= 0) return NotFound(absl::StrFormat("%s holds no image of rank %d", place, rank));
    return NotFound(absl::StrFormat("%s holds no save: there is nothing to verify", place));
  }
  NEVE_RETURN_IF_ERROR(verifier.Run());
  return report;
}

}  // namespace neve
