// Moves one range between memory and an image file through the ring, in pieces, direct where the file allows it.
//
// What stands between the two:
//   - a range that ends inside a block is padded to the block by a direct transfer (the file is cut to size at the commit);
//   - memory that is not aligned bounces through a buffer of one piece;
//   - a file system that refuses a direct transfer (EINVAL) gets the same piece again without O_DIRECT, and from then on the
//     file is buffered, with its page cache kept small.
// Thread: the loop's. `done` runs on it, after the last piece.
#ifndef NEVE_STORAGE_FILE_TRANSFER_H_
#define NEVE_STORAGE_FILE_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "storage/file/tier_core.h"
#include "storage/tier.h"

namespace neve::storage {

void WriteRange(const std::shared_ptr<TierCore>& core, std::shared_ptr<ImageFile> file, uint64_t offset,
                std::span<const std::byte> source, Done done);
// A file that ends before the range does is Damaged.
void ReadRange(const std::shared_ptr<TierCore>& core, std::shared_ptr<ImageFile> file, uint64_t offset,
               std::span<std::byte> target, Done done);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_TRANSFER_H_
