// How long a rank that closes waits for the others' parts of its newest save: a pure function of one listing.
//
// Invariants
//   - Nobody is waited for who is known to be dead: what a dead process has not committed, it never will.
//   - A rank of this host that lives and has begun to write is waited for as long as the caller allows.
//   - Of ranks on other hosts it is not known whether they live, nor, until an image of one is seen, whether this tier shows theirs.
#ifndef NEVE_ENGINE_CLOSING_WAIT_H_
#define NEVE_ENGINE_CLOSING_WAIT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "catalog/catalog.h"
#include "neve/types.h"

namespace neve::engine {

struct ClosingWait {
  std::optional<SaveId> whole;   // the newest save, `newest` or older, that all ranks have in every durable tier
  // How long the parts of `newest` that are not there yet may be waited for, from the beginning of the wait. 0 when it is whole, or
  // will never be.
  double patience_s = 0;
};

inline constexpr double kAlivePatience_s = 10;     // a rank of this host that has not begun, or one elsewhere whose images are seen
inline constexpr double kUnseenPatience_s = 2;     // ranks on other hosts, of which nothing is seen: the tier may not be shared

// `saves`: newest first. `durable`: indices of the durable tiers. `alive`: whether a rank's process lives, none for one on another host.
// `allowed_s`: the caller's deadline.
ClosingWait LookWhileClosing(std::span<const catalog::Save> saves, std::span<const int> durable, const SaveId& newest, uint32_t rank,
                             uint32_t world, double allowed_s, const std::function<std::optional<bool>(uint32_t)>& alive);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_CLOSING_WAIT_H_
