// Opens images of the file tier. A reader keeps the file open: a retired image stays readable, and is never recycled.
#ifndef NEVE_STORAGE_FILE_FILE_IMAGE_READER_H_
#define NEVE_STORAGE_FILE_FILE_IMAGE_READER_H_

#include <memory>

#include "storage/file/tier_core.h"
#include "storage/tier.h"

namespace neve::storage {

// Thread: the loop's.
absl::StatusOr<std::shared_ptr<ImageReader>> OpenFileImage(const std::shared_ptr<TierCore>& core, const ImageKey& key);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_FILE_IMAGE_READER_H_
