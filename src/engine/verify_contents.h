// Verifying files and folders of other kinds than neve's own: every rule and checksum that their format has.
#ifndef NEVE_ENGINE_VERIFY_CONTENTS_H_
#define NEVE_ENGINE_VERIFY_CONTENTS_H_

#include <string>

#include "neve/places.h"

namespace neve::engine {

// Whether a path is to be verified so: a folder, or a file that does not begin as a safetensors file does.
bool IsForeignContents(const std::string& path);

// As VerifyPlace. Unsupported: of no kind that is read.
absl::StatusOr<VerifyReport> VerifyContents(const std::string& path, const Progress& progress);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_VERIFY_CONTENTS_H_
