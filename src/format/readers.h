// The readers of foreign kinds, each of which makes Contents of what it opens. OpenContents decides which.
#ifndef NEVE_FORMAT_READERS_H_
#define NEVE_FORMAT_READERS_H_

#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "format/byte_source.h"
#include "format/contents.h"
#include "format/zip_directory.h"

namespace neve::format {

using OpenedContents = absl::StatusOr<std::unique_ptr<Contents>>;

// A zip archive that holds data.pkl: torch's, TorchScript's too. Whether a directory is one, and its Contents.
bool IsTorchZip(const ZipDirectory& directory);
OpenedContents OpenTorchZip(std::shared_ptr<const ByteSource> source, ZipDirectory directory, std::vector<std::string> notes,
                            const ContentsOptions& options);

}  // namespace neve::format

#endif  // NEVE_FORMAT_READERS_H_
