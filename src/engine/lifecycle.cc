// Listing, pins, health, and the end: drain, close, destruction.
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "engine/blocking.h"
#include "engine/engine_impl.h"
#include "engine/save_info.h"
#include "nlohmann/json.hpp"
#include "slot/slot.h"

namespace neve {
namespace {

constexpr double kLastWord_s = 1;   // that what this rank said last may take to reach its neighbours in the tree

}  // namespace

std::vector<catalog::TierListing> EngineImpl::ListAll(std::vector<std::string>* names) {
  std::vector<catalog::TierListing> listings;
  if (ram_.has_value()) {
    names->push_back("ram");
    catalog::TierListing ram{TierKind::kRam, "ram:", absl::OkStatus(), {}};
    if (const absl::Status folder = slot::RamFolder(false).status(); !folder.ok() && !absl::IsNotFound(folder)) {
      ram.status = folder;   // there, and not to be used: what lies in it may be newer than anything else
    } else if (std::shared_ptr<storage::Tier> tier = RamTier(); tier != nullptr) {
      auto listing = Await<storage::Listing>([&](auto done) { tier->List(done); });
      ram.status = listing.status();
      if (listing.ok()) ram.listing = *std::move(listing);
    }
    listings.push_back(std::move(ram));
  }
  for (auto& durable : durable_) {
    names->push_back(durable->name);
    auto listing = Await<storage::Listing>([&](auto done) { durable->tier->List(done); });
    catalog::TierListing file{durable->config.kind, durable->tier->info().place, listing.status(), {}};
    if (listing.ok()) file.listing = *std::move(listing);
    listings.push_back(std::move(file));
  }
  return listings;
}

absl::StatusOr<std::vector<SaveInfo>> EngineImpl::Steps() {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  NEVE_RETURN_IF_ERROR(EnsureUid());
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  bool any_listed = false;
  for (const auto& listing : listings) any_listed |= listing.status.ok();
  if (!any_listed && !listings.empty()) return listings.back().status;
  std::vector<SaveInfo> infos;
  Uid uid;
  {
    sync::MutexLock lock(uid_mutex_);
    uid = uid_;
  }
  const std::shared_ptr<storage::Tier> ram = RamTier();
  for (const catalog::Save& save : catalog::GroupSaves(listings)) {
    SaveInfo info = engine::ToSaveInfo(save, listings, names);
    info.job = options_.job;
    info.uid = uid;
    // Time and tags stand in the record of the nearest copy.
    for (const auto& copies : save.ranks) {
      for (const catalog::Copy& copy : copies) {
        if (info.time != 0 || !copy.entry.has_record) continue;
        storage::Tier* tier =
            ram_.has_value() && copy.tier == 0 ? ram.get() : durable_[copy.tier - (ram_.has_value() ? 1 : 0)]->tier.get();
        if (tier == nullptr) continue;
        auto reader = Await<std::shared_ptr<storage::ImageReader>>([&](auto done) { tier->OpenImage(copy.entry.key, done); });
        if (!reader.ok()) {
          info.complete = false;
          info.reason = std::string(reader.status().message());
          continue;
        }
        info.time = (*reader)->record().time;
        info.tags = (*reader)->record().tags;
        info.complete = save.complete;
        info.reason = save.reason;
      }
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

absl::Status EngineImpl::SetPinned(uint64_t step, bool pinned) {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  NEVE_RETURN_IF_ERROR(EnsureUid());
  bool found = false;
  for (auto& durable : durable_) {
    auto listing = Await<storage::Listing>([&](auto done) { durable->tier->List(done); });
    if (!listing.ok()) return listing.status();
    const std::vector<catalog::TierListing> one = {
        {TierKind::kFile, durable->tier->info().place, absl::OkStatus(), *std::move(listing)}};
    for (const catalog::Save& save : catalog::GroupSaves(one)) {
      if (save.step != step || !save.complete) continue;
      const ImageKey key = save.KeyOf(std::min(options_.rank, save.world - 1));
      NEVE_RETURN_IF_ERROR(AwaitStatus([&](auto done) { durable->tier->SetPinned(key, pinned, done); }));
      found = true;
      break;   // that step's newest save
    }
  }
  if (!found) {
    return NotFound(
        absl::StrFormat("step %d has no complete save in a durable tier that could be %s", step, pinned ? "pinned" : "unpinned"));
  }
  return absl::OkStatus();
}

std::string EngineImpl::HealthJson() const {
  nlohmann::ordered_json health;
  {
    sync::MutexLock lock(mutex_);
    health["closed"] = closed_;
    health["in_flight"] = in_flight_;
    health["error"] = first_error_.ok() ? nlohmann::ordered_json() : nlohmann::ordered_json(std::string(first_error_.message()));
    health["streaming"] = streaming_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(streaming_);
    auto& tiers = health["tiers"] = nlohmann::ordered_json::object();
    if (ram_.has_value()) tiers["ram"] = {{"place", "ram:"}, {"ok", true}, {"error", nullptr}};
    for (const auto& durable : durable_) {
      const std::string error = standing_->Error(durable->name);
      tiers[durable->name] = {
          {"place", durable->tier->info().place},
          {"ok", error.empty()},
          {"error", error.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error)}};
    }
  }
  const node::SlotPool* pool = ready_pool_;
  health["incarnation"] = incarnation_.load();
  auto& keeps = health["keeps"] = nlohmann::ordered_json::array();
  if (KeepsRam()) keeps.push_back("ram");
  for (const auto& durable : durable_) {
    if (WritesDurable()) keeps.push_back(durable->name);
  }
  health["slots"] = pool == nullptr ? 0 : pool->slot_count();
  health["slot_bytes"] = pool == nullptr ? 0 : pool->bytes();
  if (options_.world > 1) health["control"] = watermark_.Health();
  if (options_.grace_s > 0) health["sigterm_handler"] = sync::TerminationWatch::Replaced() ? "replaced by another" : "in place";
  auto& counters = health["counters"] = nlohmann::ordered_json::object();
  for (int i = 0; i < static_cast<int>(obs::Metric::kCount); ++i) {
    const auto metric = static_cast<obs::Metric>(i);
    counters[std::string(obs::Name(metric))] = metrics_->Get(metric);
  }
  return health.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::Status EngineImpl::WaitIdle(double deadline_s) {
  sync::MutexLock lock(mutex_);
  if (idle_.WaitFor(mutex_, deadline_s, [this]() NEVE_REQUIRES(mutex_) { return in_flight_ == 0; })) return absl::OkStatus();
  return Timeout(absl::StrFormat("%d writes to slower tiers are still in flight after %.3g s", in_flight_, deadline_s));
}

absl::Status EngineImpl::WaitIdleAtEnd(double deadline_s) {
  constexpr double kQuiet = 2;
  if (deadline_s >= 0 && deadline_s <= kQuiet) return WaitIdle(deadline_s);
  if (absl::Status idle = WaitIdle(kQuiet); idle.ok()) return idle;
  executor_->Post([this] {
    for (const auto& durable : durable_) {
      if (const std::string waited = durable->flush->DescribeWait(); !waited.empty()) {
        obs::Log(obs::Level::kWarning, absl::StrFormat("event=end_waits for=\"%s\"", waited));
      }
    }
  });
  return WaitIdle(deadline_s < 0 ? deadline_s : deadline_s - kQuiet);
}

void EngineImpl::PersistNewest(double deadline_s) {
  node::SlotPool* pool = ready_pool_;
  if (pool == nullptr || !WritesDurable()) return;
  // What is in flight may be just that save: its outcome decides what is owed.
  absl::Status idle = WaitIdleAtEnd(deadline_s);
  if (!idle.ok()) {
    obs::Log(obs::Level::kError, absl::StrFormat("event=persist_incomplete error=\"%s\"", std::string(idle.message())));
    return;
  }
  // Of many ranks one may be a save ahead of the others: the one before it is then the newest that all of them have.
  std::vector<ImageKey> keys;
  for (const ImageKey& key : pool->Full()) {
    if (keys.size() == (image_world() > 1 ? 2 : 1)) break;
    node::Entry* there = pool->HoldByKey(key);
    if (there == nullptr) continue;   // its file is gone
    pool->Release(there);
    keys.push_back(key);
  }
  for (size_t i = 0; i < keys.size() * durable_.size(); ++i) {
    auto& durable = durable_[i % durable_.size()];   // the newest first, in every tier
    node::Entry* newest = pool->HoldByKey(keys[i / durable_.size()]);
    if (newest == nullptr) continue;
    if (newest->slot == nullptr) {   // private memory: a flush holds it, or it owes nothing
      pool->Release(newest);
      continue;
    }
    bool owed;
    {
      sync::MutexLock lock(mutex_);
      owed = committed_[newest->key.save].count(durable->name) == 0;
      if (owed) ++in_flight_;
    }
    if (!owed) {
      pool->Release(newest);
      continue;
    }
    absl::StatusOr<format::CommitRecord> record = newest->slot->Record();
    if (!record.ok()) {
      NoteError(record.status());
      pool->Release(newest);
      FlightEnded();
      continue;
    }
    executor_->Post(
        [this, tier = durable.get(), newest, kept = std::make_shared<const format::CommitRecord>(*std::move(record))] {
          FlushOne(*tier, newest, kept, nullptr);
        });
  }
  WaitIdleAtEnd(deadline_s).IgnoreError();   // close reports it; after SIGTERM the grace is over
}

absl::Status EngineImpl::Drain(double deadline_s) {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  return WaitIdle(deadline_s);
}

absl::Status EngineImpl::Close(bool final, double deadline_s) {
  if (::getpid() != pid_) return Closed("this is a forked child: its parent's engine cannot be closed here");
  {
    sync::MutexLock lock(mutex_);
    if (closed_) return Closed("the engine is closed already");
    closed_ = true;
  }
  EndGroupCalls();   // they may need save_mutex_
  sync::MutexLock save_lock(save_mutex_);
  termination_.reset();
  absl::Status result;
  if (pool_ != nullptr) {
    if (final) PersistNewest(deadline_s);
    result = WaitIdleAtEnd(deadline_s);
    slot_executor_->Stop();   // no slot is made any more
    if (result.ok() && !durable_.empty()) {
      // Frees what owes nothing: saves that every durable tier has, and older ones than such a save.
      std::optional<SaveId> durable_newest;
      {
        sync::MutexLock lock(mutex_);
        for (const auto& [save, tiers] : committed_) {
          if (tiers.size() == durable_.size() && (!durable_newest.has_value() || save > *durable_newest)) durable_newest = save;
        }
      }
      if (!WritesDurable()) {
        durable_newest = NewestWritten(final ? deadline_s : 0);
      } else if (image_world() > 1 && durable_newest.has_value()) {
        // What this rank has written is worth nothing without the others' part.
        durable_newest = WaitUntilWhole(*durable_newest, options_.rank, options_.world, deadline_s);
      }
      pool_->RemoveIf([&](const ImageKey& key) { return durable_newest.has_value() && key.save <= *durable_newest; });
    }
  }
  if (copier_ != nullptr) copier_->Stop();   // no memory of ours goes while a device writes to it
  watermark_.Leave(deadline_s < 0 ? kLastWord_s : std::min(deadline_s, kLastWord_s));
  executor_->Stop();
  slot_executor_->Stop();
  EndCompletion();
  sync::MutexLock lock(mutex_);
  if (result.ok()) result = first_error_;
  return result;
}

EngineImpl::~EngineImpl() {
  if (::getpid() != pid_) {
    // A forked child: threads and locks are not here; nothing may be touched, and the memory goes with the process.
    [[maybe_unused]] auto* executor = executor_.release();
    [[maybe_unused]] auto* slot_executor = slot_executor_.release();
    [[maybe_unused]] auto* copier = copier_.release();
    [[maybe_unused]] auto* lanes = new std::map<int32_t, std::shared_ptr<capture::DeviceLane>>(std::move(lanes_));
    [[maybe_unused]] auto* registrations = new std::shared_ptr<device::Registrations>(registrations_);
    [[maybe_unused]] auto* group = group_.release();   // its lock may be held by a thread that is not here
    [[maybe_unused]] auto* watermark = new engine::Watermark(std::move(watermark_));
    [[maybe_unused]] auto* pool = new std::shared_ptr<node::SlotPool>(std::move(pool_));
    for (auto& durable : durable_) {
      [[maybe_unused]] auto* leaked = durable.release();
    }
    return;
  }
  bool closed;
  {
    sync::MutexLock lock(mutex_);
    closed = std::exchange(closed_, true);
  }
  EndGroupCalls();
  termination_.reset();
  if (!closed) {
    double longest = 0;
    for (const auto& durable : durable_) longest = std::max(longest, durable->config.timeout_s);
    if (absl::Status idle = WaitIdleAtEnd(longest); !idle.ok()) {
      obs::Log(obs::Level::kError, absl::StrFormat("event=abandoned error=\"%s\"", std::string(idle.message())));
    }
  }
  if (copier_ != nullptr) copier_->Stop();
  watermark_.Leave(closed ? 0 : kLastWord_s);   // its thread posts to the executors
  if (slot_executor_ != nullptr) slot_executor_->Stop();
  if (executor_ != nullptr) executor_->Stop();
  for (auto& durable : durable_) {
    durable->flush.reset();
    durable->retention.reset();
  }
  pool_.reset();
}

}  // namespace neve
