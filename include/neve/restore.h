// Restore into memory that is there: choose a save, check that it fits, read it, verified, and agree with the other ranks.
#ifndef NEVE_RESTORE_H_
#define NEVE_RESTORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "neve/engine.h"

namespace neve {

struct RestoreRequest {
  FindRequest find;                      // fallback: also where the save's bytes turn out damaged
  std::shared_ptr<State> state;          // what is filled, by name; null: nothing, the save is only chosen and agreed on
  // One a tensor, where the state says, filled by its strides. Those on a device are dense (contiguous, or with dimensions in another
  // order), and what the program's streams do with them has ended.
  std::span<void* const> targets;
  std::vector<std::string> include;      // glob patterns over names: only these; empty: all
  // Every chunk is verified before a target is touched; where a copy is bad, what is wanted is read from other tiers and ranks first.
  bool atomic = false;
  // Nothing but what the state names is of interest: ranks whose images become one may differ in the rest, which is the lowest rank's then.
  bool only_state = false;
  bool partial = false;                  // tensors that the save lacks are left alone
  std::span<uint8_t> restored = {};      // empty, or one a tensor: 1 where it was filled
};

// The save that was restored. A tensor that is no piece takes the saved one of its name, dtype and shape; a piece is filled from whatever
// pieces of its logical tensor were saved, on however many ranks. With world > 1 every rank calls it: all get the same save, or all the
// same error. Blocks.
// Invalid: it does not fit, with the names; nothing was written. NotFound, DataLoss, Damaged, Unavailable: as Engine::Find; without
// `atomic` targets may then be partly written.
absl::StatusOr<std::unique_ptr<Image>> RestoreInto(Engine& engine, const RestoreRequest& request);

// What a save holds beside its tensors. NotFound: it holds none; Damaged.
absl::StatusOr<std::string> ValuesOf(const Image& image);                  // the values text (docs/format.md)
absl::StatusOr<std::string> ReadBlob(Image& image, uint32_t number);       // the payload of `neve.blob.<number>`, verified

}  // namespace neve

#endif  // NEVE_RESTORE_H_
