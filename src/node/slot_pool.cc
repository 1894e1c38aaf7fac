#include "node/slot_pool.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"

namespace neve::node {
namespace {

// Room for a header that grows a little, so that a longer values string does not need new slots.
uint64_t CapacityFor(uint64_t image_bytes) {
  constexpr uint64_t kSpare = 64u << 10, kStep = 2u << 20;
  const uint64_t unit = image_bytes < kStep ? kPageBytes : kStep;
  return (image_bytes + kSpare + unit - 1) / unit * unit;
}

}  // namespace

SlotPool::SlotPool(Options options, std::function<void(std::span<std::byte>)> attach,
                   std::function<void(std::span<std::byte>)> detach)
    : options_(std::move(options)), attach_(std::move(attach)), detach_(std::move(detach)) {}

SlotPool::~SlotPool() {
  sync::MutexLock lock(mutex_);
  for (const auto& entry : entries_) detach_(entry->image());
}

absl::StatusOr<int> SlotPool::AdoptDead() {
  if (!options_.shared) return 0;
  NEVE_ASSIGN_OR_RETURN(const std::string folder, slot::RamFolder(true));
  NEVE_ASSIGN_OR_RETURN(const std::vector<slot::SlotInfo> found, slot::Scan(folder, options_.uid));
  int adopted = 0;
  for (const slot::SlotInfo& info : found) {
    if (!info.status.ok() || info.owner_alive || info.rank != options_.rank) continue;
    absl::StatusOr<std::unique_ptr<slot::Slot>> taken = slot::Slot::Adopt(info.path);
    if (!taken.ok()) continue;   // another adopter was first
    auto entry = std::make_unique<Entry>();
    entry->slot = *std::move(taken);
    entry->capacity = entry->slot->image_capacity();
    if (entry->slot->state() == slot::State::kCaptured) {
      if (absl::Status sealed = entry->slot->DigestAndSeal(); !sealed.ok()) entry->slot->Free();
    }
    if (entry->slot->state() == slot::State::kSealed) {
      absl::StatusOr<format::CommitRecord> record = entry->slot->Record();
      if (record.ok()) {
        entry->key = record->key;
        entry->image_bytes = record->image_bytes;
        entry->full = true;
        ++adopted;
      } else {
        entry->slot->Free();
      }
    }
    attach_(entry->image());
    sync::MutexLock lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  return adopted;
}

bool SlotPool::FillingLocked() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) { return entry->filling; });
}

Entry* SlotPool::PickLocked(uint64_t image_bytes) {
  facts_.clear();   // keeps its memory: nothing is allocated here after the slots are made
  for (const auto& entry : entries_) {
    if (!entry->lost && !entry->full && entry->holds == 0 && entry->capacity >= image_bytes) return entry.get();
    facts_.push_back({.full = entry->full && !entry->lost, .holds = entry->holds, .save = entry->key.save,
                      .kept = entries_.size() >= kKeepsToo && kept_too_ == entry->key.save});
  }
  const size_t slots = entries_.size() + static_cast<size_t>(making_);
  if (!budget_ended_ && slots < options_.slots) return nullptr;   // one more is made rather
  const int reused = SlotToReuse(facts_, options_.shared && slots > 0 ? std::min<size_t>(2, slots - 1) : 0);
  return reused < 0 ? nullptr : entries_[static_cast<size_t>(reused)].get();
}

void SlotPool::DropLocked(Entry* entry) {
  detach_(entry->image());
  if (entry->slot != nullptr) {
    entry->slot->Free();
    if (absl::Status removed = entry->slot->Remove(); !removed.ok()) {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=slot_remove_failed error=\"%s\"", std::string(removed.message())));
    }
  }
  std::erase_if(entries_, [entry](const auto& e) { return e.get() == entry; });
  budget_ended_ = false;   // there is room again
}

void SlotPool::DropLostLocked() {
  for (size_t i = entries_.size(); i > 0; --i) {
    Entry* entry = entries_[i - 1].get();
    if (entry->slot == nullptr) continue;
    if (!entry->lost) {
      const absl::Status there = entry->slot->CheckFile();
      if (there.ok()) continue;
      entry->lost = true;
      entry->full = false;
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=slot_lost error=\"%s\"", std::string(there.message())));
    }
    if (entry->holds > 0 || entry->filling) continue;   // dropped when the last flush or reader has let go
    detach_(entry->image());
    // What is left of it would be found, and be found damaged.
    if (const absl::Status removed = entry->slot->Remove(); !removed.ok()) {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=lost_slot_stays error=\"%s\"", std::string(removed.message())));
    }
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i - 1));
    budget_ended_ = false;
  }
}

