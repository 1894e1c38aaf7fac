// Files of other kinds, as format/contents.h presents them, read as images are.
#ifndef NEVE_ENGINE_CONTENTS_READER_H_
#define NEVE_ENGINE_CONTENTS_READER_H_

#include <memory>

#include "base/error/status.h"
#include "format/contents.h"
#include "storage/tier.h"

namespace neve {

// Reads the virtual image. Where the file has checksums of its own (the CRC-32 of a zip archive's records), what is read is summed
// on the way: the read that completes a record whose sum differs is DataLoss, and names its tensor. Any thread.
absl::StatusOr<std::shared_ptr<storage::ImageReader>> ReaderOf(std::shared_ptr<const format::Contents> contents);

}  // namespace neve

#endif  // NEVE_ENGINE_CONTENTS_READER_H_
