// State that all ranks hold alike (replicated=): one rank of each host keeps its image in RAM, rank 0 writes it to the durable tiers. It is
// saved as the image of one rank of a world of one, so it is complete once that is there, and any number of ranks restores it.
#include <limits>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "engine/engine_impl.h"
#include "format/layout.h"

namespace neve {

absl::Status EngineImpl::CheckReplicable(const std::shared_ptr<State>& state) {
  if (!replicated() || state == replicable_) return absl::OkStatus();
  for (const format::TensorSpec& tensor : state->structure().tensors) {
    if (tensor.piece == nullptr || tensor.piece->global_shape == tensor.shape) continue;
    return Invalid(absl::StrFormat("\"%s\" is a piece of a logical tensor, of which other ranks hold other pieces: replicated= is for "
                                   "state that every rank holds whole; open without it",
                                   tensor.name));
  }
  replicable_ = state;
  return absl::OkStatus();
}

void EngineImpl::CommitOthers(const SaveId& save, const Due& due) {
  for (const std::string& name : due.others) watermark_.Committed(name, save);
}

void EngineImpl::AbandonSave(const SaveId& save) {
  if (WritesDurable()) return watermark_.AbandonedEverywhere(save);
  if (KeepsRam()) watermark_.Abandoned("ram", save);
  for (const auto& durable : durable_) watermark_.Committed(durable->name, save);
}

std::optional<SaveId> EngineImpl::NewestWritten(double deadline_s) {
  const std::vector<ImageKey> full = pool_->Full();
  if (full.empty()) return std::nullopt;
  // As one that has no image of its own: rank 0's is all that is waited for.
  return WaitUntilWhole(full.front().save, std::numeric_limits<uint32_t>::max(), 1, deadline_s);
}

}  // namespace neve
