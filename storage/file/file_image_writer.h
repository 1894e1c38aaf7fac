// Begins, writes, commits and aborts one image of the file tier; the steps and their order stand in file_tier.h.
#ifndef NEVE_STORAGE_FILE_FILE_IMAGE_WRITER_H_
#define NEVE_STORAGE_FILE_FILE_IMAGE_WRITER_H_

#include <memory>

#include "storage/file/tier_core.h"
#include "storage/tier.h"

namespace neve::storage {

// Thread: the loop's.
absl::StatusOr<std::shared_ptr<ImageWriter>> BeginFileImage(const std::shared_ptr<TierCore>& core, const ImageKey& key,
                                                            uint64_t image_bytes);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_FILE_IMAGE_WRITER_H_
