// Which saves go, which stay, and when a round ends; and the two rules that begin a life: what RAM owes, which slot is reused.
#include "node/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/obs/log.h"
#include "base/sync/executor.h"
#include "node/adoption.h"
#include "node/slot_choice.h"
#include "support/sim_tier.h"

namespace neve::node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ImageKey Key(uint64_t sequence) { return {.save = {1, sequence}, .step = sequence, .rank = 0, .world = 1}; }

class RetentionTest : public ::testing::Test {
 protected:
  void SetUp() override { obs::SetSink([this](obs::Level, const std::string& line) { lines_.push_back(line); }); }
  void TearDown() override {
    retention_.reset();
    executor_->RunUntilIdle();
    obs::SetSink(nullptr);
  }
  void Make(catalog::RetentionRule rule) {
    retention_ = std::make_unique<Retention>(tier_, *executor_, metrics_, rule, 0, [this] { return held_; });
  }
  void Commit(const ImageKey& key, Tags tags = {}) {
    format::CommitRecord record;
    record.job = "j";
    record.uid.bytes.fill(1);
    record.key = key;
    record.tags = std::move(tags);
    record.image_bytes = 512;
    record.chunk_bytes = format::kChunkBytesMin;
    record.digests.resize(1);
    const std::vector<std::byte> bytes(512);
    absl::Status committed = absl::UnknownError("not answered");
    tier_.BeginImage(key, bytes.size(), [&](auto writer) {
      (*writer)->Write(0, bytes, [&, writer = *writer](absl::Status) {
        writer->Commit(record, [&committed, writer](absl::Status status) { committed = status; });
      });
    });
    executor_->RunUntilIdle();
    ASSERT_TRUE(committed.ok()) << committed;
  }
  int Durable(uint64_t sequence) {
    int idle = 0;
    retention_->MadeDurable(Key(sequence).save, [&idle] { ++idle; });
    executor_->RunUntilIdle();
    return idle;
  }
  std::vector<uint64_t> Left() {
    std::vector<uint64_t> sequences;
    tier_.List([&](absl::StatusOr<storage::Listing> listing) {
      for (const storage::ImageEntry& entry : listing->images) sequences.push_back(entry.key.save.sequence);
    });
    executor_->RunUntilIdle();
    std::sort(sequences.begin(), sequences.end());
    return sequences;
  }

  std::vector<std::string> lines_;
  std::unique_ptr<sync::SimExecutor> executor_ = sync::SimExecutor::Create(1);
  testing::SimFaults faults_;
  testing::SimDisk disk_{1};
  testing::SimTier tier_{disk_, *executor_, faults_};
  obs::Metrics metrics_;
  std::set<SaveId> held_;
  std::unique_ptr<Retention> retention_;
};

TEST_F(RetentionTest, WithoutANumberNothingGoesAndNoRoundBegins) {
  Make({});
  for (uint64_t i = 1; i <= 3; ++i) Commit(Key(i));
  EXPECT_EQ(Durable(3), 1);
  EXPECT_THAT(Left(), ElementsAre(1, 2, 3));
}

