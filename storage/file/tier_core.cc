#include "storage/file/tier_core.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "storage/file/kernel_file.h"

namespace neve::storage {

absl::StatusOr<std::shared_ptr<ImageFile>> TierCore::OpenImageFile(const std::string& path, int flags) {
  auto image = std::make_shared<ImageFile>();
  if (options.direct) {
    absl::StatusOr<os::File> file = os::Open(path, flags | O_DIRECT);
    if (file.ok()) {
      image->file = std::move(*file);
      image->direct = true;
      if (!DirectTransfersFit(image->file, kBlockBytes)) {
        NEVE_RETURN_IF_ERROR(StopDirectTransfers(image->file));
        image->direct = false;
        SayBuffered(path, "its blocks are larger than 4096 bytes or not direct at all");
      }
      return image;
    }
    if (ErrnoOf(file.status()) != EINVAL) return file.status();
    SayBuffered(path, std::string(file.status().message()));
    // A file system may refuse only after it made the file.
    flags &= ~O_EXCL;
  }
  NEVE_ASSIGN_OR_RETURN(image->file, os::Open(path, flags));
  return image;
}

void TierCore::SayBuffered(const std::string& path, const std::string& reason) {
  if (buffered_said) return;
  buffered_said = true;
  obs::Log(obs::Level::kWarning,
           absl::StrFormat("file tier: O_DIRECT does not work, going on through the page cache with a window of %u MiB "
                           "place=%s file=%s reason=\"%s\"",
                           WriteBehind::kWindowBytes >> 20, info.place, path, reason));
}

}  // namespace neve::storage
