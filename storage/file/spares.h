// Files of retired images kept for new ones: overwriting blocks that exist is 1.5 to 2 times faster than new ones.
//
// A file becomes a spare only if nobody else can see it change: one link, and a write lease granted, which the kernel does
// only while nobody else has it open or mapped. The lease is held for the rename into `.spare/` and for nothing else. An
// open that met it waits that long and then holds a spare; so the lease is asked for again when the spare is taken, and a
// spare that somebody holds is unlinked instead, which leaves him his bytes.
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

  // Keeps the image file at `path`, whose record is durably gone. False: not kept, the caller unlinks it.
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
