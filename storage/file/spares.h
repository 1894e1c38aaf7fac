// Files of retired images kept for new ones: overwriting blocks that exist is 1.5 to 2 times faster than new ones.
//
// A file becomes a new image only if nobody else can see it change: one link, and a write lease granted, which the kernel
// does only while nobody else has it open or mapped. Whoever opens a file under a lease waits for its release, so the lease
// is asked for under the hidden name, not under the one that strangers open. It is asked for twice: when the file is put
// away, so that one that is held gives its room back with its last reader, and when it is taken, which is what counts. A
// file that somebody holds is unlinked, which leaves him his bytes.
//
// Names are `.spare/<rank>-<n>`, at most `max` for each rank, so that ranks that share a folder keep out of each other's way.
// Thread: the loop's.
#ifndef NEVE_STORAGE_FILE_SPARES_H_
#define NEVE_STORAGE_FILE_SPARES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "neve/types.h"
#include "storage/file/job_folder.h"

namespace neve::storage {

class Spares {
 public:
  Spares(const JobFolder& folder, int max) : folder_(folder), max_(max) {}

  // Takes the image file at `path`, whose record is durably gone, out of its folder. False: it is where it was, for the
  // caller to unlink.
  bool Keep(const std::string& path, uint32_t rank);
  // Moves the spare that fits `bytes` best to `path`. False: none. It holds old bytes and may have any size.
  bool Take(const ImageKey& key, uint64_t bytes, const std::string& path);
  // Gives the room back: the disk is full. False when there was none.
  bool Drop(const ImageKey& key);

 private:
  struct Spare {
    std::string path;
    uint64_t bytes = 0;
  };
  // Those of the rank, and of ranks that a smaller world no longer has.
  std::vector<Spare> Usable(const ImageKey& key) const;

  const JobFolder& folder_;
  const int max_;
};

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_SPARES_H_
