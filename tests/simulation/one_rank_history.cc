#include "simulation/one_rank_history.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

#include "base/error/status.h"
#include "format/names.h"
#include "node/adoption.h"
#include "node/slot_choice.h"

namespace neve::simulation {

OneRankHistory::OneRankHistory(uint64_t seed, Tally* tally)
    : seed_(seed), tally_(*tally), executor_(sync::SimExecutor::Create(seed)), disk_(seed ^ 0x5eed) {
  slots_.resize(Chance(30) ? 4 : 3);
  every_ = 1 + Below(3);
  if (const uint64_t keep = Below(4); keep > 0) retention_.keep = keep;
  policy_.depth = 1 + static_cast<int>(Below(4));
  policy_.piece_bytes = 512 * (1 + Below(4));
  policy_.timeout = static_cast<sync::Nanos>(1 + Below(4)) * sync::kSecond;
  policy_.retry_first = 10 * sync::kMillisecond;
  policy_.retry_max = 500 * sync::kMillisecond;
  if (Chance(20)) policy_.rate_bytes_per_s = 20'000;
  // From hardly ever to most of the time.
  static constexpr uint32_t kRates[] = {0, 5, 30, 100, 400};
  for (uint32_t& rate : faults_.per_mille) rate = kRates[Below(5)];
  StartProcess();
}

OneRankHistory::~OneRankHistory() {
  tier_->Kill();
  flush_.reset();
  retention_machine_.reset();
  executor_->DropAll();
  for (size_t i = 0; i < faults_.injected.size(); ++i) {
    tally_.Add("fault " + std::string(Name(static_cast<testing::SimFault>(i))), faults_.injected[i]);
  }
  tally_.Add("files torn by power loss", disk_.torn_files());
  tally_.Add("names lost by power loss", disk_.lost_names());
  tally_.Add("retries", metrics_.Get(obs::Metric::kFileRetries));
  tally_.Add("saves retired", metrics_.Get(obs::Metric::kImagesRetired));
  tally_.Add("commits", metrics_.Get(obs::Metric::kFileCommits));
}

void OneRankHistory::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

std::string OneRankHistory::Run() {
  const uint64_t events = 40 + Below(120);
  for (uint64_t event = 0; event < events && failure_.empty(); ++event) {
    const uint64_t dice = Below(100);
    if (dice < 49) {
      RunTasks(Below(60));
    } else if (dice < 84) {
      ++step_;
      Save(Stop::kNone);
    } else if (dice < 90) {
      faults_.on = !faults_.on;
    } else {
      const uint64_t how = Below(5);
      if (how < 2) {
        ++step_;
        Save(how == 0 ? Stop::kFilling : Stop::kCaptured);
      }
      KillProcess(Chance(30));
      Restart();
    }
  }
  if (failure_.empty()) Quiesce();
  return failure_;
}

void OneRankHistory::RunTasks(uint64_t count) {
  while (count-- > 0 && executor_->Step()) {
  }
}

template <typename T>
absl::StatusOr<T> OneRankHistory::Wait(const std::function<void(storage::DoneWith<T>)>& start) {
  std::optional<absl::StatusOr<T>> result;
  start([&result](absl::StatusOr<T> value) { result.emplace(std::move(value)); });
  while (!result.has_value() && executor_->Step()) {
  }
  if (!result.has_value()) return Internal("a call of the tier was never answered");
  return *std::move(result);
}

std::string OneRankHistory::Bytes(const ImageKey& key) const {
  sync::SeededRandom random(seed_ ^ (key.save.incarnation * 1'000'003 + key.save.sequence));
  std::string bytes(1 + random.Below(5000), '\0');
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random.Next();
    for (size_t j = 0; j < 8 && i + j < bytes.size(); ++j) bytes[i + j] = static_cast<char>(word >> (8 * j));
  }
  return bytes;
}

// ---- the process ----

void OneRankHistory::StartProcess() {
  tier_ = std::make_unique<testing::SimTier>(disk_, *executor_, faults_);
  flush_ = std::make_unique<flush::TierFlush>(*tier_, *executor_, metrics_, policy_,
                                              [](std::function<void(absl::Status)> done) { done(absl::OkStatus()); });
  retention_machine_ = std::make_unique<node::Retention>(*tier_, *executor_, metrics_, retention_, 0, [] { return std::set<SaveId>(); });
  done_.clear();
  rounds_ = 0;
  life_begun_ = false;
}

void OneRankHistory::KillProcess(bool lose_power) {
  tier_->Kill();
  flush_.reset();
  retention_machine_.reset();
  executor_->DropAll();
  tier_.reset();
  tally_.Add(lose_power ? "losses of power" : "kills");
  for (Slot& slot : slots_) {
    slot.holds = 0;
    if (slot.state == State::kFilling) tally_.Add("deaths while filling");
    if (slot.state == State::kCaptured) tally_.Add("deaths before the digests");
    if (lose_power) slot = Slot{};
  }
  if (lose_power) {
    disk_.Crash();
    newest_captured_.reset();
  }
}

