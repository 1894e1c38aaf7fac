// The store of a group with a list of places, "HOST:PORT,HOST:PORT,...", one a rank: rank 0 holds the values and listens at its place,
// the others connect to it. What is sent is proved by a key that all have (session.h).
//
// Invariants
//   - Who does not prove the key sees and sets nothing; of those at most kUnprovenMax connections are kept, each at most kProofTime.
//   - A call of another rank waits at most kAnswerTime for rank 0: then Unavailable, which says what was tried; it may be made again.
//   - Rank 0 stays until every rank that is connected has read its last answer, at most kLingerTime: an error of a gather reaches all.
//   - A value is at most kValueBytes here; a larger one is Exhausted.
#ifndef NEVE_GROUP_STATIC_STORE_H_
#define NEVE_GROUP_STATIC_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "base/sync/executor.h"
#include "group/store.h"

namespace neve::group {

inline constexpr size_t kStaticUnprovenMax = 64, kStaticValueBytes = 256u << 20;
inline constexpr sync::Nanos kStaticProofTime = 10 * sync::kSecond, kStaticAnswerTime = 2 * sync::kSecond;
inline constexpr sync::Nanos kStaticLingerTime = 2 * sync::kSecond;

struct StaticList {
  std::vector<std::string> places;   // by rank, numeric
  bool loopback = false;             // all of them
};
// Of what stands behind "static:". Invalid: not as many places as ranks, one of them twice, no port. Unavailable: a host that cannot be
// resolved. May wait for the resolver.
absl::StatusOr<StaticList> ParseStaticList(const std::string& list, uint32_t world);

// The key of NEVE_KEY_FILE (without line ends; a file that others may read is Invalid), else of NEVE_KEY. At least kKeyBytesMin bytes.
// Where neither is set: Invalid, but on the loopback alone, where a fixed one is taken and any user of the host could join.
inline constexpr size_t kKeyBytesMin = 16;
absl::StatusOr<std::string> StaticKey(const StaticList& list);

// `context`: of the job; ranks of another one are refused. Unavailable: rank 0's port cannot be had. Unsupported: no libcrypto.
absl::StatusOr<std::unique_ptr<Store>> StaticStore(const StaticList& list, uint32_t rank, const std::string& key,
                                                   const std::string& context);

}  // namespace neve::group

#endif  // NEVE_GROUP_STATIC_STORE_H_
