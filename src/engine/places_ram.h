// The slots that a place `ram:[JOB]` names.
#ifndef NEVE_ENGINE_PLACES_RAM_H_
#define NEVE_ENGINE_PLACES_RAM_H_

#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "base/sync/crew.h"
#include "engine/opened_image.h"
#include "neve/places.h"
#include "slot/slot.h"

namespace neve::engine {

// Of all jobs, or of the one asked for: then also those of its folder whose headers cannot be read. NotFound: RAM holds no slot
// of a job of that name; says of which it does.
absl::StatusOr<std::vector<slot::SlotInfo>> SlotsOf(const PlaceInfo& ram);

// The image in a sealed slot, read where it lies: its owner may fill the slot anew meanwhile, which `generation` of the slot then tells.
// *slot: keeps the mapping that the image reads. Damaged, DataLoss; Unavailable: it holds no sealed image now.
absl::StatusOr<std::unique_ptr<RankFile>> OpenSlotImage(const std::string& path, std::shared_ptr<sync::Crew> crew,
                                                        std::shared_ptr<const slot::Slot>* slot);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_RAM_H_
