// What happens to a captured image afterwards: flush to durable tiers, guards, retention. Runs on executor_.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "engine/blocking.h"
#include "engine/engine_impl.h"
#include "engine/identity.h"
#include "format/names.h"
#include "node/adoption.h"

namespace neve {
namespace {

std::string PathOf(const storage::Tier& tier, const ImageKey& key) {
  const std::string place = tier.info().place;
  const std::string folder = os::JoinPath(place.substr(place.find(':') + 1), format::FormatSaveName({key.step, key.save}));
  return os::JoinPath(folder, format::FormatImageName(key.rank, key.world));
}

}  // namespace

void EngineImpl::NoteError(const absl::Status& status) {
  sync::MutexLock lock(mutex_);
  if (first_error_.ok()) first_error_ = status;
}

void EngineImpl::FlightEnded() {
  sync::MutexLock lock(mutex_);
  if (--in_flight_ == 0) idle_.NotifyAll();
}

void EngineImpl::EnqueueFlush(node::Entry* entry, std::shared_ptr<const format::CommitRecord> record,
                              const std::vector<std::string>& due, std::shared_ptr<TicketImpl> ticket) {
  {
    // Only saves that still lie in the pool are remembered.
    const std::vector<ImageKey> full = pool_->Full();
    sync::MutexLock lock(mutex_);
    std::map<SaveId, std::set<std::string>> kept;
    for (const ImageKey& key : full) kept[key.save] = std::move(committed_[key.save]);
    committed_ = std::move(kept);
  }
  for (auto& durable : durable_) {
    if (std::find(due.begin(), due.end(), durable->name) == due.end()) continue;
    pool_->Hold(entry);
    {
      sync::MutexLock lock(mutex_);
      ++in_flight_;
    }
    executor_->Post([this, tier = durable.get(), entry, record, ticket] { FlushOne(*tier, entry, record, ticket); });
  }
}

void EngineImpl::FlushOne(DurableTier& tier, node::Entry* entry, std::shared_ptr<const format::CommitRecord> record,
                          std::shared_ptr<TicketImpl> ticket) {
  const uint64_t padded = std::min<uint64_t>(entry->capacity, (record->image_bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  flush::Job job;
  job.record = record;
  job.image = entry->image().first(padded).first(record->image_bytes);
  job.done = [this, &tier, entry, record, ticket](absl::Status status) {
    {
      sync::MutexLock lock(mutex_);
      if (status.ok()) {
        committed_[record->key.save].insert(tier.name);
        standing_->Works(tier.name);
      } else {
        standing_->Fails(tier.name, std::string(status.message()));
      }
    }
    if (status.ok()) {
      watermark_.Committed(tier.name, record->key.save);
    } else {
      watermark_.Abandoned(tier.name, record->key.save);
      if (entry->slot == nullptr) watermark_.Abandoned("", record->key.save);   // it lay nowhere else
    }
    pool_->Release(entry);
    if (status.ok()) {
      if (ticket != nullptr) ticket->Reached(tier.name, PathOf(*tier.tier, record->key));
      MadeDurable(tier, record->key.save);
    } else {
      metrics_->Add(obs::Metric::kSavesFailed);
      const absl::Status annotated = Annotate(status, absl::StrFormat("step %d (save %s), tier %s", record->key.step,
                                                                      record->key.save.ToString(), tier.name));
      NoteError(annotated);
      if (ticket != nullptr) ticket->Failed(tier.name, annotated);
    }
    FlightEnded();
  };
  tier.flush->Enqueue(std::move(job));
}

void EngineImpl::EnqueueAdopted() {
  // What a killed life left in RAM and owed to a durable tier: saves due there that are newer than the newest one there.
  for (auto& durable : durable_) {
    auto listing = Await<storage::Listing>([&](auto done) { durable->tier->List(done); });
    if (!listing.ok()) continue;
    const std::vector<catalog::TierListing> one = {{TierKind::kFile, durable->tier->info().place, absl::OkStatus(), *listing}};
    const node::Debt debt = node::DebtOf(pool_->Full(), catalog::GroupSaves(one), durable->config.every);
    {
      sync::MutexLock lock(mutex_);
      for (const ImageKey& key : debt.there) committed_[key.save].insert(durable->name);
    }
    for (const ImageKey& key : debt.owed) {
      node::Entry* entry = pool_->HoldByKey(key);
      if (entry == nullptr) continue;
      absl::StatusOr<format::CommitRecord> record = entry->slot->Record();
      if (!record.ok()) {
        pool_->Release(entry);
        continue;
      }
      {
        sync::MutexLock lock(mutex_);
        ++in_flight_;
      }
      executor_->Post(
          [this, tier = durable.get(), entry, record = std::make_shared<const format::CommitRecord>(*std::move(record))] {
            FlushOne(*tier, entry, record, nullptr);
          });
    }
  }
}

void EngineImpl::MayCommit(DurableTier& tier, storage::Done done) {
  if (tier.claimed) {
    CheckNotSuperseded(*tier.tier, incarnation_, std::move(done));
    return;
  }
  // The tier could not be claimed when this life began: it is now, off this thread, since a claim waits for the tier.
  Uid uid;
  {
    sync::MutexLock lock(uid_mutex_);
    uid = uid_;
  }
  slot_executor_->Post([this, &tier, uid, done] {
    const absl::StatusOr<uint32_t> claimed = ClaimLife(*tier.tier, options_.job, uid, incarnation_, true, claim_);
    executor_->Post([&tier, claimed, done] {
      tier.claimed = claimed.ok();
      done(claimed.status());
    });
  });
}

void EngineImpl::MadeDurable(DurableTier& tier, const SaveId& save) {
  {
    sync::MutexLock lock(mutex_);
    ++in_flight_;
  }
  tier.retention->MadeDurable(save, [this] { FlightEnded(); });
}

absl::Status EngineImpl::StreamToTiers(const SaveRequest& request, const capture::CapturePlan& plan, format::CommitRecord record,
                                       const std::vector<std::string>& due, TicketImpl& ticket) {
  constexpr uint64_t kWindowBytes = 8 * kDefaultChunkBytes;
  struct Target {
    DurableTier* tier;
    std::shared_ptr<storage::ImageWriter> writer;
    absl::Status status;
  };
  std::vector<Target> targets;
  for (auto& durable : durable_) {
    if (std::find(due.begin(), due.end(), durable->name) == due.end()) continue;
    auto writer = Await<std::shared_ptr<storage::ImageWriter>>([&](auto done) {
      durable->tier->BeginImage(record.key, record.image_bytes, done);
    });
    targets.push_back({durable.get(), writer.ok() ? *writer : nullptr, writer.status()});
  }
  std::unique_ptr<std::byte[], node::Entry::Free> window(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kWindowBytes)));
  if (window == nullptr) return Exhausted("no memory for a streaming window of 32 MiB", ENOMEM);
  record.digests.resize(record.chunk_count());
  const capture::CaptureInput input{request.addresses, request.values, request.blobs};
  for (uint64_t begin = 0; begin < record.image_bytes; begin += kWindowBytes) {
    const uint64_t end = std::min(begin + kWindowBytes, record.image_bytes);
    const uint64_t chunk = begin / record.chunk_bytes;
    const uint64_t chunks = (end - begin + record.chunk_bytes - 1) / record.chunk_bytes;
    NEVE_RETURN_IF_ERROR(plan.RunRange(input, begin, end, {window.get(), kWindowBytes},
                                       std::span(record.digests).subspan(chunk, chunks), *crew_));
    for (Target& target : targets) {
      for (uint64_t at = begin; at < end && target.status.ok(); at += kDefaultChunkBytes) {
        const uint64_t bytes = std::min(kDefaultChunkBytes, end - at);
        target.status = AwaitStatus([&](auto done) { target.writer->Write(at, {window.get() + (at - begin), bytes}, done); });
      }
    }
  }
  ticket.Reached("captured");
  absl::Status first;
  for (Target& target : targets) {
    if (target.status.ok()) {
      target.status = AwaitStatus([&](auto done) {
        executor_->Post([this, &target, done] { MayCommit(*target.tier, done); });
      });
    }
    if (target.status.ok()) target.status = AwaitStatus([&](auto done) { target.writer->Commit(record, done); });
    target.writer.reset();
    if (target.status.ok()) {
      standing_->Works(target.tier->name);
      watermark_.Committed(target.tier->name, record.key.save);
      ticket.Reached(target.tier->name, PathOf(*target.tier->tier, record.key));
      executor_->Post([this, tier = target.tier, save = record.key.save] { MadeDurable(*tier, save); });
    } else {
      standing_->Fails(target.tier->name, std::string(target.status.message()));
      watermark_.Abandoned(target.tier->name, record.key.save);
      ticket.Failed(target.tier->name, target.status);
      NoteError(target.status);
      if (first.ok()) first = target.status;
    }
  }
  return first;
}

}  // namespace neve
