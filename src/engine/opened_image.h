// Images that are open: what the engine's own files know of each other's beside the public interface.
#ifndef NEVE_ENGINE_OPENED_IMAGE_H_
#define NEVE_ENGINE_OPENED_IMAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "base/obs/metrics.h"
#include "base/sync/crew.h"
#include "base/sync/mutex.h"
#include "format/commit_record.h"
#include "format/global_image.h"
#include "neve/engine.h"
#include "restore/box_plan.h"
#include "restore/chunk_reader.h"

namespace neve {

// Saves that an open image reads: retention leaves them. Shared, since an image may outlive its engine.
class HeldSaves {
 public:
  void Hold(const SaveId& save) {
    sync::MutexLock lock(mutex_);
    held_.insert(save);
  }
  void Release(const SaveId& save) {
    sync::MutexLock lock(mutex_);
    if (const auto it = held_.find(save); it != held_.end()) held_.erase(it);
  }
  std::set<SaveId> All() const {
    sync::MutexLock lock(mutex_);
    return {held_.begin(), held_.end()};
  }

 private:
  mutable sync::Mutex mutex_;
  std::multiset<SaveId> held_ NEVE_GUARDED_BY(mutex_);
};

// The image of one save from whatever sources hold it. `on_destroy` runs at the end.
struct ImageParts {
  SaveInfo info;
  std::shared_ptr<const format::CommitRecord> record;   // null: a file without one
  bool own_digests = false;                             // `record` is of the digests in the file itself: it is of no save
  std::vector<restore::Source> sources;
  std::string header;                                   // "": read when it is made
  uint64_t image_bytes = 0;
  restore::OtherReaders others = restore::OtherReaders::kNone;
  std::shared_ptr<sync::Crew> crew;
  std::shared_ptr<obs::Metrics> metrics;
  std::vector<std::shared_ptr<void>> keep;              // tiers that the sources read from
  std::function<void()> on_destroy;
  // The global image of the save; null: only the file is known.
  std::function<absl::StatusOr<std::unique_ptr<Image>>(const GlobalOptions&)> global;
};

class OpenedImage : public Image {
 public:
  // Entries of the header with the boxes that they hold: of a rank's own image those of its pieces, in global coordinates.
  virtual std::span<const format::GlobalEntry> entries() = 0;
  // Wanted boxes lie in the shapes of the entries; elements that no box here holds are Invalid. As Image::Read otherwise.
  virtual absl::Status ReadWants(std::span<const restore::BoxWant> wants, std::span<uint8_t> written) = 0;
};

// One rank's image: a part of a global one.
class RankFile : public OpenedImage {
 public:
  virtual const format::CommitRecord* record() const = 0;                    // null: a file without one
  virtual const format::ImageHeader& parsed() const = 0;
  virtual std::span<const format::LogicalTensor> tensors() const = 0;
  virtual bool in_memory() const = 0;                                        // the nearest source is memory
  virtual void UseCrew(std::shared_ptr<sync::Crew> crew) = 0;                // before any read from several threads
  virtual absl::Status ReadRanges(std::span<const restore::Range> ranges) = 0;
};
// Reads and verifies the header from the sources.
absl::StatusOr<std::unique_ptr<RankFile>> MakeImage(ImageParts parts);
// An image of a step folder by its path, with the record beside it where there is one. crew: whose threads read it. Unsupported: no
// safetensors file (says what it is). Damaged, DataLoss: header or record; Unavailable.
absl::StatusOr<std::unique_ptr<RankFile>> OpenRankFile(const std::string& path, std::shared_ptr<sync::Crew> crew);

}  // namespace neve

#endif  // NEVE_ENGINE_OPENED_IMAGE_H_