// A new process finds what there is, and restores the newest complete save.
void OneRankHistory::Restart() {
  StartProcess();
  const bool were_on = std::exchange(faults_.on, false);
  const auto listing = Wait<storage::Listing>([this](auto done) { tier_->List(std::move(done)); });
  if (!listing.ok()) return Fail("the tier could not be listed: " + std::string(listing.status().message()));
  std::vector<catalog::TierListing> listings = {{TierKind::kRam, "ram:", absl::OkStatus(), {}},
                                                {TierKind::kFile, tier_->info().place, absl::OkStatus(), *listing}};
  for (const Slot& slot : slots_) {
    if (slot.state != State::kCaptured && slot.state != State::kSealed) continue;
    storage::ImageEntry entry;
    entry.key = slot.record->key;
    entry.has_record = entry.has_image = true;
    listings[0].listing.images.push_back(entry);
  }
  CheckRestored(catalog::GroupSaves(listings));
  faults_.on = were_on;
}

void OneRankHistory::CheckRestored(const std::vector<catalog::Save>& saves) {
  const catalog::Save* newest = nullptr;
  bool durable_found = false;
  for (const catalog::Save& save : saves) {
    if (!save.complete) continue;
    if (newest == nullptr) newest = &save;
    const auto known = captured_.find(save.save);
    if (known == captured_.end() || known->second != save.KeyOf(0)) {
      return Fail(save.save.ToString() + " is offered, and was never captured");
    }
    for (const catalog::Copy& copy : save.ranks[0]) {
      if (!copy.entry.has_record || !copy.entry.has_image) continue;
      if (copy.tier == 1) {
        CheckImageInFile(copy.entry.key);
        continue;
      }
      const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
        return s.record != nullptr && s.record->key == copy.entry.key;
      });
      const std::string wanted = Bytes(copy.entry.key);
      if (!std::equal(slot->image.begin(), slot->image.end(), reinterpret_cast<const std::byte*>(wanted.data()),
                      reinterpret_cast<const std::byte*>(wanted.data()) + wanted.size())) {
        return Fail(save.save.ToString() + " has other bytes in RAM than were captured");
      }
    }
    durable_found |= newest_durable_ == save.save && save.CompleteIn(1);
  }
  if (newest_durable_.has_value() && !durable_found)
    Fail(newest_durable_->ToString() + " was reported durable and is gone");
  if (newest_captured_.has_value() && (newest == nullptr || newest->save < *newest_captured_)) {
    Fail(newest_captured_->ToString() + " was captured in RAM, and an older save is restored");
  }
  if (newest != nullptr) tally_.Add("restores");
  step_ = newest == nullptr ? 0 : newest->step;
}

void OneRankHistory::CheckImageInFile(const ImageKey& key) {
  using ReaderPtr = std::shared_ptr<storage::ImageReader>;
  const std::string name = key.save.ToString();
  const auto reader = Wait<ReaderPtr>([&](auto done) { tier_->OpenImage(key, std::move(done)); });
  if (!reader.ok()) {
    return Fail(name + " is offered by the file tier and cannot be opened: " + std::string(reader.status().message()));
  }
  const format::CommitRecord& record = (*reader)->record();
  const std::string wanted = Bytes(key);
  std::string bytes(record.image_bytes, '\0');
  const auto read = Wait<int>([&](auto done) {
    (*reader)->Read(0, std::as_writable_bytes(std::span(bytes)), [done](absl::Status status) {
      if (status.ok())
        done(0);
      else
        done(status);
    });
  });
  if (!read.ok() || record.key != key || bytes != wanted ||
      record.digests[0] != codec::DigestOf(std::as_bytes(std::span(bytes)))) {
    Fail(name + " in the file tier is not what was captured");
  }
}

// ---- what the engine does between the modules ----

void OneRankHistory::BeginLife() {
  life_begun_ = true;
  absl::StatusOr<storage::Listing> listing;
  do {
    listing = Wait<storage::Listing>([this](auto done) { tier_->List(std::move(done)); });
  } while (!listing.ok() && absl::IsUnavailable(listing.status()));
  const std::vector<catalog::TierListing> file = {{TierKind::kFile, tier_->info().place, absl::OkStatus(), *listing}};
  next_ = {1 + catalog::GreatestIncarnation(file), 0};
  const auto claim = [this] {
    return Wait<int>([this](auto done) {
      tier_->WriteNote(format::FormatLifeName(next_.incarnation), "{}", true, [done](absl::Status status) {
        if (status.ok())
          done(0);
        else
          done(status);
      });
    });
  };
  while (!claim().ok()) ++next_.incarnation;

  // Adoption: what a dead life left in RAM and owed to the file tier.
  std::vector<ImageKey> in_ram;
  for (Slot& slot : slots_) {
    if (slot.state == State::kFilling) slot = Slot{};
    if (slot.state == State::kFree) continue;
    slot.state = State::kSealed;
    in_ram.push_back(slot.record->key);
  }
  std::sort(in_ram.begin(), in_ram.end(), [](const ImageKey& a, const ImageKey& b) { return a.save > b.save; });
  for (const ImageKey& key : node::DebtOf(in_ram, catalog::GroupSaves(file), every_).owed) {
    tally_.Add("adopted saves flushed");
    Flush(*std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.record != nullptr && s.record->key == key; }));
  }
}

