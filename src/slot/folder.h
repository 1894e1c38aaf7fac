// Folders that only this user may enter: the RAM folder and the job folders in it.
#ifndef NEVE_SLOT_FOLDER_H_
#define NEVE_SLOT_FOLDER_H_

#include <string>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve::slot {

// Checks that `path` is a real directory (no link) of this user that nobody else may enter; Invalid with what to do
// otherwise. Missing: made with mode 0700 whatever the umask when `create`, else NotFound. Parents are not made.
absl::Status PrivateFolder(const std::string& path, bool create);

// Gives a file that this process just made exactly this mode: the umask may have taken bits away.
absl::Status SetMode(const os::File& file, mode_t mode);

}  // namespace neve::slot

#endif  // NEVE_SLOT_FOLDER_H_
