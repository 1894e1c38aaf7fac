// The pool's invariants, with real slots in a temporary RAM folder and owners that are killed.
#include "node/slot_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "base/obs/log.h"

namespace neve::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kImage = 100'000;
constexpr uint64_t kChunk = kDefaultChunkBytes;
constexpr uint64_t kLargeImage = 1'000'000;

class SlotPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/neve-pool-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    ::setenv("NEVE_RAM_DIR", (root_ + "/ram").c_str(), 1);
    ASSERT_TRUE(slot::RamFolder(true).ok());
    obs::SetSink([](obs::Level, const std::string&) {});
    options_.uid.bytes.fill(0x5a);
    options_.job = "gpt";
    options_.prefault_threads = 0;
  }
  void TearDown() override {
    pool_.reset();
    obs::SetSink(nullptr);
    std::filesystem::remove_all(root_);
  }

  SlotPool& Make() {
    pool_ = std::make_unique<SlotPool>(
        options_, [this](std::span<std::byte> region) { attached_.insert(region.data()); },
        [this](std::span<std::byte> region) { attached_.erase(region.data()); });
    return *pool_;
  }
  ImageKey Key(uint64_t sequence) const {
    return {.save = {1, sequence}, .step = sequence * 10, .rank = options_.rank, .world = 2};
  }
  static std::byte ByteAt(uint64_t i, uint64_t sequence) { return static_cast<std::byte>(i * 31 + sequence * 7); }

  // Takes a slot from free to this state; `entry` is one that Acquire gave.
  void FillEntry(Entry* entry, uint64_t sequence, uint64_t bytes, slot::State until = slot::State::kSealed) const {
    ASSERT_EQ(entry->slot->BeginFill({.key = Key(sequence),
                                      .image_bytes = bytes,
                                      .header_bytes = 4096,
                                      .chunk_bytes = kChunk,
                                      .layout_id = 1,
                                      .time = 1'700'000'000},
                                     {}, {}),
              absl::OkStatus());
    for (uint64_t i = 0; i < bytes; ++i) entry->slot->image()[i] = ByteAt(i, sequence);
    if (until == slot::State::kFilling) return;
    entry->slot->MarkCaptured();
    if (until == slot::State::kCaptured) return;
    for (uint64_t chunk = 0; chunk < entry->slot->digests().size(); ++chunk) {
      const uint64_t begin = chunk * kChunk;
      entry->slot->digests()[chunk] =
          codec::DigestOf(entry->slot->image().subspan(begin, std::min(kChunk, bytes - begin)));
    }
    entry->slot->Seal();
  }
  // One whole save; null when there was no slot for it.
  Entry* Save(uint64_t sequence, uint64_t bytes = kImage) {
    absl::StatusOr<Entry*> entry = pool_->TryAcquire(bytes);
    EXPECT_TRUE(entry.ok()) << entry.status();
    if (!entry.ok() || *entry == nullptr) return nullptr;
    FillEntry(*entry, sequence, bytes);
    pool_->Filled(*entry, Key(sequence), bytes);
    return *entry;
  }
  std::vector<uint64_t> Sequences() const {
    std::vector<uint64_t> sequences;
    for (const ImageKey& key : pool_->Full()) sequences.push_back(key.save.sequence);
    return sequences;
  }
  size_t Files() const {
    absl::StatusOr<std::vector<slot::SlotInfo>> slots = slot::Scan(root_ + "/ram", options_.uid);
    return slots.ok() ? slots->size() : 0;
  }
  // Runs `body` over a pool of its own in a child that is then killed: its slots are left behind as a dead owner's.
  void InKilledChild(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      Make();
      body();
      if (HasFailure()) ::_exit(1);
      ::raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }

  std::string root_;
  SlotPool::Options options_;
  std::set<const std::byte*> attached_;
  std::unique_ptr<SlotPool> pool_;
};

TEST_F(SlotPoolTest, NothingIsMadeBeforeTheFirstAcquire) {
  Make();
  EXPECT_EQ(Files(), 0u);
  EXPECT_EQ(pool_->slot_count(), 0u);
  EXPECT_EQ(pool_->HoldNewest(), nullptr);
  EXPECT_EQ(pool_->HoldByKey(Key(1)), nullptr);
  EXPECT_EQ(*pool_->AdoptDead(), 0);
}