absl::StatusOr<std::unique_ptr<Entry>> SlotPool::Make(uint64_t image_bytes, uint64_t own_bytes) const {
  auto entry = std::make_unique<Entry>();
  entry->capacity = CapacityFor(image_bytes);
  if (!options_.shared) {
    entry->memory.reset(
        static_cast<std::byte*>(std::aligned_alloc(2u << 20, (entry->capacity + (2u << 20) - 1) / (2u << 20) * (2u << 20))));
    if (entry->memory == nullptr) {
      return Exhausted(absl::StrFormat("no memory for a transient image of %d bytes", image_bytes), ENOMEM);
    }
    return entry;
  }
  NEVE_ASSIGN_OR_RETURN(const std::string folder, slot::RamFolder(true));
  NEVE_ASSIGN_OR_RETURN(const slot::MemoryFacts facts, slot::ReadMemoryFacts(folder));
  std::string reason;
  const uint64_t budget = slot::Budget(facts, options_.budget_bytes, &reason);
  const uint64_t used = options_.budget_bytes != 0 ? own_bytes : 0;   // measured facts already count what is used
  if (used + entry->capacity > budget) {
    return Exhausted(
        absl::StrFormat("a RAM slot for an image of %d bytes needs %d bytes; the budget is %d bytes of which %d are used (%s)",
                        image_bytes, entry->capacity, budget, used, reason));
  }
  NEVE_ASSIGN_OR_RETURN(entry->slot, slot::Slot::Create({.ram_folder = folder, .uid = options_.uid, .job = options_.job,
                                                         .rank = options_.rank, .image_capacity = entry->capacity,
                                                         .chunk_bytes = kDefaultChunkBytes,
                                                         .prefault_threads = options_.prefault_threads}));
  entry->capacity = entry->slot->image_capacity();
  return entry;
}

absl::StatusOr<Entry*> SlotPool::TryAcquire(uint64_t image_bytes) {
  {
    sync::MutexLock lock(mutex_);
    if (FillingLocked()) return nullptr;
    DropLostLocked();
    Entry* entry = PickLocked(image_bytes);
    if (entry != nullptr && entry->capacity >= image_bytes) {
      if (entry->full && entry->slot != nullptr) entry->slot->Free();
      entry->full = false;
      entry->filling = true;
      return entry;
    }
    if (entry != nullptr) DropLocked(entry);   // too small for this layout: its room goes to a larger one
    // Free entries that are too small would count against the number of slots for nothing.
    for (size_t i = entries_.size(); i > 0; --i) {
      Entry* small = entries_[i - 1].get();
      if (!small->full && !small->filling && small->holds == 0 && small->capacity < image_bytes) DropLocked(small);
    }
    const size_t limit = options_.shared ? options_.slots : 1;
    if (entries_.size() + static_cast<size_t>(making_) >= limit || (budget_ended_ && !entries_.empty())) return nullptr;
    ++making_;
  }
  const uint64_t own = bytes();
  absl::StatusOr<std::unique_ptr<Entry>> made = Make(image_bytes, own);
  sync::MutexLock lock(mutex_);
  --making_;
  changed_.NotifyAll();
  if (!made.ok()) {
    if (absl::IsResourceExhausted(made.status()) && !entries_.empty()) {
      if (!budget_ended_) {
        obs::Log(obs::Level::kWarning, absl::StrFormat("event=fewer_slots have=%d configured=%d reason=\"%s\"", entries_.size(),
                                                       options_.slots, std::string(made.status().message())));
      }
      budget_ended_ = true;
      return nullptr;
    }
    return made.status();
  }
  Entry* entry = made->get();
  attach_(entry->image());
  entry->filling = true;
  entries_.push_back(*std::move(made));
  return entry;
}

