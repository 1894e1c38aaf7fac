// Who the job is (uid) and which life this is (incarnation), read from the durable tiers and claimed in them.
//
// Invariants
//   - Reading creates nothing. ClaimLife creates job.json and life-<n>.json, exclusively.
//   - Two durable tiers that name different uids: Invalid, naming both.
//   - The incarnation is 1 + the greatest in any name that any tier lists, claims included.
#ifndef NEVE_ENGINE_IDENTITY_H_
#define NEVE_ENGINE_IDENTITY_H_

#include <optional>
#include <span>
#include <string>

#include "base/error/status.h"
#include "format/names.h"
#include "neve/types.h"
#include "storage/tier.h"

namespace neve {

// The uid that the durable tiers hold; unknown when none holds one. A missing or damaged job.json is made up for by the newest
// readable record beside it. Unavailable tiers are skipped; the first such error goes to `unreachable`.
absl::StatusOr<Uid> ReadUid(std::span<storage::Tier* const> durable, absl::Status* unreachable);

// The uid among a listing's records: of the newest that can be read; unknown when none can.
Uid UidFromRecords(storage::Tier& tier, const storage::Listing& listing);

// What this process says of itself in a claim.
format::LifeClaim ThisProcess(const std::string& nonce, uint32_t world);

// Writes job.json where it is missing (Invalid when another uid's is there) and claims a life of at least `incarnation` there,
// counting up past claims of others unless `fixed`. Returns the incarnation claimed. A claim with the same nonce is our own: the
// ranks of one life share it, so whichever comes first claims a shared tier for all.
absl::StatusOr<uint32_t> ClaimLife(storage::Tier& tier, const std::string& job, const Uid& uid, uint32_t incarnation, bool fixed,
                                   const format::LifeClaim& claim);

// Unavailable "superseded by life N (host, pid)" when a greater life than `incarnation` has claimed the tier; OK when none has,
// or when it cannot be read (the commit itself will tell).
void CheckNotSuperseded(storage::Tier& tier, uint32_t incarnation, storage::Done done);

}  // namespace neve

#endif  // NEVE_ENGINE_IDENTITY_H_