TEST_F(SlotPoolTest, SlotsAreMadeUpToTheConfiguredNumberAndThenReused) {
  Make();
  for (uint64_t sequence = 1; sequence <= 8; ++sequence) {
    ASSERT_NE(Save(sequence), nullptr);
    EXPECT_EQ(pool_->slot_count(), std::min<uint64_t>(sequence, 3));
    EXPECT_EQ(Files(), pool_->slot_count());
  }
  EXPECT_THAT(Sequences(), ElementsAre(8, 7, 6));
  EXPECT_EQ(attached_.size(), 3u);
}

TEST_F(SlotPoolTest, AtMostOneFillAtATime) {
  Make();
  const absl::StatusOr<Entry*> first = pool_->TryAcquire(kImage);
  ASSERT_TRUE(first.ok() && *first != nullptr);
  EXPECT_EQ(*pool_->TryAcquire(kImage), nullptr);
  pool_->Abandon(*first);
  const absl::StatusOr<Entry*> second = pool_->TryAcquire(kImage);
  EXPECT_TRUE(second.ok() && *second != nullptr);
  EXPECT_EQ(pool_->slot_count(), 1u);
}

TEST_F(SlotPoolTest, TheNewestAndOneMoreAlwaysStay) {
  Make();
  std::vector<Entry*> entries;
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) entries.push_back(Save(sequence));
  EXPECT_EQ(*pool_->TryAcquire(kImage), entries[0]);  // the oldest goes, and then no other
  EXPECT_EQ(*pool_->TryAcquire(kImage), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(3, 2));
}

TEST_F(SlotPoolTest, WhereTheOldestIsHeldTheNextOldestGoesNeverTheNewest) {
  Make();
  std::vector<Entry*> entries;
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) entries.push_back(Save(sequence));
  pool_->Hold(entries[0]);
  EXPECT_EQ(*pool_->TryAcquire(kImage), entries[1]);
  EXPECT_EQ(*pool_->TryAcquire(kImage), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(3, 1));
}

TEST_F(SlotPoolTest, NewestIsBySaveIdNotByTheOrderOfFills) {
  Make();
  for (const uint64_t sequence : {5, 2, 9}) ASSERT_NE(Save(sequence), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(9, 5, 2));
  ASSERT_NE(Save(10), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(10, 9, 5));
  Entry* newest = pool_->HoldNewest();
  ASSERT_NE(newest, nullptr);
  EXPECT_EQ(newest->key, Key(10));
}

TEST_F(SlotPoolTest, WithTwoSlotsTheNewestStays) {
  options_.slots = 2;
  Make();
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
    ASSERT_NE(Save(sequence), nullptr);
    ASSERT_THAT(pool_->Full().front(), Key(sequence));
  }
  Entry* filling = *pool_->TryAcquire(kImage);
  ASSERT_NE(filling, nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(4));
}

TEST_F(SlotPoolTest, OneSlotIsReusedOnlyWhenNobodyHoldsIt) {
  options_.slots = 1;
  Make();
  Entry* entry = Save(1);
  pool_->Hold(entry);
  pool_->Hold(entry);
  EXPECT_EQ(*pool_->TryAcquire(kImage), nullptr);
  pool_->Release(entry);
  EXPECT_EQ(*pool_->TryAcquire(kImage), nullptr);
  pool_->Release(entry);
  EXPECT_EQ(*pool_->TryAcquire(kImage), entry);
}

TEST_F(SlotPoolTest, AHeldSlotIsNotReusedHoweverOld) {
  Make();
  Entry* oldest = Save(1);
  pool_->Hold(oldest);
  for (uint64_t sequence = 2; sequence <= 5; ++sequence) ASSERT_NE(Save(sequence), oldest);
  EXPECT_EQ(pool_->HoldByKey(Key(1)), oldest);
  EXPECT_EQ(oldest->slot->image()[99], ByteAt(99, 1));
}

TEST_F(SlotPoolTest, AnAbandonedFillNeverHeldASave) {
  Make();
  ASSERT_NE(Save(1), nullptr);
  Entry* entry = *pool_->TryAcquire(kImage);
  FillEntry(entry, 2, kImage, slot::State::kFilling);
  pool_->Abandon(entry);
  EXPECT_THAT(Sequences(), ElementsAre(1));
  EXPECT_EQ(entry->slot->state(), slot::State::kFree);
  EXPECT_EQ(*pool_->TryAcquire(kImage), entry);
}

