// One save in the tiers that hold it: opens any rank's image, nearest copy first. Outlives the engine that made it, as the images do.
// Thread: any.
#ifndef NEVE_ENGINE_SAVE_OPENER_H_
#define NEVE_ENGINE_SAVE_OPENER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "catalog/catalog.h"
#include "engine/opened_image.h"
#include "node/slot_pool.h"

namespace neve::engine {

struct SaveOpener {
  struct TierAccess {
    std::shared_ptr<storage::Tier> tier;
    std::string name, place;
  };
  SaveInfo info;                                   // job and uid included
  catalog::Save save;
  std::vector<TierAccess> tiers;                   // as the copies of `save` count them
  std::shared_ptr<node::SlotPool> pool;            // own slots are read through the mapping that is there; null: none
  std::shared_ptr<sync::Crew> crew;
  std::shared_ptr<obs::Metrics> metrics;
  std::shared_ptr<HeldSaves> held;
  restore::OtherReaders others = restore::OtherReaders::kNone;   // of the images of this save

  // One rank's image in every tier that has it, held against retention. NotFound: no usable copy; `reason` says why, failed(status)
  // is called for each. wanted: only copies of this fingerprint; "": the nearest says which image it is.
  absl::StatusOr<ImageParts> OpenRank(uint32_t rank, const std::function<void(const absl::Status&)>& failed, std::string* reason,
                                      const std::string& wanted = {}) const;
  // The same, its header read; prepare: may change the parts before. Where no copy has a good header, it is taken from the image of another
  // rank whose record has the same digests there, if one has, and written over the bad ones.
  // header_lost: it was opened, and its header cannot be read.
  absl::StatusOr<std::unique_ptr<RankFile>> OpenFile(uint32_t rank, const std::function<void(const absl::Status&)>& failed,
                                                     std::string* reason, bool* header_lost,
                                                     const std::function<void(ImageParts&)>& prepare,
                                                     const std::string& wanted = {}) const;
  // What one rank's nearest readable record says, of durable tiers alone when asked. Nothing is held. NotFound: none.
  absl::StatusOr<format::CommitRecord> RecordOf(uint32_t rank, bool durable_only) const;

 private:
  // "": no other rank's image has it.
  std::string HeaderOfAnother(uint32_t rank) const;
};

// The same for two images whose bytes are.
std::string FingerprintOf(const format::CommitRecord& record);
// Whether two images are the same but for what little differs between ranks that hold the same state (a rank's number, a generator): as
// long, and nine in ten of their chunks have equal digests.
bool SameBytes(const format::CommitRecord& a, const format::CommitRecord& b);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_SAVE_OPENER_H_
