// A place opened for reading what it holds: one file of any kind, a folder of another format, or all shards of one save.
#ifndef NEVE_ENGINE_FILES_SOURCE_H_
#define NEVE_ENGINE_FILES_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/places_folder.h"
#include "format/commit_record.h"
#include "format/contents.h"
#include "neve/files.h"

namespace neve::engine {

struct SourceShard {
  std::unique_ptr<format::Contents> contents;     // verified by its record where it has one
  std::optional<format::CommitRecord> record;
};

struct SourceTensor {
  std::string name;       // unique; with "@<rank>" at its end where several ranks have it
  uint32_t shard;
  const format::LogicalTensor* tensor;
  uint64_t elements, bytes;
};

struct Source {
  std::string place, kind;
  std::vector<SourceShard> shards;                // by rank; one where it is no save
  std::vector<SourceTensor> tensors;              // by shard, in tree order
  std::vector<std::string> notes;
  uint64_t bytes = 0;                             // of all tensors

  const format::Contents& of(const SourceTensor& tensor) const { return *shards[tensor.shard].contents; }
};

// Unsupported: nothing that can be read (says what it is). Damaged, DataLoss, Unavailable: as opening it says.
absl::StatusOr<Source> OpenSource(const std::string& place, const SourceOptions& options);

// Completes the checksums of what was read of it (format::Contents::CheckRead): what was made of its bytes stands only then.
absl::Status CheckRead(const Source& source);

// Unsupported: expanded tensors and windows count far more elements than the file holds, so that going through them would take for ever.
absl::Status CheckLogicalSize(const Source& source);

// The step folder that a place stands for: itself, or a job folder's newest complete save (or the newest of that step).
absl::StatusOr<FoundStep> ChooseStep(const PlaceInfo& info, const std::string& place, int64_t step,
                                     std::vector<std::string>* notes);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_FILES_SOURCE_H_
