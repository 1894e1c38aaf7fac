// A place opened for reading what it holds: one file of any kind, a folder of another format, one rank of a save, or a save of all
// its ranks as one set of global tensors. The only place that opens a save of many ranks for those who look at it.
#ifndef NEVE_ENGINE_FILES_SOURCE_H_
#define NEVE_ENGINE_FILES_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/global_contents.h"
#include "engine/places_choose.h"
#include "format/commit_record.h"
#include "format/contents.h"
#include "neve/files.h"

namespace neve::engine {

struct SourceTensor {
  std::string name;
  const format::LogicalTensor* tensor;
  uint64_t elements, bytes;
  bool again = false;            // the same tensor object as another, at another place of the tree
};

struct Source {
  std::string place, kind;
  std::unique_ptr<format::Contents> contents;
  const GlobalContents* global = nullptr;         // `contents`, where it is made of several ranks
  std::optional<format::CommitRecord> record;     // of the one image, or of the lowest rank
  std::vector<SourceTensor> tensors;              // in tree order, then those that it takes again
  std::vector<format::LogicalTensor> again;       // of those
  std::vector<std::string> notes;
  uint64_t bytes = 0;                             // of all tensors
  uint64_t stored_bytes = 0;                      // of the files that hold them
};

// Unsupported: nothing that can be read (says what it is). Damaged: a rank of the save is missing (named), or as opening it says;
// DataLoss, Unavailable likewise. NotFound: no such step or rank. Invalid: a rank of what is no save.
absl::StatusOr<Source> OpenSource(const std::string& place, const SourceOptions& options);
absl::StatusOr<Source> OpenChosen(const Chosen& chosen, const SourceOptions& options);

// Unsupported: expanded tensors and windows count far more elements than the file holds, so that going through them would take for ever.
absl::Status CheckLogicalSize(const Source& source);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_FILES_SOURCE_H_