TEST_F(SlotPoolTest, AcquireTimesOutAndSaysWhatItWaitedFor) {
  options_.slots = 1;
  Make();
  pool_->Hold(Save(1));
  const absl::Status status = pool_->Acquire(kImage, 0.01).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no free slot after 0.01 s: all 1 are"));
}

TEST_F(SlotPoolTest, AcquireReturnsAsSoonAsASlotIsReleased) {
  options_.slots = 1;
  Make();
  Entry* entry = Save(1);
  pool_->Hold(entry);
  std::thread releaser([&] { pool_->Release(entry); });
  const absl::StatusOr<Entry*> acquired = pool_->Acquire(kImage, -1);
  releaser.join();
  ASSERT_TRUE(acquired.ok()) << acquired.status();
  EXPECT_EQ(*acquired, entry);
}

TEST_F(SlotPoolTest, AcquireReturnsAsSoonAsAnotherFillEnded) {
  Make();
  Entry* filling = *pool_->TryAcquire(kImage);
  FillEntry(filling, 1, kImage);
  std::thread filler([&] { pool_->Filled(filling, Key(1), kImage); });
  const absl::StatusOr<Entry*> acquired = pool_->Acquire(kImage, -1);
  filler.join();
  ASSERT_TRUE(acquired.ok()) << acquired.status();
  EXPECT_NE(*acquired, filling);
}

TEST_F(SlotPoolTest, FillMakesTheRestAheadOfTheFirstSave) {
  Make();
  EXPECT_EQ(pool_->Fill(kImage), absl::OkStatus());
  EXPECT_EQ(pool_->slot_count(), 3u);
  EXPECT_GE(pool_->bytes(), 3 * kImage);
  EXPECT_EQ(pool_->Fill(kImage), absl::OkStatus());
  EXPECT_EQ(pool_->slot_count(), 3u);
  EXPECT_THAT(Sequences(), IsEmpty());
}

TEST_F(SlotPoolTest, SlotsStopWhereTheBudgetEnds) {
  options_.budget_bytes = 420'000;  // two slots of 167,936 bytes, not three
  Make();
  const absl::Status filled = pool_->Fill(kImage);
  EXPECT_TRUE(absl::IsResourceExhausted(filled)) << filled;
  EXPECT_THAT(std::string(filled.message()), HasSubstr("the budget is"));
  EXPECT_LE(pool_->bytes(), options_.budget_bytes);
  const uint64_t count = pool_->slot_count();
  EXPECT_EQ(count, 2u);
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) {
    ASSERT_NE(Save(sequence), nullptr);
    EXPECT_EQ(pool_->slot_count(), count);
  }
  EXPECT_THAT(Sequences(), ElementsAre(5, 4));
}

TEST_F(SlotPoolTest, NotEvenOneSlotInTheBudgetIsExhausted) {
  options_.budget_bytes = kImage / 2;
  Make();
  for (const auto& acquired : {pool_->TryAcquire(kImage), pool_->Acquire(kImage, -1)}) {
    EXPECT_TRUE(absl::IsResourceExhausted(acquired.status())) << acquired.status();
    EXPECT_THAT(std::string(acquired.status().message()), HasSubstr("an image of 100000 bytes"));
  }
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SlotPoolTest, AStateThatOutgrewItsSlotsGetsLargerOnesAndKeepsTheNewest) {
  Make();
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) ASSERT_NE(Save(sequence), nullptr);
  ASSERT_NE(Save(4, kLargeImage), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(4, 3, 2));
  ASSERT_NE(Save(5, kLargeImage), nullptr);
  ASSERT_NE(Save(6, kLargeImage), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(6, 5, 4));
  EXPECT_EQ(pool_->slot_count(), 3u);
  EXPECT_EQ(Files(), 3u);
  EXPECT_EQ(attached_.size(), 3u);
}

