// Opening, preparing and saving: what runs on the caller's thread.
#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "base/os/process.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "engine/blocking.h"
#include "engine/engine_impl.h"
#include "engine/identity.h"
#include "format/names.h"
#include "neve/places.h"
#include "storage/file/file_tier.h"
#include "storage/ram/ram_tier.h"

namespace neve {
namespace {

constexpr int kCaptureThreadsMax = 8;

std::string LastPart(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return os::BaseName(path);
}

absl::Status CheckJobName(const std::string& job) {
  if (job.empty() || job == "." || job == ".." || job.find('/') != std::string::npos || job.find('\0') != std::string::npos ||
      job.size() > 200) {
    return Invalid(absl::StrFormat(
        "\"%s\" cannot name a job: it must be 1 to 200 bytes without \"/\"; give job= or a folder with a name", job));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options) {
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<EngineImpl> engine, EngineImpl::Create(options));
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::EngineImpl(EngineOptions options)
    : options_(std::move(options)), pid_(::getpid()), metrics_(std::make_shared<obs::Metrics>()),
      crew_(sync::Crew::Create(options_.capture_threads > 0 ? options_.capture_threads
                                                            : std::min(sync::UsableCores() - 1, kCaptureThreadsMax))),
      held_(std::make_shared<HeldSaves>()), claim_(ThisProcess(os::RandomHex(16), options_.world)) {}

absl::StatusOr<std::unique_ptr<EngineImpl>> EngineImpl::Create(EngineOptions options) {
  if (options.folder.empty() && options.job.empty()) return Invalid("give the job folder, such as \"runs/gpt\"");
  if (options.job.empty()) options.job = LastPart(options.folder);
  NEVE_RETURN_IF_ERROR(CheckJobName(options.job));
  if (options.world == 0 || options.rank >= options.world) {
    return Invalid(absl::StrFormat("rank %d of world %d: want 0 <= rank < world", options.rank, options.world));
  }
  const bool default_tiers = options.tiers.empty();
  if (default_tiers) {
    options.tiers.push_back({.kind = TierKind::kRam});
    options.tiers.push_back({.kind = TierKind::kFile});
  }
  std::unique_ptr<EngineImpl> engine(new EngineImpl(options));
  NEVE_RETURN_IF_ERROR(engine->MakeGroup());
  for (const TierConfig& config : options.tiers) {
    if (config.kind == TierKind::kRam) {
      if (engine->ram_.has_value()) return Invalid("two ram tiers were given; one is enough");
      engine->ram_ = config;
      continue;
    }
    if (config.kind != TierKind::kFile) {
      return Unsupported(absl::StrFormat("%s tiers are not in this version of neve", Name(config.kind)));
    }
    if (!engine->durable_.empty()) return Unsupported("more than one file tier is not in this version of neve");
    auto durable = std::make_unique<DurableTier>();
    durable->config = config;
    durable->name = std::string(Name(config.kind));
    storage::FileTierOptions file;
    file.root = default_tiers ? "" : config.place;
    file.job_folder = default_tiers ? options.folder : os::JoinPath(config.place, options.job);
    NEVE_ASSIGN_OR_RETURN(durable->tier, storage::OpenFileTier(file));
    engine->durable_.push_back(std::move(durable));
  }
  if (engine->ram_.has_value() && engine->ram_->slots == 1 && engine->durable_.empty()) {
    obs::Log(obs::Level::kWarning, "event=one_slot reason=\"ram:?slots=1 without a durable tier: a kill during a save leaves no save; use "
                                   "two slots or more\"");
  }
  if (engine->ram_.has_value() && engine->ram_->bytes != 0) {
    // A budget that was given is checked at once; a measured one when the size of the state is known.
    auto folder = slot::RamFolder(false);
    if (!folder.ok() && !absl::IsNotFound(folder.status())) return folder.status();
    if (folder.ok()) {
      NEVE_ASSIGN_OR_RETURN(const slot::MemoryFacts facts, slot::ReadMemoryFacts(*folder));
      std::string reason;
      const uint64_t there = slot::Budget(facts, 0, &reason);
      if (engine->ram_->bytes > there) {
        return Exhausted(
            absl::StrFormat("ram:?bytes=%d does not fit: %d bytes can be had (%s)", engine->ram_->bytes, there, reason));
      }
    }
  }
  engine->executor_ = sync::ThreadExecutor::Create({.name = "neve-node"});
  // At normal priority: a save may be waiting for the slot that is being made.
  engine->slot_executor_ = sync::ThreadExecutor::Create({.name = "neve-slots", .background = false});
  if (engine->executor_ == nullptr || engine->slot_executor_ == nullptr) {
    return Exhausted("no thread could be started for the engine: raise the limit of processes (ulimit -u, pids cgroup)", EAGAIN);
  }
  for (auto& durable : engine->durable_) {
    flush::Policy policy;
    policy.depth = durable->tier->info().queue_depth;
    policy.rate_bytes_per_s = durable->config.rate_bytes_per_s;
    policy.timeout = static_cast<sync::Nanos>(durable->config.timeout_s * 1e9);
    durable->flush =
        std::make_unique<flush::TierFlush>(*durable->tier, *engine->executor_, *engine->metrics_, policy,
                                           [self = engine.get(), tier = durable.get()](std::function<void(absl::Status)> done) {
                                             self->MayCommit(*tier, std::move(done));
                                           },
                                           [standing = engine->standing_, tier = durable.get()](const absl::Status& status) {
                                             standing->Fails(tier->name, std::string(status.message()), tier->flush->Describe());
                                           });
    const catalog::RetentionRule rule{durable->config.keep, durable->config.best_tag, durable->config.best_is_max,
                                      durable->config.best_count};
    durable->retention = std::make_unique<node::Retention>(*durable->tier, *engine->executor_, *engine->metrics_, rule,
                                                           engine->image_rank(), [held = engine->held_] { return held->All(); },
                                                           engine->image_world(), [self = engine.get(), name = durable->name] {
                                                             return self->watermark_.Complete(name);
                                                           });
  }
  if (engine->options_.world > 1) NEVE_RETURN_IF_ERROR(engine->MeetRanks());
  return engine;
}

absl::Status EngineImpl::CheckUsable() const {
  if (::getpid() != pid_) {
    return Closed("this is a forked child: its parent's engine cannot be used here; open an engine of its own");
  }
  sync::MutexLock lock(mutex_);
  if (closed_) return Closed("the engine is closed");
  return absl::OkStatus();
}

std::vector<storage::Tier*> EngineImpl::DurableTiers() const {
  std::vector<storage::Tier*> tiers;
  for (const auto& durable : durable_) tiers.push_back(durable->tier.get());
  return tiers;
}

absl::Status EngineImpl::EnsureUid() {
  {
    sync::MutexLock lock(uid_mutex_);
    if (uid_.known()) return absl::OkStatus();
  }
  Uid uid;
  if (durable_.empty()) {
    uid = format::UidFromName(options_.job);
  } else {
    const std::vector<storage::Tier*> tiers = DurableTiers();
    absl::Status unreachable;
    NEVE_ASSIGN_OR_RETURN(uid, ReadUid(tiers, &unreachable));
  }
  sync::MutexLock lock(uid_mutex_);
  if (!uid_.known()) uid_ = uid;
  return absl::OkStatus();
}

std::shared_ptr<storage::Tier> EngineImpl::RamTier() {
  sync::MutexLock lock(uid_mutex_);
  if (!ram_.has_value() || !uid_.known()) return nullptr;
  if (ram_tier_ == nullptr) {
    auto folder = slot::RamFolder(false);
    if (!folder.ok()) return nullptr;   // nothing was ever made there
    ram_tier_ = storage::OpenRamTier({.ram_folder = *folder, .uid = uid_, .job = options_.job});
  }
  return ram_tier_;
}

absl::StatusOr<uint32_t> EngineImpl::GreatestLife(std::span<const catalog::TierListing> listings, std::span<const std::string> names) {
  uint32_t unseen = 0;
  for (size_t t = 0; t < listings.size(); ++t) {
    if (listings[t].status.ok()) continue;
    standing_->Fails(names[t], std::string(listings[t].status.message()));
    if (listings[t].kind != TierKind::kRam || durable_.empty()) {
      return Annotate(listings[t].status, absl::StrFormat("tier %s cannot be listed, so no save can be numbered", names[t]));
    }
    unseen = kUnseenLives;
  }
  return catalog::GreatestIncarnation(listings) + unseen;
}

absl::Status EngineImpl::BeginLife() {
  if (life_begun_) return absl::OkStatus();
  NEVE_RETURN_IF_ERROR(EnsureUid());
  Uid uid;
  {
    sync::MutexLock lock(uid_mutex_);
    if (!uid_.known()) os::FillRandom(uid_.bytes);   // a new job: written with the claim
    uid = uid_;
  }
  std::vector<std::string> names;
  // Of many ranks: listed by all at open, and agreed on there.
  const std::vector<catalog::TierListing> listings =
      agreed_incarnation_.has_value() ? std::vector<catalog::TierListing>() : ListAll(&names);
  NEVE_ASSIGN_OR_RETURN(const uint32_t greatest, GreatestLife(listings, names));
  uint32_t incarnation = 1 + greatest;
  const std::optional<uint32_t> given = agreed_incarnation_.has_value() ? agreed_incarnation_ : options_.incarnation;
  const bool fixed = given.has_value();
  if (fixed) incarnation = *given;
  for (auto& durable : durable_) {
    if (!WritesDurable()) break;
    absl::StatusOr<uint32_t> claimed = ClaimLife(*durable->tier, options_.job, uid, incarnation, fixed, claim_);
    if (claimed.ok()) {
      incarnation = *claimed;
      durable->claimed = true;
    } else if (absl::IsInvalidArgument(claimed.status())) {
      return claimed.status();
    } else {
      // The tier is claimed before its first commit instead; until then its saves are tried again like any failing write.
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=claim_failed place=\"%s\" error=\"%s\"", durable->tier->info().place,
                                                     std::string(claimed.status().message())));
    }
  }
  incarnation_ = incarnation;
  standing_->Forget();
  node::SlotPool::Options pool;
  pool.shared = ram_.has_value();
  pool.uid = uid;
  pool.job = options_.job;
  pool.rank = image_rank();
  pool.prefault_threads = crew_->threads();
  if (ram_.has_value()) {
    pool.slots = ram_->slots;
    pool.budget_bytes = ram_->bytes;
  }
  std::vector<std::shared_ptr<storage::Tier>> tiers;
  for (const auto& durable : durable_) tiers.push_back(durable->tier);
  pool_ = std::make_shared<node::SlotPool>(
      std::move(pool),
      [tiers, registrations = registrations_](std::span<std::byte> region) {
        for (const auto& tier : tiers) tier->AttachRegion(region);
        registrations->Attach(region);
      },
      [tiers, registrations = registrations_](std::span<std::byte> region) {
        registrations->Detach(region);
        for (const auto& tier : tiers) tier->DetachRegion(region);
      });
  // Of ranks that see one RAM folder and hold the same state the one that keeps it there adopts.
  absl::StatusOr<int> adopted = KeepsImage() ? pool_->AdoptDead() : 0;
  if (!adopted.ok()) {
    obs::Log(obs::Level::kWarning, absl::StrFormat("event=adopt_failed error=\"%s\"", std::string(adopted.status().message())));
  } else if (*adopted > 0) {
    obs::Log(obs::Level::kInfo, absl::StrFormat("event=adopted slots=%d", *adopted));
    if (WritesDurable()) EnqueueAdopted();
  }
  ready_pool_ = pool_.get();
  // Leftovers of dead lives, off the step path; what belongs to a live process or to others is left alone.
  for (auto& durable : durable_) {
    if (!first_of_host_) break;   // one rank a host is enough
    slot_executor_->Post([place = durable->tier->info().place] {
      const absl::StatusOr<GcReport> cleaned = CollectGarbage(place, {});
      if (!cleaned.ok()) {
        obs::Log(obs::Level::kInfo, absl::StrFormat("event=cleanup_failed place=\"%s\" error=\"%s\"", place,
                                                    std::string(cleaned.status().message())));
      }
    });
  }
  if (options_.grace_s > 0) {
    termination_ = std::make_unique<sync::TerminationWatch>([this] {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=sigterm grace_s=%.3g", options_.grace_s));
      PersistNewest(options_.grace_s);
    });
  }
  life_begun_ = true;
  return absl::OkStatus();
}

absl::StatusOr<EngineImpl::Due> EngineImpl::DueTiers(const SaveRequest& request) const {
  Due due;
  due.own.reserve(1 + durable_.size());
  const auto take = [&](const std::string& name, uint64_t every, bool own) {
    const bool is_due = request.to.empty() ? request.step % every == 0
                                           : std::find(request.to.begin(), request.to.end(), name) != request.to.end();
    if (is_due) (own ? due.own : due.others).push_back(name);
  };
  if (ram_.has_value()) take("ram", ram_->every, KeepsRam());
  for (const auto& durable : durable_) take(durable->name, durable->config.every, WritesDurable());
  for (const std::string& name : request.to) {
    const bool known = (name == "ram" && ram_.has_value()) ||
                       std::any_of(durable_.begin(), durable_.end(), [&](const auto& durable) { return durable->name == name; });
    if (known) continue;
    std::string list = ram_.has_value() ? "ram" : "";
    for (const auto& durable : durable_) list += (list.empty() ? "" : ", ") + durable->name;
    return Invalid(absl::StrFormat("to=\"%s\": no such tier here; there are %s", name, list));
  }
  return due;
}

std::shared_ptr<TicketImpl> EngineImpl::NewTicket(uint64_t step, const SaveId& save, const Due& due) const {
  auto ticket = std::make_shared<TicketImpl>(step, save, due.own, options_.world, due.others);
  ticket->TellsOf(standing_);
  return ticket;
}

format::CommitRecord EngineImpl::RecordOf(const SaveRequest& request, const format::Layout& layout, SaveId save) const {
  format::CommitRecord record;
  record.job = options_.job;
  {
    auto* self = const_cast<EngineImpl*>(this);
    sync::MutexLock lock(self->uid_mutex_);
    record.uid = uid_;
  }
  record.key = ImageKey{save, request.step, image_rank(), image_world()};
  record.time = executor_->WallSeconds();
  record.tags = request.tags;
  record.layout_id = layout.id();
  record.image_bytes = layout.image_bytes();
  record.header_bytes = layout.header_bytes();
  record.provenance = {{"neve", std::string(Version())}, {"host", os::HostName()}};
  if (replicated()) record.provenance["replicated"] = std::to_string(options_.world);
  return record;
}

absl::Status EngineImpl::Prepare(const std::shared_ptr<State>& state, std::span<const void* const> addresses,
                                 uint64_t values_bytes, std::span<const uint64_t> blob_bytes) {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  if (state == nullptr) return Invalid("prepare needs a state");
  NEVE_ASSIGN_OR_RETURN(const auto plan, state->PlanFor(addresses, values_bytes, blob_bytes));
  node::SlotPool* pool;
  {
    sync::MutexLock lock(save_mutex_);
    NEVE_RETURN_IF_ERROR(BeginLife());
    NEVE_RETURN_IF_ERROR(OpenLanes(state->devices()));
    pool = pool_.get();
  }
  if (!KeepsImage()) return absl::OkStatus();
  return pool->Fill(plan->layout().image_bytes());
}

bool EngineImpl::ReplaceOldest() {
  // The oldest save that has not begun to move to a durable tier gives its slot up.
  bool cancelled = false;
  const std::vector<ImageKey> full = pool_->Full();
  executor_->Run([&] {
    for (size_t i = full.size(); i > 1 && !cancelled; --i) {
      for (auto& durable : durable_) {
        cancelled |= durable->flush->Cancel(
            full[i - 1],
            Exhausted(absl::StrFormat("step %d was replaced by a newer save: no RAM slot was free", full[i - 1].step)));
      }
    }
  });
  return cancelled;
}

absl::StatusOr<node::Entry*> EngineImpl::AcquireEntry(const SaveRequest& request, uint64_t image_bytes,
                                                      std::shared_ptr<Ticket>* skipped, const Due& due) {
  NEVE_ASSIGN_OR_RETURN(node::Entry * entry, pool_->TryAcquire(image_bytes));
  if (entry != nullptr) return entry;
  // Never two in a row: after a skip the next save waits.
  if (options_.on_full == OnFull::kSkip && !last_skipped_) {
    auto ticket = NewTicket(request.step, SaveId{incarnation_, sequence_++}, due);
    AbandonSave(ticket->save_id());
    ticket->SkipAll(Exhausted(absl::StrFormat("step %d was skipped: no RAM slot was free (on_full=skip)", request.step)));
    metrics_->Add(obs::Metric::kSavesSkipped);
    last_skipped_ = true;
    *skipped = std::move(ticket);
    return nullptr;
  }
  if (options_.on_full == OnFull::kReplace && ReplaceOldest()) {
    NEVE_ASSIGN_OR_RETURN(entry, pool_->TryAcquire(image_bytes));
    if (entry != nullptr) return entry;
  }
  const sync::Nanos begin = executor_->Now();
  // A slow tier is waited for; one that fails does not hold training up: what it fails to write is given up for this save.
  constexpr double kSlice = 0.1;
  double left = request.slot_timeout_s;
  absl::StatusOr<node::Entry*> acquired;
  do {
    acquired = pool_->Acquire(image_bytes, left < 0 ? kSlice : std::min(left, kSlice));
    if (acquired.ok() || !absl::IsDeadlineExceeded(acquired.status())) break;
    bool given_up = false;
    executor_->Run([&] {
      for (auto& durable : durable_) given_up |= durable->flush->GiveUp();
    });
    if (given_up) acquired = pool_->Acquire(image_bytes, 0);
    if (left >= 0) left = std::max(0.0, left - kSlice);
  } while (!acquired.ok() && absl::IsDeadlineExceeded(acquired.status()) && left != 0);
  metrics_->Add(obs::Metric::kSlotWaitNanos, static_cast<uint64_t>(executor_->Now() - begin));
  return acquired;
}

void EngineImpl::CountSave() {
  sync::MutexLock lock(save_mutex_);
  if (options_.world > 1) AbandonSave({agreed_incarnation_.value_or(0), sequence_++});
}

absl::StatusOr<std::shared_ptr<Ticket>> EngineImpl::Save(const SaveRequest& request) {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  absl::StatusOr<std::shared_ptr<Ticket>> ticket = SaveNow(request);
  // Misuse by this rank alone: the others have counted the save.
  if (absl::IsInvalidArgument(ticket.status())) CountSave();
  return ticket;
}

void EngineImpl::CountFailed(uint64_t step, const absl::Status& why) {
  metrics_->Add(obs::Metric::kSavesFailed);
  obs::Log(obs::Level::kWarning, absl::StrFormat("event=save_failed step=%d error=\"%s\"", step, std::string(why.message())));
  NoteError(why);
}

std::shared_ptr<Ticket> EngineImpl::FailedSave(const SaveRequest& request, const Due& due, absl::Status why) {
  auto ticket = NewTicket(request.step, SaveId{incarnation_, sequence_++}, due);
  CountFailed(request.step, why);
  AbandonSave(ticket->save_id());
  ticket->FailRest(std::move(why));
  return ticket;
}

absl::StatusOr<std::shared_ptr<Ticket>> EngineImpl::SaveNow(const SaveRequest& request) {
  if (request.state == nullptr) return Invalid("a save needs a state");
  if (request.step >= kStepLimit) return Invalid(absl::StrFormat("step %d: want 0 <= step < 10^12", request.step));
  NEVE_RETURN_IF_ERROR(request.state->Check(request.addresses, request.values, request.blobs));
  NEVE_ASSIGN_OR_RETURN(const Due due, DueTiers(request));
  std::vector<uint64_t> blob_bytes;
  for (std::string_view blob : request.blobs) blob_bytes.push_back(blob.size());
  std::shared_ptr<const capture::CapturePlan> plan;  // null: another rank saves this state
  if (KeepsImage()) {
    NEVE_ASSIGN_OR_RETURN(plan, request.state->PlanFor(request.addresses, request.values.size(), blob_bytes));
  }
  std::shared_ptr<const DevicePlans> device_plans;   // null: all in host memory
  if (plan != nullptr && !request.state->devices().empty()) {
    NEVE_ASSIGN_OR_RETURN(device_plans, request.state->DevicePlansFor(plan->shared_layout(), request.fenced));
  }

  sync::MutexLock lock(save_mutex_);
  NEVE_RETURN_IF_ERROR(CheckReplicable(request.state));
  metrics_->Add(obs::Metric::kSavesStarted);
  if (absl::Status begun = BeginLife(); !begun.ok()) return FailedSave(request, due, std::move(begun));
  if (due.own.empty()) {
    // By its cadence no tier takes this step, or another rank does it all: nothing to do, and nothing failed.
    auto ticket = NewTicket(request.step, SaveId{incarnation_, sequence_++}, due);
    CommitOthers(ticket->save_id(), due);
    if (!due.empty()) WatchCompletion(ticket, due);
    ticket->Reached("captured");
    return std::static_pointer_cast<Ticket>(ticket);
  }
  const format::Layout& layout = plan->layout();
  std::shared_ptr<capture::DeviceSave> copies;
  if (device_plans != nullptr) {
    absl::StatusOr<std::shared_ptr<capture::DeviceSave>> begun = BeginDeviceSave(*device_plans, request);
    if (absl::IsInvalidArgument(begun.status())) return begun.status();
    if (!begun.ok()) return FailedSave(request, due, begun.status());
    copies = *std::move(begun);
  }
  std::shared_ptr<Ticket> skipped;
  absl::StatusOr<node::Entry*> entry = AcquireEntry(request, layout.image_bytes(), &skipped, due);
  if (skipped != nullptr) return skipped;
  if (!entry.ok() && absl::IsDeadlineExceeded(entry.status())) return entry.status();
  last_skipped_ = false;
  const SaveId save{incarnation_, sequence_++};
  auto ticket = NewTicket(request.step, save, due);
  CommitOthers(save, due);
  WatchCompletion(ticket, due);
  auto record = std::make_shared<format::CommitRecord>(RecordOf(request, layout, save));
  for (const auto& durable : durable_) durable->retention->NoteTags(save, request.tags);
  {
    sync::MutexLock state_lock(mutex_);
    streaming_.clear();
  }
  const capture::CaptureInput input{request.addresses, request.values, request.blobs};
  if (!entry.ok()) {
    if (due.own == std::vector<std::string>{"ram"} || copies != nullptr) {   // nowhere else to go
      CountFailed(request.step, entry.status());
      AbandonSave(save);
      ticket->FailRest(entry.status());
      return std::static_pointer_cast<Ticket>(ticket);
    }
    // Not even one slot fits, or none can be made: straight to the durable tiers, in bounded private memory.
    if (streaming_told_ != entry.status().code()) {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=streaming reason=\"%s\"", std::string(entry.status().message())));
      streaming_told_ = entry.status().code();
    }
    {
      sync::MutexLock state_lock(mutex_);
      streaming_ = std::string(entry.status().message());
    }
    watermark_.Abandoned("ram", save);
    if (absl::IsResourceExhausted(entry.status())) {
      ticket->Skipped("ram", entry.status());
    } else {   // no lack of room: the folder is unusable
      NoteError(entry.status());
      ticket->Failed("ram", entry.status());
    }
    if (absl::Status streamed = StreamToTiers(request, *plan, std::move(*record), due.own, *ticket); !streamed.ok()) {
      CountFailed(request.step, streamed);
      AbandonSave(save);
      ticket->FailRest(std::move(streamed));
    }
    return std::static_pointer_cast<Ticket>(ticket);
  }
  node::Entry* slot = *entry;
  const sync::Nanos begin = executor_->Now();
  absl::Status captured;
  if (slot->slot != nullptr) {
    captured = slot->slot->BeginFill({.key = record->key,
                                      .image_bytes = record->image_bytes,
                                      .header_bytes = record->header_bytes,
                                      .chunk_bytes = record->chunk_bytes,
                                      .layout_id = record->layout_id,
                                      .time = record->time},
                                     record->tags, record->provenance);
  } else {
    slot->memory_digests.resize(record->chunk_count());
  }
  std::span<codec::Digest> digests;
  if (captured.ok() && copies != nullptr) {
    const std::span<std::byte> image = slot->image().first(layout.image_bytes());
    captured = device_plans->host.WriteHeader(input, image);
    if (captured.ok()) {
      device_plans->host.Run(input, image, *crew_);
      FlyDeviceSave({copies, slot, std::move(record), due.own, ticket, begin}, request);
      return std::static_pointer_cast<Ticket>(ticket);
    }
  } else if (captured.ok()) {
    digests = slot->digests().first(record->chunk_count());
    captured = plan->Run(input, slot->image().first(layout.image_bytes()), digests, *crew_);
  }
  if (!captured.ok()) {
    pool_->Abandon(slot);
    CountFailed(request.step, captured);
    AbandonSave(save);
    ticket->FailRest(std::move(captured));
    return std::static_pointer_cast<Ticket>(ticket);
  }
  if (slot->slot != nullptr) slot->slot->MarkCaptured();
  HandOn(slot, std::move(record), due.own, ticket, begin);
  return std::static_pointer_cast<Ticket>(ticket);
}

