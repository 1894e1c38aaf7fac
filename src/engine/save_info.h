// What is said of a save: by the engine's list, by Find, and by the command's `ls`.
#ifndef NEVE_ENGINE_SAVE_INFO_H_
#define NEVE_ENGINE_SAVE_INFO_H_

#include <span>
#include <string>

#include "catalog/catalog.h"
#include "neve/engine.h"

namespace neve::engine {

// What names and sizes say; the job, its uid, the time and the tags stand in records. `names`: of the tiers, as the listings go.
SaveInfo ToSaveInfo(const catalog::Save& save, std::span<const catalog::TierListing> listings,
                    std::span<const std::string> names);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_SAVE_INFO_H_
