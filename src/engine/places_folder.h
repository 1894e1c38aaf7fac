// What lies in job folders and step folders, as the command sees them: by name and size, without a tier and its threads, so
// that also a folder that was copied, renamed or damaged can be looked at. Everything is read, nothing is made.
//
// Links to files and folders are followed; names that neve does not make are never touched.
#ifndef NEVE_ENGINE_PLACES_FOLDER_H_
#define NEVE_ENGINE_PLACES_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "base/os/syscalls.h"
#include "format/commit_record.h"
#include "format/names.h"
#include "neve/places.h"

namespace neve::engine {

// One rank's share of a save.
struct FoundImage {
  uint32_t rank = 0, world = 1;
  std::string image_path, record_path;   // "": not there
  uint64_t image_bytes = 0;              // size found
  uint64_t stored_bytes = 0;             // room taken
};

struct FoundStep {
  std::string path;
  std::optional<format::SaveName> name;  // none: the folder has a name of somebody else's
  std::vector<FoundImage> images;        // by world, then rank
  bool pinned = false;
  bool has_complete_cache = false;
  std::vector<std::string> temporaries;  // paths of `.tmp-*`
};
absl::StatusOr<FoundStep> ReadStep(const std::string& path);

struct FoundLife {
  uint32_t incarnation = 0;
  std::string path;
  std::optional<format::LifeClaim> claim;   // none: damaged
};

struct FoundJob {
  std::string path;
  std::string name;                      // job.json's, else the folder's last part
  Uid uid;                               // not known when there is no job.json
  std::vector<FoundLife> lives;          // ascending
  std::vector<std::string> step_paths;   // ascending by name
  std::vector<std::string> temporaries, spares;
  absl::Status damage;                   // the first damaged job.json or life-*; OK: none
  std::vector<std::string> damages;      // all of them, one line each
};
absl::StatusOr<FoundJob> ReadJob(const std::string& path);

// NotFound, Damaged, DataLoss (its own digest), Unavailable; messages name the path.
absl::StatusOr<format::CommitRecord> ReadRecord(const std::string& path);

// Whether the folder holds `shard-*` of ours, or job.json, claims or step folders.
bool LooksLikeStep(const std::vector<os::DirectoryEntry>& entries);
bool LooksLikeJob(const std::vector<os::DirectoryEntry>& entries);

// The process that claimed this incarnation is known to be gone: it ran here, and no more, or a newer life has claimed.
// `why` says it, or why that cannot be known.
bool LifeIsDead(const FoundJob& job, uint32_t incarnation, std::string* why);

// Job folders of a place that is one or a root of some.
std::vector<std::string> JobFoldersOf(const PlaceInfo& info);

// The worse of two by ExitCodeOf; the first one when they are equal.
absl::Status Worse(const absl::Status& a, const absl::Status& b);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_FOLDER_H_