TEST_F(SlotPoolTest, OutgrowingTheBudgetGivesUpAsFewSlotsAsNeeded) {
  options_.budget_bytes = 1'500'000;
  Make();
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) ASSERT_NE(Save(sequence, 350'000), nullptr);
  const absl::StatusOr<Entry*> large = pool_->Acquire(kLargeImage, 0);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_THAT(Sequences(), ElementsAre(3));  // a whole image is left while the larger one is filled
}

TEST_F(SlotPoolTest, FreeSlotsThatAreTooSmallMakeRoom) {
  Make();
  EXPECT_EQ(pool_->Fill(kImage), absl::OkStatus());
  ASSERT_NE(Save(1, kLargeImage), nullptr);
  EXPECT_EQ(pool_->slot_count(), 1u);
  EXPECT_EQ(Files(), 1u);
}

TEST_F(SlotPoolTest, RemoveIfTakesOnlyWhatOwesNothingAndNobodyHolds) {
  Make();
  std::vector<Entry*> entries;
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) entries.push_back(Save(sequence));
  pool_->Hold(entries[0]);
  pool_->RemoveIf([](const ImageKey& key) { return key.save.sequence != 2; });
  EXPECT_THAT(Sequences(), ElementsAre(2, 1));
  EXPECT_EQ(Files(), 2u);
  pool_->Release(entries[0]);
  pool_->RemoveIf([](const ImageKey&) { return true; });
  EXPECT_EQ(Files(), 0u);
  EXPECT_THAT(attached_, IsEmpty());
}

TEST_F(SlotPoolTest, RemoveIfLeavesASlotThatIsBeingFilled) {
  Make();
  Entry* filling = *pool_->TryAcquire(kImage);
  pool_->RemoveIf([](const ImageKey&) { return true; });
  EXPECT_EQ(Files(), 1u);
  pool_->Abandon(filling);
  pool_->RemoveIf([](const ImageKey&) { return false; });  // free slots owe nothing
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SlotPoolTest, FilesStayWhenThePoolGoes) {
  Make();
  ASSERT_NE(Save(1), nullptr);
  pool_.reset();
  EXPECT_EQ(Files(), 1u);
  EXPECT_THAT(attached_, IsEmpty());
}

TEST_F(SlotPoolTest, SavesOfAKilledOwnerAreAdoptedAndItsUnfinishedFillIsNot) {
  InKilledChild([this] {
    ASSERT_NE(Save(1), nullptr);
    ASSERT_NE(Save(2), nullptr);
    FillEntry(*pool_->TryAcquire(kImage), 3, kImage, slot::State::kFilling);
  });
  Make();
  EXPECT_EQ(*pool_->AdoptDead(), 2);
  EXPECT_THAT(Sequences(), ElementsAre(2, 1));
  EXPECT_EQ(pool_->slot_count(), 3u);
  EXPECT_EQ(attached_.size(), 3u);
  Entry* adopted = pool_->HoldByKey(Key(2));
  ASSERT_NE(adopted, nullptr);
  for (uint64_t i = 0; i < kImage; ++i) ASSERT_EQ(adopted->slot->image()[i], ByteAt(i, 2));
  // The next save goes to the slot that held none.
  ASSERT_NE(Save(4), nullptr);
  EXPECT_THAT(Sequences(), ElementsAre(4, 2, 1));
  EXPECT_EQ(Files(), 3u);
}

TEST_F(SlotPoolTest, ACapturedSaveOfAKilledOwnerIsDigestedAndSealed) {
  InKilledChild([this] {
    ASSERT_NE(Save(1), nullptr);
    FillEntry(*pool_->TryAcquire(kImage), 2, kImage, slot::State::kCaptured);
  });
  Make();
  EXPECT_EQ(*pool_->AdoptDead(), 2);
  Entry* newest = pool_->HoldNewest();
  ASSERT_NE(newest, nullptr);
  EXPECT_EQ(newest->key, Key(2));
  EXPECT_EQ(newest->slot->state(), slot::State::kSealed);
  EXPECT_EQ(newest->slot->Record()->digests[0], codec::DigestOf(newest->slot->image().first(kImage)));
}

TEST_F(SlotPoolTest, AWholeImageIsLeftWhereverTheOwnerIsKilled) {
  for (uint64_t saves = 1; saves <= 5; ++saves) {
    for (const slot::State until : {slot::State::kFilling, slot::State::kCaptured}) {
      InKilledChild([&] {
        EXPECT_TRUE(pool_->AdoptDead().ok());
        for (uint64_t sequence = 1; sequence <= saves; ++sequence) ASSERT_NE(Save(sequence), nullptr);
        FillEntry(*pool_->TryAcquire(kImage), saves + 1, kImage, until);
      });
      Make();
      ASSERT_TRUE(pool_->AdoptDead().ok());
      Entry* newest = pool_->HoldNewest();
      ASSERT_NE(newest, nullptr);
      EXPECT_EQ(newest->key, Key(until == slot::State::kCaptured ? saves + 1 : saves));
      EXPECT_LE(Files(), 3u);
      pool_->Release(newest);
      pool_->RemoveIf([](const ImageKey&) { return true; });
    }
  }
}