TEST_F(RetentionTest, TheNewestStayAndWhatIsNotDurableYetIsNotCountedUpon) {
  Make({.keep = 2});
  for (uint64_t i = 1; i <= 5; ++i) Commit(Key(i));
  EXPECT_EQ(Durable(2), 1);   // only what is older than save 2 may go, however many newer records are seen
  EXPECT_THAT(Left(), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(Durable(5), 1);
  EXPECT_THAT(Left(), ElementsAre(4, 5));
  EXPECT_EQ(metrics_.Get(obs::Metric::kImagesRetired), 3u);
}

TEST_F(RetentionTest, WhatIsReadIsHeld) {
  held_ = {Key(1).save};
  Make({.keep = 1});
  for (uint64_t i = 1; i <= 3; ++i) Commit(Key(i));
  Durable(3);
  EXPECT_THAT(Left(), ElementsAre(1, 3));
}

TEST_F(RetentionTest, TheBestByTagStayAlsoThoseOfEarlierLives) {
  Make({.keep = 1, .best_tag = "loss", .best_is_max = false, .best_count = 1});
  Commit(Key(1), {{"loss", 0.5}});
  Commit(Key(2), {{"loss", 0.25}});   // no NoteTags: its record tells
  Commit(Key(3), {{"loss", 0.75}});
  retention_->NoteTags(Key(3).save, {{"loss", 0.75}});
  Durable(3);
  EXPECT_THAT(Left(), ElementsAre(2, 3));
}

TEST_F(RetentionTest, RoundsAreNotMixedAndEachCallHearsTheEnd) {
  Make({.keep = 1});
  for (uint64_t i = 1; i <= 4; ++i) Commit(Key(i));
  int idle = 0;
  for (uint64_t i = 2; i <= 4; ++i) retention_->MadeDurable(Key(i).save, [&] { ++idle; });
  EXPECT_FALSE(retention_->Idle());
  executor_->RunUntilIdle();
  EXPECT_TRUE(retention_->Idle());
  EXPECT_EQ(idle, 3);
  EXPECT_THAT(Left(), ElementsAre(4));
}

TEST_F(RetentionTest, AFailureIsSaidAndTheNextRoundTriesAgain) {
  Make({.keep = 1});
  for (uint64_t i = 1; i <= 2; ++i) Commit(Key(i));
  for (const testing::SimFault fault : {testing::SimFault::kList, testing::SimFault::kRetire}) {
    faults_.per_mille[static_cast<size_t>(fault)] = 1000;
    lines_.clear();
    EXPECT_EQ(Durable(2), 1);
    faults_.per_mille = {};
    EXPECT_EQ(lines_.size(), 1u);
    EXPECT_THAT(Left(), ElementsAre(1, 2));
  }
  EXPECT_EQ(Durable(2), 1);
  EXPECT_THAT(Left(), ElementsAre(2));
}

TEST_F(RetentionTest, AnAnswerAfterTheEndIsDropped) {
  Make({.keep = 1});
  for (uint64_t i = 1; i <= 2; ++i) Commit(Key(i));
  bool idle = false;
  retention_->MadeDurable(Key(2).save, [&] { idle = true; });
  retention_.reset();
  executor_->RunUntilIdle();
  EXPECT_FALSE(idle);
}

TEST_F(RetentionTest, RET_03_ARankRetiresItsOwnBelowWhatAllRanksHave) {
  const auto of_rank = [](uint64_t sequence, uint32_t rank) {
    return ImageKey{.save = {1, sequence}, .step = sequence, .rank = rank, .world = 2};
  };
  retention_ = std::make_unique<Retention>(tier_, *executor_, metrics_, catalog::RetentionRule{.keep = 1}, 1, [this] { return held_; }, 2);
  for (uint64_t i = 1; i <= 5; ++i) Commit(of_rank(i, 1));
  EXPECT_EQ(Durable(5), 1);
  EXPECT_THAT(Left(), ElementsAre(1, 2, 3, 4, 5));   // nothing is whole
  EXPECT_EQ(lines_.size(), 1u);
  for (uint64_t i = 1; i <= 3; ++i) Commit(of_rank(i, 0));
  Durable(5);
  EXPECT_THAT(Left(), ElementsAre(1, 2, 3, 3, 4, 5));   // of rank 0 all three, its own from 3 on
}

TEST_F(RetentionTest, OnADiskOfItsOwnARankGoesByWhatIsTold) {
  const auto own = [](uint64_t sequence) { return ImageKey{.save = {1, sequence}, .step = sequence, .rank = 1, .world = 2}; };
  std::set<SaveId> told;
  const auto make = [&](catalog::RetentionRule rule) {
    retention_ = std::make_unique<Retention>(tier_, *executor_, metrics_, rule, 1, [this] { return held_; }, 2, [&told] { return told; });
  };
  make({.keep = 1, .best_tag = "loss", .best_is_max = false, .best_count = 1});
  for (uint64_t i = 1; i <= 5; ++i) Commit(own(i));
  told = {own(2).save, own(3).save};
  Durable(5);
  EXPECT_THAT(Left(), ElementsAre(1, 2, 3, 4, 5));   // the best one is known from rank 0's records only
  make({.keep = 1});
  told.clear();
  Durable(5);
  EXPECT_THAT(Left(), ElementsAre(1, 2, 3, 4, 5));
  told = {own(2).save, own(3).save};
  Durable(5);
  EXPECT_THAT(Left(), ElementsAre(3, 4, 5));
  EXPECT_THAT(lines_, ::testing::Each(::testing::HasSubstr("retention_waits")));
}

TEST_F(RetentionTest, ImagesOfRanksThatAreNoMoreGoWithTheOthers) {
  retention_ = std::make_unique<Retention>(tier_, *executor_, metrics_, catalog::RetentionRule{.keep = 1}, 0, [this] { return held_; }, 2);
  for (uint32_t rank = 0; rank < 3; ++rank) Commit({.save = {1, 1}, .step = 1, .rank = rank, .world = 3});
  for (uint32_t rank = 0; rank < 2; ++rank) Commit({.save = {1, 2}, .step = 2, .rank = rank, .world = 2});
  Durable(2);
  EXPECT_THAT(Left(), ElementsAre(1, 2, 2));   // rank 1's part of save 1 is rank 1's to retire
}

TEST(Adoption, OfManyRanksItsOwnImageIsWhatCounts) {
  const ImageKey own{.save = {1, 3}, .step = 3, .rank = 1, .world = 2};
  storage::ImageEntry entry;
  entry.key = own;
  entry.has_record = entry.has_image = true;
  const std::vector<catalog::TierListing> one = {{TierKind::kFile, "file:", absl::OkStatus(), {.images = {entry}}}};
  const Debt debt = DebtOf(std::vector{own}, catalog::GroupSaves(one), 1);
  EXPECT_THAT(debt.there, ElementsAre(own));
  EXPECT_THAT(debt.owed, IsEmpty());
}

TEST(Adoption, OwedIsWhatIsDueNotThereAndNewerThanAllThere) {
  catalog::Save there;
  there.complete = true;
  there.save = {1, 4};
  catalog::Save half;
  half.save = {1, 6};
  const std::vector<ImageKey> in_ram = {Key(8), Key(7), Key(6), Key(4), Key(2)};
  const Debt debt = DebtOf(in_ram, std::vector{half, there}, 2);
  EXPECT_THAT(debt.owed, ElementsAre(Key(6), Key(8)));   // 7 is not due, 2 is older than what is there
  EXPECT_THAT(debt.there, ElementsAre(Key(4)));
  EXPECT_THAT(DebtOf(in_ram, {}, 4).owed, ElementsAre(Key(4), Key(8)));
}

TEST(SlotChoice, TheOldestThatNobodyHoldsIfEnoughAreLeft) {
  const auto full = [](uint64_t sequence, int holds = 0) { return SlotFacts{true, holds, {1, sequence}}; };
  EXPECT_EQ(SlotToReuse({}, 0), -1);
  EXPECT_EQ(SlotToReuse(std::vector{full(5), full(3), full(4)}, 2), 1);
  EXPECT_EQ(SlotToReuse(std::vector{full(5), full(3, 1), full(4)}, 2), 2);      // two are left, the newest among them
  EXPECT_EQ(SlotToReuse(std::vector{full(5), full(3, 1), full(4, 1)}, 2), -1);  // the newest is never given up
  EXPECT_EQ(SlotToReuse(std::vector{full(5), SlotFacts{}, full(4)}, 2), -1);    // only one would be left
  EXPECT_EQ(SlotToReuse(std::vector{full(5)}, 0), 0);
  EXPECT_EQ(SlotToReuse(std::vector{full(5, 2)}, 0), -1);
}

TEST(SlotChoice, WhatTheWatermarkKeepsGoesLast) {
  const auto full = [](uint64_t sequence, bool kept = false, int holds = 0) { return SlotFacts{true, holds, {1, sequence}, kept}; };
  EXPECT_EQ(SlotToReuse(std::vector{full(2, true), full(5), full(3), full(4)}, 2), 2);
  EXPECT_EQ(SlotToReuse(std::vector{full(5), full(3), full(2, true), full(4)}, 2), 1);
  EXPECT_EQ(SlotToReuse(std::vector{full(2, true), full(5), full(3, false, 1), full(4, false, 1)}, 2), 0);   // nothing waits for it
}

}  // namespace
}  // namespace neve::node
