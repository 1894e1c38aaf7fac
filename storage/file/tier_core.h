// What the parts of one file tier share. Readers and writers keep it alive; after the tier is gone its loop refuses work.
#ifndef NEVE_STORAGE_FILE_TIER_CORE_H_
#define NEVE_STORAGE_FILE_TIER_CORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/error/status.h"
#include "storage/file/file_tier.h"
#include "storage/file/io_loop.h"
#include "storage/file/job_folder.h"
#include "storage/file/spares.h"
#include "storage/file/write_behind.h"
#include "storage/tier.h"

namespace neve::storage {

inline constexpr uint64_t kBlockBytes = kPageBytes;  // of direct transfers
inline constexpr uint64_t kPieceBytes = 4u << 20;    // of one operation in the ring

inline uint64_t RoundUpToBlock(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

struct TierCore {
  explicit TierCore(const FileTierOptions& given)
      : options(given), folder(given.job_folder, given.root), spares(folder, given.spares_max) {}

  const FileTierOptions options;
  TierInfo info;
  const JobFolder folder;
  std::shared_ptr<IoLoop> loop;

  // Thread: the loop's.
  WriteBehind write_behind;
  Spares spares;
  bool buffered_said = false;

  // Opens an image, direct where that is wanted and granted. `flags` without O_DIRECT.
  absl::StatusOr<std::shared_ptr<ImageFile>> OpenImageFile(const std::string& path, int flags);
  // Goes on without O_DIRECT: one log line a tier.
  void SayBuffered(const std::string& path, const std::string& reason);
};

// Runs `task` on the loop, or `done(Closed)` here when the tier is gone.
template <typename Callback, typename Task>
void PostOrClose(TierCore& core, Callback done, Task task) {
  auto shared = std::make_shared<Callback>(std::move(done));
  if (!core.loop->Post([shared, task = std::move(task)]() mutable { task(std::move(*shared)); })) {
    (*shared)(Closed("file tier " + core.info.place + " is closed"));
  }
}

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_TIER_CORE_H_
