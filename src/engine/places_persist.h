// Writes the image of a slot into a file tier: verified first, then written, then committed.
#ifndef NEVE_ENGINE_PLACES_PERSIST_H_
#define NEVE_ENGINE_PLACES_PERSIST_H_

#include <cstdint>
#include <functional>
#include <string>

#include "base/error/status.h"
#include "format/commit_record.h"
#include "format/names.h"
#include "neve/types.h"
#include "slot/slot.h"
#include "storage/tier.h"

namespace neve::engine {

// Every byte is compared with its digest before the first one is written: DataLoss names the chunk, and nothing was made.
// `advance` is told of bytes written. The caller owns the slot, which nobody changes meanwhile. Blocks.
absl::Status PersistSlot(const slot::Slot& slot, const format::CommitRecord& record, storage::Tier* tier,
                         const std::function<void(uint64_t)>& advance);

// Makes job.json where it is missing. Invalid: another job's is there.
absl::Status EnsureIdentity(storage::Tier* tier, const format::JobIdentity& identity);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_PERSIST_H_
