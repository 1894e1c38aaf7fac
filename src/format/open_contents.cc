// Which reader a file or folder is for, decided by its content.
#include "format/open_contents.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "format/contents.h"
#include "format/readers.h"
#include "format/safetensors_contents.h"

namespace neve::format {

std::string_view Name(ContentsKind kind) {
  switch (kind) {
    case ContentsKind::kSafetensors:
      return "safetensors";
    case ContentsKind::kTorchZip:
      return "torch zip";
    case ContentsKind::kTorchLegacy:
      return "torch legacy";
    case ContentsKind::kTorchTar:
      return "torch tar";
    case ContentsKind::kHuggingFace:
      return "huggingface";
    case ContentsKind::kDcp:
      return "dcp";
    case ContentsKind::kNpz:
      return "npz";
    case ContentsKind::kNpy:
      return "npy";
  }
  return "?";
}

namespace {

constexpr uint64_t kHeadBytes = 512;

OpenedContents OpenZip(std::shared_ptr<const ByteSource> source, const ContentsOptions& options) {
  std::vector<std::string> notes;
  NEVE_ASSIGN_OR_RETURN(ZipDirectory directory, ZipDirectory::Read(*source, {.lenient = options.lenient, .notes = &notes}));
  if (IsTorchZip(directory)) return OpenTorchZip(std::move(source), std::move(directory), std::move(notes), options);
  if (IsNpz(directory)) return OpenNpz(std::move(source), std::move(directory), std::move(notes), options);
  return Unsupported(source->name() + " is a zip archive, but holds neither data.pkl, as torch's do, nor arrays of NumPy");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Contents>> OpenContents(const std::string& path, const ContentsOptions& options) {
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));  // a pipe is not waited for
  return OpenContents(std::move(file), options);
}

absl::StatusOr<std::unique_ptr<Contents>> OpenContents(os::File file, const ContentsOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file));
  if (S_ISDIR(facts.st_mode)) return OpenFolder(file.path, options);
  std::string head;
  if (S_ISREG(facts.st_mode)) {
    head.resize(std::min(static_cast<uint64_t>(facts.st_size), kHeadBytes));
    NEVE_RETURN_IF_ERROR(os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))));
    const bool foreign = ZipDirectory::Looks(head) || IsNpy(head) || IsTorchStream(head) || IsTar(head);
    if (!foreign) return OpenSafetensors(std::move(file), options);
  }
  NEVE_ASSIGN_OR_RETURN(std::shared_ptr<const ByteSource> source, MakeFileSource(std::move(file)));  // refuses what is no file
  if (ZipDirectory::Looks(head)) return OpenZip(std::move(source), options);
  if (IsNpy(head)) return OpenNpy(std::move(source), options);
  if (IsTar(head)) return OpenTorchTar(std::move(source), options);
  return OpenTorchStream(std::move(source), options);
}

}  // namespace neve::format
