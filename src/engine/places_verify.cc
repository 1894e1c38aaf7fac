#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/places_folder.h"
#include "engine/places_ram.h"
#include "engine/places_verify_image.h"
#include "engine/verify_contents.h"
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

class Verifier {
 public:
  Verifier(VerifyReport* report, const Progress& progress)
      : report_(report), progress_(progress), crew_(sync::Crew::Create(1)) {}

  absl::Status AddFile(const PlaceInfo& info) {
    NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::Stat(info.path));
    FileTask task{info.path, info.path, RecordPathOf(info.path), static_cast<uint64_t>(facts.st_size)};
    task.alone = true;
    if (!task.record_path.empty() && !os::Exists(task.record_path)) task.record_path.clear();
    if (task.record_path.empty()) report_->notes.push_back(info.path + " has no commit record: only its structure is checked");
    const std::optional<format::ShardName> shard = format::ParseShardName(os::BaseName(info.path));
    const std::optional<format::SaveName> save = format::ParseSaveName(os::BaseName(os::DirName(info.path)));
    if (shard.has_value() && save.has_value()) task.key = ImageKey{save->save, save->step, shard->rank, shard->world};
    files_.push_back(std::move(task));
    return absl::OkStatus();
  }

  void AddStep(const std::string& path, const std::string& place, const Uid& uid) {
    const absl::StatusOr<FoundStep> step = engine::ReadStep(path);
    if (!step.ok()) {
      if (step.status().code() != absl::StatusCode::kNotFound) Unreadable(place, path, step.status());
      return;
    }
    uint64_t records = 0, world = 0;
    for (const FoundImage& image : step->images) {
      world = std::max<uint64_t>(world, image.world);
      if (image.record_path.empty()) {
        report_->notes.push_back(image.image_path + " has no commit record: it is not part of any save");
        continue;
      }
      ++records;
      if (image.image_path.empty()) {
        Structural("missing", place, image.record_path, "the record is there, its image is not");
        continue;
      }
      FileTask task{place, image.image_path, image.record_path, image.image_bytes, std::nullopt, uid, false};
      if (step->name.has_value()) task.key = ImageKey{step->name->save, step->name->step, image.rank, image.world};
      files_.push_back(std::move(task));
    }
    if (step->images.empty()) {
      report_->notes.push_back(path + " holds no image and no record");
    } else if (records < world) {
      report_->notes.push_back(absl::StrFormat("%s is not a complete save: %d of %d ranks have a record", path, records, world));
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
      AddStep(step_path, path, job.uid);
    }
    return found;
  }

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
      found = true;
      slots_.push_back(info_of_slot);
    }
    return found;
  }

  absl::Status Run() {
    for (const FileTask& task : files_) total_ += task.bytes;
    for (const slot::SlotInfo& found : slots_) total_ += found.image_bytes;
    for (const FileTask& task : files_) NEVE_RETURN_IF_ERROR(CheckFile(task));
    for (const slot::SlotInfo& found : slots_) NEVE_RETURN_IF_ERROR(CheckSlot(found));
    return absl::OkStatus();
  }

 private:
  void Structural(std::string code, const std::string& place, const std::string& file, std::string message) {
    engine::AddProblem(report_, Problem{std::move(code), place, file, "", -1, -1, std::move(message)}, true);
  }

  void Unreadable(const std::string& place, const std::string& file, const absl::Status& status) {
    report_->worst = engine::Worse(report_->worst, status);
    engine::AddProblem(report_, Problem{"io", place, file, "", -1, -1, std::string(status.message())}, false);
  }

  void Advance(uint64_t bytes) {
    const uint64_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (progress_) progress_(std::min(done, total_), total_);
  }

  // None when there is none or it was refused, which is reported.
  std::optional<format::CommitRecord> CheckedRecord(const FileTask& task) {
    absl::StatusOr<format::CommitRecord> record = engine::ReadRecord(task.record_path);
    if (!record.ok()) {
      if (record.status().code() == absl::StatusCode::kUnavailable) {
        Unreadable(task.place, task.record_path, record.status());
      } else {
        Structural("record", task.place, task.record_path, std::string(record.status().message()));
      }
      return std::nullopt;
    }
    if (task.key.has_value() && record->key != *task.key) {
      Structural("identity", task.place, task.record_path,
                 absl::StrFormat("the record is of step %d, save %s, rank %d of %d; its name says step %d, save %s, rank %d of "
                                 "%d",
                                 record->key.step, record->key.save.ToString(), record->key.rank, record->key.world,
                                 task.key->step, task.key->save.ToString(), task.key->rank, task.key->world));
    }
    if (task.uid.known() && record->uid != task.uid) {
      Structural("identity", task.place, task.record_path,
                 absl::StrFormat("the record belongs to a job of uid %s, the folder to %s", record->uid.ToHex(),
                                 task.uid.ToHex()));
    }
    return *std::move(record);
  }

  absl::Status CheckFile(const FileTask& task) {
    std::optional<format::CommitRecord> record;
    if (!task.record_path.empty()) {
      if (!os::Exists(task.record_path)) return absl::OkStatus();   // retired since we listed it
      record = CheckedRecord(task);
    }
    absl::StatusOr<os::File> file = os::Open(task.path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!file.ok() && file.status().code() == absl::StatusCode::kNotFound && !task.record_path.empty() &&
        !os::Exists(task.record_path)) {
      return absl::OkStatus();
    }
    const absl::StatusOr<struct ::stat> facts = file.ok() ? os::StatOpen(*file) : absl::StatusOr<struct ::stat>(file.status());
    if (!facts.ok()) {
      Unreadable(task.place, task.path, facts.status());
      return absl::OkStatus();
    }
    if (!S_ISREG(facts->st_mode)) {
      Structural("missing", task.place, task.path, "not a regular file");
      return absl::OkStatus();
    }
    if (!record.has_value() && !task.alone) return absl::OkStatus();   // the refused record is the finding
    engine::ImageToVerify image{task.place, task.path, static_cast<uint64_t>(facts->st_size)};
    image.read = [&file](uint64_t offset, std::span<std::byte> target) { return os::ReadAt(*file, offset, target); };
    image.record = std::move(record);
    const absl::Status status = engine::VerifyImage(image, crew_.get(), [this](uint64_t n) { Advance(n); }, report_);
    return status.ok() ? status : Annotate(status, task.path);
  }

  // The contents of a slot may be replaced by its owner while they are read: then what was found says nothing.
  absl::Status CheckSlot(const slot::SlotInfo& info) {
    absl::StatusOr<std::unique_ptr<slot::Slot>> open = slot::Slot::OpenForReading(info.path);
    if (!open.ok()) {
      if (IsDamaged(open.status())) {
        Structural("record", "ram:" + info.job, info.path, std::string(open.status().message()));
      } else {
        report_->notes.push_back(std::string(open.status().message()));
      }
      return absl::OkStatus();
    }
    const slot::Slot& slot = **open;
    const uint64_t generation = slot.generation();
    absl::StatusOr<format::CommitRecord> record = slot.Record();
    if (!record.ok()) {
      if (slot.generation() == generation) {
        Structural("record", "ram:" + info.job, info.path, std::string(record.status().message()));
      }
      return absl::OkStatus();
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
      return absl::OkStatus();
    }
    if (!status.ok()) Structural("header", "ram:" + info.job, info.path, std::string(status.message()));
    if (!sealed) report_->notes.push_back(info.path + " was captured and not sealed: it has no digests yet");
    report_->checked_bytes += found.checked_bytes;
    report_->worst = engine::Worse(report_->worst, found.worst);
    for (Problem& problem : found.problems) engine::AddProblem(report_, std::move(problem), found.structural);
    return absl::OkStatus();
  }

  VerifyReport* report_;
  const Progress& progress_;
  std::unique_ptr<sync::Crew> crew_;
  std::vector<FileTask> files_;
  std::vector<slot::SlotInfo> slots_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyPlace(const std::string& place, int64_t step, const Progress& progress) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(place));
  const bool one_checkpoint = info.kind == PlaceKind::kImageFile || info.kind == PlaceKind::kForeign;
  if (one_checkpoint && engine::IsForeignContents(info.path)) return engine::VerifyContents(info.path, progress);
  VerifyReport report;
  Verifier verifier(&report, progress);
  bool found = step < 0;
  switch (info.kind) {
    case PlaceKind::kImageFile:
      NEVE_RETURN_IF_ERROR(verifier.AddFile(info));
      found = true;
      break;
    case PlaceKind::kStepFolder: {
      Uid uid;
      if (const absl::StatusOr<FoundJob> job = engine::ReadJob(os::DirName(info.path)); job.ok()) uid = job->uid;
      verifier.AddStep(info.path, info.path, uid);
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
  NEVE_RETURN_IF_ERROR(verifier.Run());
  return report;
}

}  // namespace neve
