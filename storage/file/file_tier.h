// The file tier: images as plain safetensors files in a folder, written by O_DIRECT through a Ring.
//
// Commit of one image, and what a crash leaves after each step:
//   1  the save's folder is made, the image file created under its final unique name (or a recycled spare renamed to it),
//      its room reserved                                   -> an image without record: not a checkpoint, removed by the next
//                                                             life's first save or gc
//   2  all bytes written (last write padded), size set     -> the same
//   3  fdatasync of the image                              -> the same
//   4  fsync of the save's folder and of the job folder    -> the same
//   5  record written to `.tmp-<nonce>`, fsync             -> the same, and a temporary that is never listed
//   6  renamed to its name                                 -> committed, or as in 5
//   7  fsync of the folder                                 -> committed
// Retire: record unlinked, folder fsync, then the image is recycled or unlinked, then the folder removed when nothing of
// others is in it. A file is recycled only under a write lease (nobody else has it open or mapped) and a single link; at most
// `spares_max` spares are kept in `.spare/`; the lease is released explicitly, its signal set anew before each lease.
//
// Files get the modes that the umask says. Files of other people in the folder are left alone.
#ifndef NEVE_STORAGE_FILE_FILE_TIER_H_
#define NEVE_STORAGE_FILE_FILE_TIER_H_

#include <memory>
#include <string>

#include "base/error/status.h"
#include "storage/tier.h"

namespace neve::storage {

struct FileTierOptions {
  std::string job_folder;  // step folders lie directly inside
  std::string root;        // must exist, else everything is Unavailable (an unmounted disk looks so); "": the parent
                           // of job_folder need not exist and is made by the first write
  int queue_depth = 4;     // 4 MiB pieces: deeper queues were slower
  int spares_max = 2;
  std::string engine;  // as ring::Options
  bool direct = true;  // try O_DIRECT; falls back to buffered writes with a bounded dirty window
};

// Starts the tier's thread. Touches nothing on disk.
absl::StatusOr<std::unique_ptr<Tier>> OpenFileTier(const FileTierOptions& options);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_FILE_TIER_H_
