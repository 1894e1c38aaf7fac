// What is in one file or folder of any kind that is read, or in a save of many ranks as one; no data is read and nothing in it is run.
#ifndef NEVE_CLI_INSPECT_FILE_H_
#define NEVE_CLI_INSPECT_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "format/contents.h"
#include "neve/files.h"

namespace neve::cli {

struct InspectedFile {
  std::string path;
  std::shared_ptr<const format::Contents> contents;  // null: a save of many ranks
  std::optional<SaveInfo> save;                // of the record; none: none beside it, or not readable (then `notes` says why)
  uint32_t rank = 0;                           // of the image in its save
  std::vector<std::string> notes;

  // Of a save of many ranks:
  std::vector<std::string> images;
  std::vector<WholeSave::Entry> entries;
  format::ImageHeader whole_header;
  std::vector<format::LogicalTensor> whole_tensors;

  std::vector<format::LogicalTensor> again;    // what the tree takes again at other places

  bool is_whole_save() const { return contents == nullptr; }
  const format::ImageHeader& header() const { return is_whole_save() ? whole_header : contents->header(); }
  std::span<const format::LogicalTensor> tensors() const { return is_whole_save() ? whole_tensors : contents->tensors(); }
  bool is_safetensors() const { return is_whole_save() || contents->kind() == format::ContentsKind::kSafetensors; }
  std::span<const std::string> files() const { return is_whole_save() ? std::span<const std::string>(images) : contents->files(); }
  std::span<const format::OpaqueObject> opaque() const {
    return is_whole_save() ? std::span<const format::OpaqueObject>() : contents->opaque();
  }
};

// Unsupported: of no kind that is read (says what it is). Damaged: names what and where. Unavailable: could not be read.
absl::StatusOr<InspectedFile> InspectFile(const std::string& path, bool lenient);

// Damaged: the header of the whole contradicts itself.
absl::StatusOr<InspectedFile> InspectWhole(const PlaceContent& content);

}  // namespace neve::cli

#endif  // NEVE_CLI_INSPECT_FILE_H_
