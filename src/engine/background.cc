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
        tier_errors_.erase(tier.name);
      } else {
        tier_errors_[tier.name] = std::string(status.message());
      }
    }
    pool_->Release(entry);
    if (status.ok()) {
      tier.durable_newest = std::max(tier.durable_newest.value_or(SaveId{}), record->key.save);
      if (ticket != nullptr) ticket->Reached(tier.name, PathOf(*tier.tier, record->key));
      Collect(tier);
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
    std::optional<SaveId> newest;
    std::set<SaveId> there;
    for (const catalog::Save& save : catalog::GroupSaves(one)) {
      if (!save.complete) continue;
      if (!newest.has_value()) newest = save.save;
      there.insert(save.save);
    }
    std::vector<ImageKey> full = pool_->Full();
    std::reverse(full.begin(), full.end());   // oldest first
    for (const ImageKey& key : full) {
      if (there.count(key.save) != 0) {
        sync::MutexLock lock(mutex_);
        committed_[key.save].insert(durable->name);
        continue;
      }
      if (key.step % durable->config.every != 0 || (newest.has_value() && key.save < *newest)) continue;
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
    const absl::StatusOr<uint32_t> claimed = ClaimLife(*tier.tier, options_.job, uid, incarnation_, true, nonce_, options_.world);
    executor_->Post([&tier, claimed, done] {
      tier.claimed = claimed.ok();
      done(claimed.status());
    });
  });
}

void EngineImpl::Collect(DurableTier& tier) {
  if (!tier.config.keep.has_value()) return;
  if (tier.collecting) {
    tier.collect_again = true;
    return;
  }
  tier.collecting = true;
  {
    sync::MutexLock lock(mutex_);
    ++in_flight_;
  }
  tier.tier->List([this, &tier](absl::StatusOr<storage::Listing> listing) {
    executor_->Post([this, &tier, listing = std::move(listing)]() mutable { CollectListed(tier, std::move(listing)); });
  });
}

void EngineImpl::CollectListed(DurableTier& tier, absl::StatusOr<storage::Listing> listing) {
  if (!listing.ok()) {
    obs::Log(obs::Level::kWarning, absl::StrFormat("event=retention_failed place=\"%s\" error=\"%s\"", tier.tier->info().place,
                                                   std::string(listing.status().message())));
    RetireAll(tier, {});
    return;
  }
  const std::vector<catalog::TierListing> one = {{TierKind::kFile, tier.tier->info().place, absl::OkStatus(), *listing}};
  const std::vector<catalog::Save> saves = catalog::GroupSaves(one);
  std::map<SaveId, double> best_values;
  if (tier.config.best_count > 0) {
    // Tags of this life are known; those of earlier lives stand in their records, one of which is read a turn.
    sync::MutexLock lock(mutex_);
    for (const catalog::Save& save : saves) {
      if (!save.CompleteIn(0)) continue;
      const auto known = tags_.find(save.save);
      if (known == tags_.end()) {
        tier.tier->OpenImage(save.KeyOf(options_.rank), [this, &tier, id = save.save, listing](auto reader) {
          executor_->Post([this, &tier, id, listing, tags = reader.ok() ? (*reader)->record().tags : Tags{}] {
            {
              sync::MutexLock again(mutex_);
              tags_.emplace(id, tags);
            }
            CollectListed(tier, listing);
          });
        });
        return;
      }
      const auto tag = known->second.find(tier.config.best_tag);
      if (tag == known->second.end()) continue;
      if (const auto* number = std::get_if<double>(&tag->second)) best_values[save.save] = *number;
      if (const auto* number = std::get_if<int64_t>(&tag->second)) best_values[save.save] = static_cast<double>(*number);
    }
  }
  const catalog::RetentionRule rule{tier.config.keep, tier.config.best_tag, tier.config.best_is_max, tier.config.best_count};
  // A record that is seen may not be durable yet: nothing as new as the newest save reported durable goes.
  const std::optional<SaveId> below = tier.durable_newest.value_or(SaveId{});
  std::vector<ImageKey> victims;
  for (const catalog::Save* save : catalog::ToRetire(saves, 0, rule, held_->All(), best_values, below)) {
    victims.push_back(save->KeyOf(options_.rank));
    sync::MutexLock lock(mutex_);
    tags_.erase(save->save);
  }
  RetireAll(tier, victims);
}

void EngineImpl::RetireAll(DurableTier& tier, const std::vector<ImageKey>& victims) {
  auto left = std::make_shared<size_t>(victims.size() + 1);
  auto one_done = [this, &tier, left] {
    if (--*left > 0) return;
    tier.collecting = false;
    if (std::exchange(tier.collect_again, false)) Collect(tier);
    FlightEnded();
  };
  for (const ImageKey& key : victims) {
    tier.tier->Retire(key, [this, key, place = tier.tier->info().place, one_done](absl::Status status) {
      executor_->Post([this, key, place, one_done, status = std::move(status)] {
        if (status.ok()) {
          metrics_->Add(obs::Metric::kImagesRetired);
        } else {
          // Training goes on; the next round tries again.
          obs::Log(obs::Level::kWarning, absl::StrFormat("event=retire_failed step=%d place=\"%s\" error=\"%s\"", key.step, place,
                                                         std::string(status.message())));
        }
        one_done();
      });
    });
  }
  one_done();
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
    {
      sync::MutexLock lock(mutex_);
      if (target.status.ok()) {
        tier_errors_.erase(target.tier->name);
      } else {
        tier_errors_[target.tier->name] = std::string(target.status.message());
      }
    }
    if (target.status.ok()) {
      ticket.Reached(target.tier->name, PathOf(*target.tier->tier, record.key));
      executor_->Post([this, tier = target.tier, save = record.key.save] {
        tier->durable_newest = std::max(tier->durable_newest.value_or(SaveId{}), save);
        Collect(*tier);
      });
    } else {
      ticket.Failed(target.tier->name, target.status);
      NoteError(target.status);
      if (first.ok()) first = target.status;
    }
  }
  return first;
}

}  // namespace neve
