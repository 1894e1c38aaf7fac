// Which reader a file or folder is for, decided by its content.
#include <fcntl.h>

#include <utility>

#include "format/contents.h"
#include "format/safetensors_contents.h"

namespace neve::format {

std::string_view Name(ContentsKind kind) {
  switch (kind) {
    case ContentsKind::kSafetensors: return "safetensors";
    case ContentsKind::kTorchZip: return "torch zip";
    case ContentsKind::kTorchLegacy: return "torch legacy";
    case ContentsKind::kTorchTar: return "torch tar";
    case ContentsKind::kHuggingFace: return "huggingface";
    case ContentsKind::kDcp: return "dcp";
    case ContentsKind::kNpz: return "npz";
    case ContentsKind::kNpy: return "npy";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Contents>> OpenContents(const std::string& path, const ContentsOptions& options) {
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));   // a pipe is not waited for
  return OpenSafetensors(std::move(file), options);
}

}  // namespace neve::format
