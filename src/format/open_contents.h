// OpenContents of a file that is open already: what is decided about it and what is read of it is the same file, though another
// takes its name meanwhile.
#ifndef NEVE_FORMAT_OPEN_CONTENTS_H_
#define NEVE_FORMAT_OPEN_CONTENTS_H_

#include <memory>

#include "base/error/status.h"
#include "base/os/syscalls.h"
#include "format/contents.h"

namespace neve::format {

// `file` is open for reading. A folder is read by its path.
absl::StatusOr<std::unique_ptr<Contents>> OpenContents(os::File file, const ContentsOptions& options = {});

}  // namespace neve::format

#endif  // NEVE_FORMAT_OPEN_CONTENTS_H_