absl::StatusOr<Entry*> SlotPool::Acquire(uint64_t image_bytes, double timeout_s) {
  while (true) {
    NEVE_ASSIGN_OR_RETURN(Entry * entry, TryAcquire(image_bytes));
    if (entry != nullptr) return entry;
    sync::MutexLock lock(mutex_);
    const auto free = [&]() NEVE_REQUIRES(mutex_) {
      if (FillingLocked()) return false;
      const size_t limit = options_.shared ? options_.slots : 1;
      return PickLocked(image_bytes) != nullptr ||
             (entries_.size() + static_cast<size_t>(making_) < limit && !(budget_ended_ && !entries_.empty()));
    };
    if (!changed_.WaitFor(mutex_, timeout_s, free)) {
      return Timeout(absl::StrFormat("no free slot after %.3g s: all %d are being filled or written to slower tiers", timeout_s,
                                     entries_.size()));
    }
  }
}

void SlotPool::Filled(Entry* entry, const ImageKey& key, uint64_t image_bytes) {
  sync::MutexLock lock(mutex_);
  entry->key = key;
  entry->image_bytes = image_bytes;
  entry->filling = false;
  entry->full = !entry->lost;
  changed_.NotifyAll();
}

void SlotPool::Abandon(Entry* entry) {
  sync::MutexLock lock(mutex_);
  entry->filling = false;
  entry->full = false;
  if (entry->slot != nullptr && !entry->lost) entry->slot->Free();
  changed_.NotifyAll();
}

void SlotPool::KeepToo(const SaveId& save) {
  sync::MutexLock lock(mutex_);
  kept_too_ = save;
}

void SlotPool::Hold(Entry* entry) {
  sync::MutexLock lock(mutex_);
  ++entry->holds;
}

void SlotPool::Release(Entry* entry) {
  sync::MutexLock lock(mutex_);
  if (--entry->holds == 0 && !options_.shared) entry->full = false;   // transient: nothing is kept in private memory
  changed_.NotifyAll();
}

absl::Status SlotPool::Fill(uint64_t image_bytes) {
  while (true) {
    uint64_t own;
    {
      sync::MutexLock lock(mutex_);
      const size_t limit = options_.shared ? options_.slots : 1;
      if (budget_ended_ || entries_.size() + static_cast<size_t>(making_) >= limit) return absl::OkStatus();
      ++making_;
      own = 0;
      for (const auto& entry : entries_) own += entry->capacity;
    }
    absl::StatusOr<std::unique_ptr<Entry>> made = Make(image_bytes, own);
    sync::MutexLock lock(mutex_);
    --making_;
    changed_.NotifyAll();
    if (!made.ok()) {
      if (!entries_.empty()) budget_ended_ = true;
      return made.status();
    }
    attach_((*made)->image());
    entries_.push_back(*std::move(made));
  }
}

Entry* SlotPool::HoldNewest() {
  sync::MutexLock lock(mutex_);
  DropLostLocked();
  Entry* newest = nullptr;
  for (const auto& entry : entries_) {
    if (entry->full && (newest == nullptr || entry->key.save > newest->key.save)) newest = entry.get();
  }
  if (newest != nullptr) ++newest->holds;
  return newest;
}

Entry* SlotPool::HoldByKey(const ImageKey& key) {
  sync::MutexLock lock(mutex_);
  DropLostLocked();
  for (const auto& entry : entries_) {
    if (entry->full && entry->key == key) {
      ++entry->holds;
      return entry.get();
    }
  }
  return nullptr;
}

std::vector<ImageKey> SlotPool::Full() const {
  sync::MutexLock lock(mutex_);
  std::vector<ImageKey> keys;
  for (const auto& entry : entries_) {
    if (entry->full && !entry->lost) keys.push_back(entry->key);
  }
  std::sort(keys.begin(), keys.end(), [](const ImageKey& a, const ImageKey& b) { return a.save > b.save; });
  return keys;
}

void SlotPool::RemoveIf(const std::function<bool(const ImageKey&)>& owes_nothing) {
  sync::MutexLock lock(mutex_);
  DropLostLocked();
  for (size_t i = entries_.size(); i > 0; --i) {
    Entry* entry = entries_[i - 1].get();
    if (!entry->lost && entry->holds == 0 && !entry->filling && (!entry->full || owes_nothing(entry->key))) DropLocked(entry);
  }
}

uint64_t SlotPool::slot_count() const {
  sync::MutexLock lock(mutex_);
  return entries_.size();
}

uint64_t SlotPool::bytes() const {
  sync::MutexLock lock(mutex_);
  uint64_t total = 0;
  for (const auto& entry : entries_) total += entry->capacity;
  return total;
}

void SlotPool::Wake() {
  sync::MutexLock lock(mutex_);
  changed_.NotifyAll();
}

}  // namespace neve::node
