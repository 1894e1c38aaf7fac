// What is in one file or folder of any kind that is read; no data is read and nothing in it is run.
#ifndef NEVE_CLI_INSPECT_FILE_H_
#define NEVE_CLI_INSPECT_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "format/commit_record.h"
#include "format/contents.h"

namespace neve::cli {

struct InspectedFile {
  std::string path;
  std::shared_ptr<const format::Contents> contents;
  std::optional<format::CommitRecord> record;  // none: none beside it, or not readable (then `notes` says why)
  std::vector<std::string> notes;

  const format::ImageHeader& header() const { return contents->header(); }
  std::span<const format::LogicalTensor> tensors() const { return contents->tensors(); }
  bool is_safetensors() const { return contents->kind() == format::ContentsKind::kSafetensors; }
};

// Unsupported: of no kind that is read (says what it is). Damaged: names what and where. Unavailable: could not be read.
absl::StatusOr<InspectedFile> InspectFile(const std::string& path, bool lenient);

// The image files to look at: the file itself, a save's files, or those of a job folder's newest complete save (or the
// newest of that step).
struct InspectedPlace {
  std::string kind;  // "file", "step"
  std::vector<std::string> files;
  std::vector<std::string> notes;
};
absl::StatusOr<InspectedPlace> FindFiles(const std::string& place, int64_t step);

}  // namespace neve::cli

#endif  // NEVE_CLI_INSPECT_FILE_H_
