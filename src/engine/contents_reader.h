// Files of other kinds, as format/contents.h presents them, read as images are.
#ifndef NEVE_ENGINE_CONTENTS_READER_H_
#define NEVE_ENGINE_CONTENTS_READER_H_

#include <memory>

#include "format/contents.h"
#include "storage/tier.h"

namespace neve {

// Reads the virtual image. Any thread. DataLoss: what was read differs from a checksum of the file's own (Contents::Read).
std::shared_ptr<storage::ImageReader> ReaderOf(std::shared_ptr<const format::Contents> contents);

}  // namespace neve

#endif  // NEVE_ENGINE_CONTENTS_READER_H_
