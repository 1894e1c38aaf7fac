// What the command does with places: list, verify, recover, collect, diagnose. A place is a file, a folder, `file:PATH` or
// `ram:[JOB]`. Thread: any; each call blocks. Nothing is created by listing or verifying.
#ifndef NEVE_PLACES_H_
#define NEVE_PLACES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "neve/engine.h"

namespace neve {

// What the command exits with: 0 done; 1 data differs from its digest; 2 wrong usage; 3 not a checkpoint, or of a kind that
// cannot be read; 4 truncated or malformed; 5 could not be reached. A greater one is worse.
int ExitCodeOf(const absl::Status& status);

// Called with bytes done and in all; from any thread, not often. May be empty.
using Progress = std::function<void(uint64_t done, uint64_t total)>;

enum class PlaceKind : uint8_t { kImageFile, kStepFolder, kJobFolder, kRoot, kRam, kEmptyFolder, kForeign };
struct PlaceInfo {
  PlaceKind kind;
  std::string path;                       // folder or file; RAM: the RAM folder
  std::string job;                        // RAM: the job asked for, "" for all
  std::vector<std::string> job_folders;   // of a root: one level below
  std::string what;                       // kForeign: what it is ("a DCP folder", "a zip archive (a .pt file?)")
};
// Unavailable (exit 5): missing or unreadable. Unsupported: a kind of place this build lacks (s3://, peer:, agent:).
absl::StatusOr<PlaceInfo> ResolvePlace(const std::string& place);

struct ListReport {
  std::vector<SaveInfo> saves;            // newest first within each job
  std::vector<std::string> notes;         // what was met and left alone
  absl::Status worst;                     // greatest trouble met (a damaged job.json), OK otherwise
};
absl::StatusOr<ListReport> ListSaves(const std::string& place);

struct Problem {
  std::string code;                       // "digest", "truncated", "record", "header", "tree", "blob", "missing", "trailing",
                                          // "identity", "kind", "io", "pieces", "replica"
  std::string place, file, tensor;
  int64_t chunk = -1;
  int64_t offset = -1;                    // in the file
  std::string message;
};
struct VerifyReport {
  bool ok = true;
  bool structural = false;                // some problem is of structure (exit 4), not only of digests (exit 1)
  uint64_t checked_bytes = 0;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  absl::Status worst;                     // what could not be read at all (exit 5), OK otherwise
};
// Every digest and every structural rule of every image found there. step < 0: all. Of a save of several ranks also that their pieces
// cover each logical tensor without a gap, agree on its type and shape, and are equal where several ranks hold one; rank >= 0: that
// rank's images alone. A save that is asked for by itself (its folder, or its step) is wrong when a rank of it is missing; among others
// that is a note. NotFound: no save at all in a job folder, or none of that step or rank.
absl::StatusOr<VerifyReport> VerifyPlace(const std::string& place, int64_t step, const Progress& progress, int64_t rank = -1);

struct RecoverOptions {
  std::string to;                         // job folder or root; "": the job folder given as the place
  bool dry_run = false;                   // list only
  bool adopt = false;                     // also images of another uid (`--adopt`)
};
struct RecoverReport {
  struct Item {
    std::string job;
    Uid uid;
    ImageKey key;
    uint64_t bytes = 0;
    std::string state;                    // "captured", "sealed"
    std::string outcome;                  // "persisted", "already there", "owner alive", "would persist", or an error
  };
  std::vector<Item> items;
  absl::Status worst;
};
// Finishes what killed jobs left in RAM: seals captured slots and writes what no durable place holds yet.
absl::StatusOr<RecoverReport> RecoverPlace(const std::string& place, const RecoverOptions& options, const Progress& progress);

struct GcOptions {
  bool dry_run = false;
  std::optional<uint64_t> keep;           // retention for job folders; none: only leftovers are removed
};
struct GcReport {
  struct Item {
    std::string path, what;               // "leftover", "temporary", "save", "dead slot"
    uint64_t bytes = 0;
    std::string outcome;                  // "removed", "would remove", "kept: ...", or an error
  };
  std::vector<Item> items;
  absl::Status worst;
};
// Retention, leftovers of dead lives, RAM slots of dead jobs whose saves are durable (or older than a durable one).
absl::StatusOr<GcReport> CollectGarbage(const std::string& place, const GcOptions& options);

struct DoctorCheck {
  std::string name;                       // "io_uring", "o_direct", "memlock", "huge_pages", "shared_memory", "cuda", ...
  bool ok = false;
  std::string found, advice;
};
std::vector<DoctorCheck> Doctor();

// As objects of JSON: what `--json` and the C API say of each.
std::string ToJson(const Problem& problem);
std::string ToJson(const RecoverReport::Item& item);
std::string ToJson(const GcReport::Item& item);

}  // namespace neve

#endif  // NEVE_PLACES_H_
