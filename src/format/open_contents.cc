// Which reader a file or folder is for, decided by its content.
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
  NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file));
  if (S_ISDIR(facts.st_mode)) return OpenFolder(path, options);
  NEVE_ASSIGN_OR_RETURN(std::shared_ptr<const ByteSource> source, OpenFileSource(path));
  std::string head;
  NEVE_RETURN_IF_ERROR(source->ReadText(0, std::min(source->size(), kHeadBytes), &head));
  if (ZipDirectory::Looks(head)) return OpenZip(std::move(source), options);
  if (IsNpy(head)) return OpenNpy(std::move(source), options);
  if (IsTorchStream(head)) return OpenTorchStream(std::move(source), options);
  return OpenSafetensors(std::move(file), options);
}

}  // namespace neve::format
