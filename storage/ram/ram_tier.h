// The RAM tier: sealed slots of one job on this host, own and others', read where they lie.
//
// List shows sealed slots, and captured ones of dead owners. OpenImage maps the slot read only and gives the image as
// Mapped(); a slot captured by a dead owner is adopted, digested and sealed first. BeginImage makes a new slot. Retire frees
// the slot when it is this process's or its owner is dead (a dead owner's file is removed); else Unavailable.
// Notes do not live in RAM: Unsupported.
#ifndef NEVE_STORAGE_RAM_RAM_TIER_H_
#define NEVE_STORAGE_RAM_RAM_TIER_H_

#include <memory>
#include <string>

#include "base/error/status.h"
#include "storage/tier.h"

namespace neve::storage {

struct RamTierOptions {
  std::string ram_folder;   // may not exist yet
  Uid uid;
  std::string job;
};
std::unique_ptr<Tier> OpenRamTier(const RamTierOptions& options);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_RAM_RAM_TIER_H_
