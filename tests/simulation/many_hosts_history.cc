#include "simulation/many_hosts_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "restore/common_save.h"

namespace neve::simulation {

ManyHostsHistory::ManyHostsHistory(uint64_t seed, Tally* tally)
    : seed_(seed), tally_(*tally), executor_(sync::SimExecutor::Create(seed)) {
  world_ = static_cast<uint32_t>(2 + Below(5));
  fan_out_ = static_cast<uint32_t>(1 + Below(3));
  rule_.keep = 1 + Below(3);
  policy_.depth = 1 + static_cast<int>(Below(4));
  policy_.piece_bytes = 512;
  policy_.timeout = static_cast<sync::Nanos>(1 + Below(4)) * sync::kSecond;
  policy_.retry_first = 10 * sync::kMillisecond;
  policy_.retry_max = 500 * sync::kMillisecond;
  static constexpr uint32_t kRates[] = {0, 0, 5, 30, 100};
  for (uint32_t rank = 0; rank < world_; ++rank) {
    hosts_.push_back(std::make_unique<Host>(seed ^ (0x5eed + rank)));
    for (uint32_t& rate : hosts_.back()->faults.per_mille) rate = kRates[Below(5)];
  }
  StartLife();
}

ManyHostsHistory::~ManyHostsHistory() {
  KillAll(false);
  tally_.Add("saves retired", metrics_.Get(obs::Metric::kImagesRetired));
}

void ManyHostsHistory::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

void ManyHostsHistory::RunFor(sync::Nanos time) {
  bool over = false;
  executor_->PostAfter(time, [&over] { over = true; });
  while (!over && executor_->Step()) {
  }
}

void ManyHostsHistory::SetFaults(bool on) {
  for (const auto& host : hosts_) host->faults.on = on;
}

std::string ManyHostsHistory::Run() {
  const uint64_t events = 30 + Below(80);
  for (uint64_t event = 0; event < events && failure_.empty(); ++event) {
    const uint64_t dice = Below(100);
    if (dice < 35) {
      RunFor(static_cast<sync::Nanos>(Below(Chance(50) ? 100 : 3000)) * sync::kMillisecond);
    } else if (dice < 80) {
      Step();
    } else if (dice < 85) {
      SetFaults(!hosts_[0]->faults.on);
    } else if (dice < 91) {
      std::set<uint32_t> island;
      for (uint32_t rank = 0; rank < world_; ++rank) {
        if (Chance(40)) island.insert(rank);
      }
      tally_.Add("partitions");
      net_->Partition(Chance(60) ? island : std::set<uint32_t>(), Chance(50));
    } else if (dice < 95) {
      Kill(static_cast<uint32_t>(Below(world_)));   // the others go on for a while
    } else {
      KillAll(Chance(30));
      CheckRestored();
      StartLife();
    }
  }
  if (failure_.empty()) Quiesce();
  return failure_;
}

template <typename T>
absl::StatusOr<T> ManyHostsHistory::Wait(const std::function<void(storage::DoneWith<T>)>& start) {
  std::optional<absl::StatusOr<T>> result;
  start([&result](absl::StatusOr<T> value) { result.emplace(std::move(value)); });
  while (!result.has_value() && executor_->Step()) {
  }
  if (!result.has_value()) return Internal("a call of the tier was never answered");
  return *std::move(result);
}

std::string ManyHostsHistory::Bytes(const ImageKey& key) const {
  sync::SeededRandom random(seed_ ^ (key.save.incarnation * 1'000'003 + key.save.sequence * 1009 + key.rank));
  std::string bytes(1 + random.Below(2000), '\0');
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

// ---- Processes ----

void ManyHostsHistory::StartLife() {
  ++life_;
  next_.assign(world_, 0);
  step_ = 0;
  testing::SimControl::Options options;
  options.world = world_;
  options.fan_out = fan_out_;
  options.context = absl::StrFormat("life %d", life_);
  options.delay_max = static_cast<sync::Nanos>(1 + Below(200)) * sync::kMillisecond;
  net_ = std::make_unique<testing::SimControl>(*executor_, options);
  net_->OnTold([this](uint32_t rank) { Told(rank); });
  for (uint32_t rank = 0; rank < world_; ++rank) {
    Host& host = *hosts_[rank];
    host.tier = std::make_unique<testing::SimTier>(host.disk, *executor_, host.faults);
    host.flush = std::make_unique<flush::TierFlush>(*host.tier, *executor_, metrics_, policy_,
                                                    [](std::function<void(absl::Status)> done) { done(absl::OkStatus()); });
    host.retention = std::make_unique<node::Retention>(
        *host.tier, *executor_, metrics_, rule_, rank, [] { return std::set<SaveId>(); }, world_, [this, rank, life = life_] {
          std::set<SaveId> saves;
          for (const uint64_t sequence : net_->at(rank).Complete(0)) saves.insert({life, sequence});
          return saves;
        });
    host.lives = true;
  }
  net_->Start();
}

void ManyHostsHistory::Kill(uint32_t rank) {
  Host& host = *hosts_[rank];
  if (!std::exchange(host.lives, false)) return;
  tally_.Add("kills of one rank");
  host.tier->Kill();
  host.flush.reset();
  host.retention.reset();
  graves_.push_back(std::move(host.tier));
  net_->Kill(rank);
}

void ManyHostsHistory::KillAll(bool lose_power) {
  for (const auto& host : hosts_) {
    if (!std::exchange(host->lives, false)) continue;
    host->tier->Kill();
    host->flush.reset();
    host->retention.reset();
    graves_.push_back(std::move(host->tier));
  }
  net_.reset();
  executor_->DropAll();
  graves_.clear();
  tally_.Add("kills of all");
  for (const auto& host : hosts_) {
    if (!lose_power || Chance(30)) continue;
    host->disk.Crash();
    tally_.Add("losses of power");
  }
}

bool ManyHostsHistory::All(const SaveId& save) const {
  const auto found = durable_.find(save);
  return found != durable_.end() && found->second.size() == world_;
}

// What the next life finds: each rank its own disk only.
void ManyHostsHistory::CheckRestored() {
  SetFaults(false);
  std::vector<std::string> views;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    Host& host = *hosts_[rank];
    testing::SimTier tier(host.disk, *executor_, host.faults);
    const auto listing = Wait<storage::Listing>([&](auto done) { tier.List(std::move(done)); });
    if (!listing.ok()) return Fail("a disk could not be listed: " + std::string(listing.status().message()));
    const std::vector<catalog::TierListing> one = {{TierKind::kFile, tier.info().place, absl::OkStatus(), *listing}};
    views.push_back(restore::Encode(restore::ViewOf(catalog::GroupSaves(one), std::nullopt)));
  }
  const absl::StatusOr<restore::Common> common = restore::FindCommon(views);
  if (!common.ok()) return Fail(std::string(common.status().message()));
  const auto offered = std::find_if(common->saves.begin(), common->saves.end(), [](const auto& save) { return save.offered; });
  if (offered == common->saves.end()) {
    if (whole_.has_value()) Fail(whole_->ToString() + " was durable on all ranks, and nothing is offered");
    return;
  }
  tally_.Add("restores");
  if (whole_.has_value() && offered->save < *whole_) {
    Fail(absl::StrFormat("%s was durable on all ranks, and %s is offered", whole_->ToString(), offered->save.ToString()));
  }
  for (uint32_t rank = 0; rank < world_; ++rank) CheckImage(rank, {offered->save, offered->step, rank, world_});
}

void ManyHostsHistory::CheckImage(uint32_t rank, const ImageKey& key) {
  Host& host = *hosts_[rank];
  testing::SimTier tier(host.disk, *executor_, host.faults);
  using ReaderPtr = std::shared_ptr<storage::ImageReader>;
  const auto reader = Wait<ReaderPtr>([&](auto done) { tier.OpenImage(key, std::move(done)); });
  if (!reader.ok()) return Fail(key.save.ToString() + " is offered and cannot be opened: " + std::string(reader.status().message()));
  std::string bytes((*reader)->record().image_bytes, '\0');
  absl::Status read = absl::UnknownError("not answered");
  (*reader)->Read(0, std::as_writable_bytes(std::span(bytes)), [&read](absl::Status status) { read = status; });
  while (absl::IsUnknown(read) && executor_->Step()) {
  }
  if (!read.ok() || (*reader)->record().key != key || bytes != Bytes(key)) Fail(key.save.ToString() + " is not what was saved");
}

// ---- Saves ----

void ManyHostsHistory::Step() {
  ++step_;
  const uint64_t late = Chance(15) ? Below(world_) : world_;   // a rank that is still in this step when the next event comes
  for (uint32_t rank = 0; rank < world_; ++rank) {
    while (hosts_[rank]->lives && rank != late && next_[rank] < step_) Save(rank);
  }
}

void ManyHostsHistory::Save(uint32_t rank) {
  Host& host = *hosts_[rank];
  // All ranks give one save one number and step, however far each of them is.
  const ImageKey key{.save = {life_, next_[rank]++}, .step = 0, .rank = rank, .world = world_};
  ImageKey named = key;
  named.step = 1'000'000ull * life_ + key.save.sequence;
  if (Chance(3)) {
    tally_.Add("saves skipped");
    return net_->Abandon(rank, 0, key.save.sequence);
  }
  auto bytes = std::make_shared<std::string>(Bytes(named));
  auto record = std::make_shared<format::CommitRecord>();
  record->key = named;
  record->job = "simulated";
  record->uid.bytes.fill(7);
  record->image_bytes = bytes->size();
  record->chunk_bytes = format::kChunkBytesMin;
  record->digests = {codec::DigestOf(std::as_bytes(std::span(*bytes)))};
  tally_.Add("saves");
  host.flush->Enqueue({record, std::as_bytes(std::span(*bytes)), [this, rank, bytes, save = named.save](absl::Status status) {
                         if (!status.ok()) {
                           tally_.Add("saves failed");
                           return net_->Abandon(rank, 0, save.sequence);
                         }
                         durable_[save].insert(rank);
                         if (All(save)) whole_ = std::max(whole_.value_or(save), save);
                         net_->Commit(rank, 0, save.sequence);
                         hosts_[rank]->retention->MadeDurable(save, [] {});
                       }});
}

void ManyHostsHistory::Told(uint32_t rank) {
  for (const uint64_t sequence : net_->at(rank).Complete(0)) {
    if (!All({life_, sequence})) Fail(absl::StrFormat("rank %d is told that save %d is complete, and it is not", rank, sequence));
  }
  tally_.Add("told");
  executor_->Post([this, rank] {
    Host& host = *hosts_[rank];
    if (!host.lives) return;
    if (const std::optional<SaveId> own = host.retention->newest_durable()) host.retention->MadeDurable(*own, [] {});
  });
}

// The faults end: saves are complete again, told to be, and only those that are kept are left.
void ManyHostsHistory::Quiesce() {
  SetFaults(false);
  KillAll(false);
  CheckRestored();
  StartLife();
  for (uint64_t i = 0; i < 20 * *rule_.keep; ++i) {   // some are skipped
    for (uint32_t rank = 0; rank < world_; ++rank) Save(rank);
    RunFor(5 * sync::kSecond);
  }
  RunFor(20 * sync::kSecond);
  if (!failure_.empty()) return;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (net_->at(rank).Complete(0).empty()) return Fail(absl::StrFormat("rank %d was told of nothing", rank));
    if (SaveId{life_, *net_->at(rank).Complete(0).rbegin()} != *whole_) return Fail("the newest save of all was not told");
    const auto listing = Wait<storage::Listing>([&](auto done) { hosts_[rank]->tier->List(std::move(done)); });
    std::set<SaveId> left;
    for (const storage::ImageEntry& entry : listing->images) {
      if (entry.key.save <= *whole_) left.insert(entry.key.save);
    }
    uint64_t whole = 0;
    for (const SaveId& save : left) whole += All(save) ? 1 : 0;
    if (whole != *rule_.keep) {
      return Fail(absl::StrFormat("rank %d keeps %d complete saves, and keep=%d", rank, whole, *rule_.keep));
    }
    // Incomplete ones go with what is older than they.
    if (!All(*left.begin())) return Fail(absl::StrFormat("rank %d keeps an old save that is not complete", rank));
  }
  KillAll(true);
  CheckRestored();
}

}  // namespace neve::simulation