TEST_F(SlotPoolTest, SlotsOfOtherRanksJobsAndLivingOwnersAreLeft) {
  options_.rank = 1;
  InKilledChild([this] { ASSERT_NE(Save(1), nullptr); });
  options_.rank = 0;
  Make();
  ASSERT_NE(Save(2), nullptr);
  const std::unique_ptr<SlotPool> living = std::move(pool_);
  Make();
  EXPECT_EQ(*pool_->AdoptDead(), 0);
  options_.uid.bytes[0] = 1;
  Make();
  EXPECT_EQ(*pool_->AdoptDead(), 0);
  EXPECT_EQ(pool_->slot_count(), 0u);
}

TEST_F(SlotPoolTest, AdoptedSlotsCountAgainstTheConfiguredNumber) {
  InKilledChild([this] {
    for (uint64_t sequence = 1; sequence <= 3; ++sequence) ASSERT_NE(Save(sequence), nullptr);
  });
  options_.slots = 2;
  Make();
  EXPECT_EQ(*pool_->AdoptDead(), 3);
  ASSERT_NE(Save(4), nullptr);
  EXPECT_EQ(pool_->slot_count(), 3u);  // what was found is kept, nothing is made
  EXPECT_THAT(Sequences(), ElementsAre(4, 3, 2));
}

TEST_F(SlotPoolTest, WithoutARamTierOneTransientImageIsHeldInPrivateMemory) {
  options_.shared = false;
  Make();
  const absl::StatusOr<Entry*> entry = pool_->TryAcquire(kImage);
  ASSERT_TRUE(entry.ok() && *entry != nullptr);
  EXPECT_EQ((*entry)->slot, nullptr);
  EXPECT_GE((*entry)->image().size(), kImage);
  pool_->Filled(*entry, Key(1), kImage);
  pool_->Hold(*entry);
  EXPECT_EQ(*pool_->TryAcquire(kImage), nullptr);  // it is still being written
  pool_->Release(*entry);
  EXPECT_THAT(Sequences(), IsEmpty());  // nothing is kept
  EXPECT_EQ(*pool_->TryAcquire(kImage), *entry);
  EXPECT_EQ(Files(), 0u);
  EXPECT_EQ(*pool_->AdoptDead(), 0);
}

TEST_F(SlotPoolTest, SlotsWhoseFilesWereRemovedAreNotedAndMadeAnew) {
  std::vector<std::string> lines;
  obs::SetSink([&](obs::Level, const std::string& line) { lines.push_back(line); });
  Make();
  Save(1);
  Save(2);
  std::filesystem::remove_all(root_ + "/ram");   // what a cleaner of temporary files does
  EXPECT_EQ(pool_->HoldNewest(), nullptr);
  EXPECT_THAT(pool_->Full(), IsEmpty());
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("event=slot_lost")));
  ASSERT_NE(Save(3), nullptr);
  EXPECT_EQ(slot::Scan(root_ + "/ram", options_.uid)->size(), 1u);
  EXPECT_THAT(Sequences(), ElementsAre(3));
}

TEST_F(SlotPoolTest, SlotsThatWereCutAreNotTouchedAgain) {
  Make();
  Save(1);
  Entry* held = Save(2);
  pool_->Hold(held);
  const std::vector<slot::SlotInfo> slots = slot::Scan(root_ + "/ram", options_.uid).value();
  for (const slot::SlotInfo& found : slots) std::filesystem::resize_file(found.path, 0);
  ASSERT_NE(Save(3), nullptr);          // a write to either of the two would end the process
  EXPECT_THAT(Sequences(), ElementsAre(3));
  pool_->Release(held);
  ASSERT_NE(Save(4), nullptr);
  pool_->RemoveIf([](const ImageKey&) { return true; });
}

TEST_F(SlotPoolTest, AnotherFileUnderASlotsNameIsNotIt) {
  Make();
  const std::string path = Save(1)->slot->path();
  std::filesystem::copy_file(path, path + ".copy");
  std::filesystem::rename(path + ".copy", path);
  EXPECT_EQ(pool_->HoldByKey(Key(1)), nullptr);
}

}  // namespace
}  // namespace neve::node
