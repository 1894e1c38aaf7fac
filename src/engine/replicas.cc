// State that all ranks hold alike (replicated=): one rank of each host keeps its image in RAM, rank 0 writes it to the durable tiers. It is
// saved as the image of one rank of a world of one, so it is complete once that is there, and any number of ranks restores it.
#include <limits>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "engine/engine_impl.h"
#include "format/layout.h"

namespace neve {
namespace {

constexpr sync::Nanos kFirstLook = 200 * sync::kMillisecond;   // doubled from look to look
constexpr int kLooks = 8;                                      // the last after 51 seconds

}  // namespace

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

void EngineImpl::CompareFirstImage(const std::shared_ptr<const format::CommitRecord>& record) {
  if (options_.world == 1 || compared_.exchange(true)) return;
  // Of the ranks of one host the first one looks at the others; with replicated= each host's at what rank 0 has written.
  const bool looks = replicated() ? KeepsRam() && !WritesDurable() && !durable_.empty() : keeps_ram_ && host_ranks_.size() > 1;
  if (looks) slot_executor_->PostAfter(kFirstLook, [this, record] { LookForOthers(record, kLooks); });
}

void EngineImpl::LookForOthers(const std::shared_ptr<const format::CommitRecord>& record, int looks_left) {
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  std::vector<uint32_t> wanted;
  if (replicated()) {
    wanted.push_back(0);
  } else {
    for (const auto& [rank, process] : host_ranks_) {
      if (rank != options_.rank) wanted.push_back(rank);
    }
  }
  std::vector<uint32_t> same;
  size_t found = 0;
  for (const catalog::Save& save : catalog::GroupSaves(listings)) {
    if (save.save != record->key.save || save.world != record->key.world) continue;
    const auto opener = OpenerOf(save, listings, names);
    for (const uint32_t rank : wanted) {
      const absl::StatusOr<format::CommitRecord> theirs = opener->RecordOf(rank, replicated());
      if (!theirs.ok()) continue;
      ++found;
      // A copy that is to stand for rank 0's must be equal; ranks that hold the same may still have their own numbers and generators.
      if (replicated() ? theirs->digests == record->digests : engine::SameBytes(*record, *theirs)) same.push_back(rank);
    }
  }
  if (found < wanted.size() && looks_left > 1) {
    const sync::Nanos pause = kFirstLook << (kLooks - looks_left + 1);
    slot_executor_->PostAfter(pause, [this, record, looks_left] { LookForOthers(record, looks_left - 1); });
    return;
  }
  if (replicated() && found > 0 && same.empty()) {
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=replica_differs step=%d save=%s reason=\"this host's copy, of rank %d, is not what rank 0 has written, "
                             "though replicated= says that all ranks hold the same; a restore gives rank 0's\"",
                             record->key.step, record->key.save.ToString(), options_.rank));
  }
  if (!replicated() && !same.empty()) {
    std::string ranks = std::to_string(options_.rank);
    for (const uint32_t rank : same) ranks += "," + std::to_string(rank);
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=replicas_saved step=%d save=%s ranks=%s reason=\"these ranks of one host save the same bytes; with "
                             "replicated=True one copy a host is kept, and one is written\"",
                             record->key.step, record->key.save.ToString(), ranks));
  }
}

std::optional<SaveId> EngineImpl::NewestWritten(double deadline_s) {
  const std::vector<ImageKey> full = pool_->Full();
  if (full.empty()) return std::nullopt;
  // As one that has no image of its own: rank 0's is all that is waited for.
  return WaitUntilWhole(full.front().save, std::numeric_limits<uint32_t>::max(), 1, deadline_s);
}

}  // namespace neve
