// What the command does with the content of checkpoints of any kind: measure, compare, convert, copy. A place is as in places.h;
// it is read through one form, so any kind compares with and converts to any other. Thread: any; each call blocks. Memory: at
// most 256 MiB beside what headers need. Nothing in a file is run.
#ifndef NEVE_FILES_H_
#define NEVE_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "neve/dtype.h"
#include "neve/places.h"

namespace neve {

struct SourceOptions {
  int64_t step = -1;      // of a job folder: this step's newest save; < 0: the newest complete one
  bool lenient = false;   // reads past what is merely untidy, with a note
  int64_t rank = -1;      // of a save: this rank's image alone; < 0: all ranks, as one set of global tensors
};

// A save of many ranks is read as one checkpoint: each logical tensor once, whole; what the ranks keep alike once; what differs
// between them as `place.@0`, `place.@1`, with a note.

// ---- inspect ----

// The global image of a save of many ranks.
struct WholeSave {
  SaveInfo info;                          // as its records say
  std::string header;                     // 8 bytes of length and the JSON, as of an image in which each logical tensor stands whole
  uint64_t image_bytes = 0;               // of that image
  struct Entry {
    uint64_t pieces = 1;                  // boxes that it is made of
    std::vector<uint32_t> ranks;          // that hold some
    int64_t file = -1, offset = -1;       // where it lies, when it lies whole in one of the files
  };
  std::vector<Entry> entries;             // of each tensor of the header, in its order
};
struct PlaceContent {
  std::string path;                       // a file, a folder of another kind, or a step folder
  bool save = false;                      // it is a save
  std::vector<std::string> files;         // the images of a save, by rank; else `path`
  std::optional<WholeSave> whole;         // of a save of several ranks, when no single one is asked for
  std::vector<std::string> notes;
};
// What a place stands for. Headers are read of saves of several ranks only. Errors: as those of the others here.
absl::StatusOr<PlaceContent> LookInto(const std::string& place, const SourceOptions& options);

// ---- stats ----

struct TensorStats {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;     // logical
  uint64_t zeros = 0, nan = 0, inf = 0;
  // Of the finite numbers; `finite` 0: there are none. Complex numbers count by their magnitude. The deviation is the
  // population's. Wide enough to hold 64-bit integers exactly.
  uint64_t finite = 0;
  long double min = 0, max = 0, mean = 0, std = 0;
  std::string digest;     // XXH3-128 of the elements' bytes in row-major order
};
struct StatsReport {
  std::string kind;       // "neve step", "safetensors", "torch zip", ..
  std::vector<TensorStats> tensors;
  std::vector<std::string> notes;
};
absl::StatusOr<StatsReport> MeasurePlace(const std::string& place, const SourceOptions& options, const Progress& progress);

// ---- diff ----

struct Difference {
  std::string name;
  std::string what;       // "dtype", "shape", "values", "object"
  std::string a, b;       // what each has, in words; "": it has none
  // Of "values":
  uint64_t count = 0;                    // elements that are not the same bits
  uint64_t not_finite = 0;               // of those, the ones whose difference is no finite number
  double max_abs = 0;                    // the greatest finite |a - b|
  std::vector<int64_t> first_index;
};
struct DiffReport {
  std::vector<std::string> only_a, only_b;   // tensors
  std::vector<Difference> changed;
  std::vector<std::string> notes;
  uint64_t compared_tensors = 0, compared_bytes = 0;
  bool equal() const { return only_a.empty() && only_b.empty() && changed.empty(); }
};
absl::StatusOr<DiffReport> DiffPlaces(const std::string& a, const std::string& b, const SourceOptions& options,
                                      const Progress& progress);

// ---- convert ----

enum class TargetKind : uint8_t { kTorch, kSafetensors, kHuggingFace, kStep, kNpz, kDcp };

struct ConvertOptions {
  SourceOptions source;
  std::string to;                         // "pt", "safetensors", "hf", "dcp", "step", "npz"; "": by the name of the output
  uint64_t shard_bytes = 5'000'000'000;   // hf, dcp: at most so many bytes of tensors a file, one tensor (of dcp: one row) at least
  bool tree = false;                      // also what readers that do not know neve.tree would misread
  std::vector<std::string> drop;          // dotted names or globs of what is left out, with all below it
};
struct ConvertReport {
  std::string from, to;                   // kinds
  uint64_t tensors = 0, bytes = 0;        // written
  std::vector<std::string> dropped;       // paths
  std::vector<std::string> notes;
};
// Writes what IN holds as OUT: a file atomically and durably, over an old one only when the new one is whole; a folder under a
// temporary name until then, never over another. Checksums of IN are checked on the way. Invalid: OUT is IN, or a name to drop is
// not there. Unsupported: what the target cannot hold, by name, before anything is written.
absl::StatusOr<ConvertReport> ConvertPlace(const std::string& in, const std::string& out, const ConvertOptions& options,
                                           const Progress& progress);

// ---- cp ----

struct CopyReport {
  std::string from, to;                   // step folders
  uint64_t bytes = 0, images = 0;
  bool already_there = false;             // the target held the same save, which was verified
  std::vector<std::string> notes;
};
// Copies one save, all ranks, into a job folder (made when missing), a root of them, or to its own name in one. Each byte is verified
// as it is read and again from the target; records come last, as they are. Idempotent; another save of that name: Invalid.
absl::StatusOr<CopyReport> CopySave(const std::string& from, const std::string& to, int64_t step, const Progress& progress);

}  // namespace neve

#endif  // NEVE_FILES_H_
