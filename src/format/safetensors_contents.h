// One .safetensors file as Contents: the file is its own image, so the header text and the places of bytes are those of the
// file. Lenient reading leaves trailing bytes outside of the image, and writes the header anew where its metadata needed help.
#ifndef NEVE_FORMAT_SAFETENSORS_CONTENTS_H_
#define NEVE_FORMAT_SAFETENSORS_CONTENTS_H_

#include <memory>
#include <string>

#include "base/os/syscalls.h"
#include "format/contents.h"

namespace neve::format {

// `file` is open for reading and a regular file. Errors as ParseImageHeader's and LogicalTensors', naming the path.
absl::StatusOr<std::unique_ptr<Contents>> OpenSafetensors(os::File file, const ContentsOptions& options);

}  // namespace neve::format

#endif  // NEVE_FORMAT_SAFETENSORS_CONTENTS_H_
