// The slots that a place `ram:[JOB]` names.
#ifndef NEVE_ENGINE_PLACES_RAM_H_
#define NEVE_ENGINE_PLACES_RAM_H_

#include <vector>

#include "base/error/status.h"
#include "neve/places.h"
#include "slot/slot.h"

namespace neve::engine {

// Of all jobs, or of the one asked for: then also those of its folder whose headers cannot be read. NotFound: RAM holds no slot
// of a job of that name; says of which it does.
absl::StatusOr<std::vector<slot::SlotInfo>> SlotsOf(const PlaceInfo& ram);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_RAM_H_