void EngineImpl::HandOn(node::Entry* entry, std::shared_ptr<format::CommitRecord> record, const std::vector<std::string>& due,
                        const std::shared_ptr<TicketImpl>& ticket, sync::Nanos begin) {
  if (entry->slot != nullptr) entry->slot->Seal();
  const uint64_t image_bytes = record->image_bytes;
  metrics_->Add(obs::Metric::kCaptureBytes, image_bytes);
  metrics_->Add(obs::Metric::kCaptureNanos, static_cast<uint64_t>(executor_->Now() - begin));
  const std::span<const codec::Digest> digests = entry->digests().first(record->chunk_count());
  record->digests.assign(digests.begin(), digests.end());
  pool_->Filled(entry, record->key, image_bytes);
  ticket->Reached("captured");
  ticket->Reached("ram", entry->slot != nullptr ? entry->slot->path() : "");
  if (entry->slot != nullptr) watermark_.Committed("ram", record->key.save);
  CompareFirstImage(record);
  EnqueueFlush(entry, std::move(record), due, ticket);
  if (pool_->slot_count() < (ram_.has_value() ? ram_->slots : 1)) {
    // The rest of the slots are made off the step path.
    slot_executor_->Post([this, image_bytes] { pool_->Fill(image_bytes).IgnoreError(); });  // fewer slots: said by the pool
  }
}

}  // namespace neve
