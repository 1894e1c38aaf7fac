#include "engine/places_folder.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/os/process.h"

namespace neve {
namespace engine {
namespace {

// Names of a world beyond this are not ours: a hostile name must not cost memory in proportion to the number in it.
constexpr uint32_t kWorldMax = 1u << 20;
constexpr uint64_t kNoteBytesMax = 1u << 20;   // job.json and claims are a few hundred bytes

bool IsTemporary(const std::string& name) { return name.rfind(format::kTemporaryPrefix, 0) == 0; }

bool IsNumber(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

template <typename T>
absl::StatusOr<T> ReadNote(const std::string& path, absl::StatusOr<T> (*decode)(std::string_view)) {
  NEVE_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(path, kNoteBytesMax));
  absl::StatusOr<T> note = decode(text);
  if (!note.ok()) return Annotate(note.status(), path);
  return note;
}

void AddDamage(FoundJob* job, const absl::Status& status) {
  job->damage = Worse(job->damage, status);
  job->damages.push_back(std::string(status.message()));
}

}  // namespace

absl::StatusOr<FoundStep> ReadStep(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<os::DirectoryEntry> entries, os::ListDirectory(path));
  FoundStep step;
  step.path = path;
  step.name = format::ParseSaveName(os::BaseName(path));
  std::map<std::pair<uint32_t, uint32_t>, FoundImage> images;
  for (const os::DirectoryEntry& entry : entries) {
    const std::string full = os::JoinPath(path, entry.name);
    if (entry.name == format::kPinnedFile) step.pinned = true;
    if (entry.name == format::kCompleteFile) step.has_complete_cache = true;
    if (IsTemporary(entry.name)) step.temporaries.push_back(full);
    const std::optional<format::ShardName> shard = format::ParseShardName(entry.name);
    if (!shard.has_value() || entry.is_directory) continue;
    if (shard->world > kWorldMax) continue;
    FoundImage& image = images[{shard->world, shard->rank}];
    image.rank = shard->rank;
    image.world = shard->world;
    if (shard->is_record) {
      image.record_path = full;
      continue;
    }
    const absl::StatusOr<struct ::stat> facts = os::Stat(full);
    if (!facts.ok() && facts.status().code() == absl::StatusCode::kNotFound) continue;   // retired meanwhile, or a dead link
    if (!facts.ok()) return facts.status();
    image.image_path = full;
    image.image_bytes = static_cast<uint64_t>(facts->st_size);
    image.stored_bytes = static_cast<uint64_t>(facts->st_blocks) * 512;
  }
  for (auto& [key, image] : images) {
    if (!image.image_path.empty() || !image.record_path.empty()) step.images.push_back(std::move(image));
  }
  return step;
}

absl::StatusOr<FoundJob> ReadJob(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(const std::vector<os::DirectoryEntry> entries, os::ListDirectory(path));
  FoundJob job;
  job.path = path;
  job.name = os::BaseName(path);
  for (const os::DirectoryEntry& entry : entries) {
    const std::string full = os::JoinPath(path, entry.name);
    if (entry.name == format::kJobFile) {
      absl::StatusOr<format::JobIdentity> identity = ReadNote(full, &format::DecodeJobIdentity);
      if (identity.ok()) {
        job.name = identity->name;
        job.uid = identity->uid;
      } else {
        AddDamage(&job, identity.status());
      }
    } else if (const std::optional<uint32_t> incarnation = format::ParseLifeName(entry.name)) {
      absl::StatusOr<format::LifeClaim> claim = ReadNote(full, &format::DecodeLifeClaim);
      FoundLife life{*incarnation, full, std::nullopt};
      if (claim.ok()) {
        life.claim = *std::move(claim);
      } else {
        AddDamage(&job, claim.status());
      }
      job.lives.push_back(std::move(life));
    } else if (format::ParseSaveName(entry.name).has_value()) {
      job.step_paths.push_back(full);
    } else if (IsTemporary(entry.name)) {
      job.temporaries.push_back(full);
    } else if (entry.name == format::kSpareFolder && entry.is_directory) {
      const absl::StatusOr<std::vector<os::DirectoryEntry>> spares = os::ListDirectory(full);
      if (!spares.ok()) continue;   // a cache: its loss or its modes change nothing
      for (const os::DirectoryEntry& spare : *spares) {
        if (!spare.is_directory && IsNumber(spare.name)) job.spares.push_back(os::JoinPath(full, spare.name));
      }
    }
  }
  std::sort(job.lives.begin(), job.lives.end(),
            [](const FoundLife& a, const FoundLife& b) { return a.incarnation < b.incarnation; });
  return job;
}

absl::StatusOr<format::CommitRecord> ReadRecord(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(path, format::kRecordBytesMax));
  absl::StatusOr<format::CommitRecord> record = format::DecodeRecord(text);
  if (!record.ok()) return Annotate(record.status(), path);
  return record;
}

bool LooksLikeStep(const std::vector<os::DirectoryEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const os::DirectoryEntry& entry) {
    return !entry.is_directory && format::ParseShardName(entry.name).has_value();
  });
}

bool LooksLikeJob(const std::vector<os::DirectoryEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const os::DirectoryEntry& entry) {
    return (!entry.is_directory && (entry.name == format::kJobFile || format::ParseLifeName(entry.name).has_value())) ||
           format::ParseSaveName(entry.name).has_value();
  });
}

bool LifeIsDead(const FoundJob& job, uint32_t incarnation, std::string* why) {
  if (!job.lives.empty() && job.lives.back().incarnation > incarnation) {
    *why = absl::StrFormat("life %d is older than life %d", incarnation, job.lives.back().incarnation);
    return true;
  }
  const auto life = std::find_if(job.lives.begin(), job.lives.end(),
                                 [&](const FoundLife& l) { return l.incarnation == incarnation; });
  if (life == job.lives.end() || !life->claim.has_value()) {
    *why = absl::StrFormat("no readable claim says who wrote life %d", incarnation);
    return false;
  }
  const format::LifeClaim& claim = *life->claim;
  if (claim.host != os::HostName()) {
    *why = absl::StrFormat("life %d may still run on host %s (process %d)", incarnation, claim.host, claim.pid);
    return false;
  }
  os::ProcessId process = os::CurrentProcess();
  if (claim.boot_id != os::BootIdString(process)) {
    *why = absl::StrFormat("life %d ran before this host was started", incarnation);
    return true;
  }
  process.pid = claim.pid;
  process.start_time = claim.start_time;
  if (os::IsAlive(process)) {
    *why = absl::StrFormat("life %d is running here (process %d)", incarnation, claim.pid);
    return false;
  }
  *why = absl::StrFormat("process %d of life %d has ended", claim.pid, incarnation);
  return true;
}

std::vector<std::string> JobFoldersOf(const PlaceInfo& info) {
  if (info.kind == PlaceKind::kJobFolder) return {info.path};
  return info.job_folders;
}

absl::Status Worse(const absl::Status& a, const absl::Status& b) { return ExitCodeOf(b) > ExitCodeOf(a) ? b : a; }

}  // namespace engine

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return 0;
    case absl::StatusCode::kDataLoss: return 1;
    case absl::StatusCode::kInvalidArgument: return 2;
    case absl::StatusCode::kUnimplemented: return 3;
    case absl::StatusCode::kOutOfRange: return 4;
    default: return 5;
  }
}

}  // namespace neve