OneRankHistory::Slot* OneRankHistory::PickSlot() {
  std::vector<node::SlotFacts> facts;
  for (Slot& slot : slots_) {
    if (slot.state == State::kFree) return &slot;
    facts.push_back({.full = true, .holds = slot.holds, .save = slot.record->key.save});
  }
  const int reused = node::SlotToReuse(facts, 2);
  return reused < 0 ? nullptr : &slots_[static_cast<size_t>(reused)];
}

void OneRankHistory::Save(Stop stop) {
  if (!life_begun_) BeginLife();
  if (!failure_.empty()) return;
  const ImageKey key{.save = next_, .step = step_, .rank = 0, .world = 1};
  ++next_.sequence;
  Slot* slot = PickSlot();
  for (int i = 0; slot == nullptr && i < 50; ++i) {
    RunTasks(1);
    slot = PickSlot();
  }
  if (slot == nullptr && Chance(50)) {  // on_full=replace: one that has not begun, and is not of the two newest
    std::vector<ImageKey> keys;
    for (const Slot& full : slots_) keys.push_back(full.record->key);
    std::sort(keys.begin(), keys.end());
    for (size_t i = 0; i + 2 < keys.size() && slot == nullptr; ++i) {
      if (!flush_->Cancel(keys[i], Exhausted("replaced"))) continue;
      tally_.Add("saves replaced");
      slot = PickSlot();
    }
  }
  if (slot == nullptr) {
    tally_.Add("saves skipped");
    return;
  }
  const std::string bytes = Bytes(key);
  const auto source = std::as_bytes(std::span(bytes));
  slot->state = State::kFilling;
  slot->record = std::make_shared<format::CommitRecord>();
  slot->record->key = key;
  slot->record->job = "simulated";
  slot->record->uid.bytes.fill(7);
  slot->record->image_bytes = bytes.size();
  slot->record->chunk_bytes = format::kChunkBytesMin;
  slot->image.assign(
      source.begin(),
      source.begin() + static_cast<std::ptrdiff_t>(stop == Stop::kFilling ? Below(source.size()) : source.size()));
  if (stop == Stop::kFilling) return;
  slot->state = State::kCaptured;
  slot->record->digests = {codec::DigestOf(source)};
  if (!captured_.emplace(key.save, key).second) Fail(key.save.ToString() + " was used twice");
  newest_captured_ = key.save;
  tally_.Add("saves captured");
  if (stop == Stop::kCaptured) return;
  slot->state = State::kSealed;
  if (step_ % every_ == 0) Flush(*slot);
}

void OneRankHistory::Flush(Slot& slot) {
  ++slot.holds;
  const size_t job = done_.size();
  done_.push_back(0);
  flush_->Enqueue({slot.record, slot.image, [this, &slot, job, save = slot.record->key.save](absl::Status status) {
                     if (++done_[job] != 1) Fail("done ran twice for " + save.ToString());
                     --slot.holds;
                     if (!status.ok()) {
                       tally_.Add(std::string(status.message()).starts_with("lapsed") ? "saves lapsed"
                                                                                      : "saves failed");
                       if (flush_->degraded()) tally_.Add("degraded answers");
                       return;
                     }
                     newest_durable_ = std::max(newest_durable_.value_or(save), save);
                     ++rounds_;
                     retention_machine_->MadeDurable(save, [this] { --rounds_; });
                   }});
}

// The faults end: everything that was asked for comes to an end too, and one more save reaches the disk.
void OneRankHistory::Quiesce() {
  faults_.on = false;
  executor_->RunUntilIdle();
  step_ += every_ - step_ % every_;
  Save(Stop::kNone);
  executor_->RunUntilIdle();
  if (!flush_->Idle()) Fail("the flush is not idle though nothing is left to do: " + flush_->Describe());
  if (rounds_ != 0 || !retention_machine_->Idle()) Fail("retention is not idle though nothing is left to do");
  if (!std::all_of(done_.begin(), done_.end(), [](int count) { return count == 1; })) Fail("a job was never done");
  for (const Slot& slot : slots_) {
    if (slot.holds != 0) Fail("a slot is held though the flush is idle");
  }
  if (newest_durable_ != newest_captured_) Fail("the last save did not become durable in a tier without faults");
  KillProcess(true);
  Restart();
}

}  // namespace neve::simulation
