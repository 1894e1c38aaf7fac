// Saves from listings, and what retention may take. Cases are listings written by hand.
#include "catalog/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace neve::catalog {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

storage::ImageEntry Entry(SaveId save, uint64_t step, uint32_t rank = 0, uint32_t world = 1) {
  storage::ImageEntry entry;
  entry.key = {.save = save, .step = step, .rank = rank, .world = world};
  entry.has_record = entry.has_image = true;
  entry.path = "step-" + std::to_string(step) + "/shard-" + std::to_string(rank) + "-of-" + std::to_string(world);
  return entry;
}

storage::ImageEntry Without(storage::ImageEntry entry, bool record, bool image) {
  if (record) entry.has_record = false;
  if (image) entry.has_image = false;
  return entry;
}

TierListing Tier(TierKind kind, std::vector<storage::ImageEntry> images) {
  TierListing tier{kind, std::string(Name(kind)) + ":", absl::OkStatus(), {}};
  tier.listing.images = std::move(images);
  return tier;
}

std::vector<SaveId> Ids(const std::vector<const Save*>& saves) {
  std::vector<SaveId> ids;
  for (const Save* save : saves) ids.push_back(save->save);
  return ids;
}

// Complete saves 1..count of one rank in one tier, newest first.
std::vector<Save> Saves(uint64_t count) {
  std::vector<storage::ImageEntry> images;
  for (uint64_t i = 1; i <= count; ++i) images.push_back(Entry({1, i}, i * 10));
  return GroupSaves(std::vector{Tier(TierKind::kFile, images)});
}

RetentionRule Keep(uint64_t keep) { return {.keep = keep, .best_tag = "", .best_is_max = false, .best_count = 0}; }

TEST(GroupSavesTest, NothingListedIsNoSave) {
  EXPECT_THAT(GroupSaves({}), IsEmpty());
  EXPECT_THAT(GroupSaves(std::vector{Tier(TierKind::kRam, {}), Tier(TierKind::kFile, {})}), IsEmpty());
}

TEST(GroupSavesTest, RET_04_NewestIsTheGreatestSaveIdNotTheGreatestStep) {
  const auto saves = GroupSaves(std::vector{
      Tier(TierKind::kFile, {Entry({1, 9}, 900), Entry({2, 0}, 100), Entry({1, 10}, 1000), Entry({2, 1}, 50)})});
  ASSERT_EQ(saves.size(), 4u);
  EXPECT_EQ(saves[0].save, (SaveId{2, 1}));
  EXPECT_EQ(saves[0].step, 50u);
  EXPECT_EQ(saves[1].save, (SaveId{2, 0}));
  EXPECT_EQ(saves[2].save, (SaveId{1, 10}));
  EXPECT_EQ(saves[3].save, (SaveId{1, 9}));
}

TEST(GroupSavesTest, CopiesOfOneImageStandInTheOrderOfTheListings) {
  const auto saves =
      GroupSaves(std::vector{Tier(TierKind::kRam, {Entry({1, 1}, 10)}), Tier(TierKind::kFile, {Entry({1, 1}, 10)})});
  ASSERT_EQ(saves.size(), 1u);
  ASSERT_EQ(saves[0].ranks.size(), 1u);
  ASSERT_EQ(saves[0].ranks[0].size(), 2u);
  EXPECT_EQ(saves[0].ranks[0][0].tier, 0);
  EXPECT_EQ(saves[0].ranks[0][1].tier, 1);
  EXPECT_TRUE(saves[0].complete);
  EXPECT_EQ(saves[0].KeyOf(0), (ImageKey{.save = {1, 1}, .step = 10, .rank = 0, .world = 1}));
}

TEST(GroupSavesTest, RanksOfDifferentTiersMakeOneCompleteSave) {
  const auto saves = GroupSaves(
      std::vector{Tier(TierKind::kRam, {Entry({1, 1}, 10, 0, 2)}), Tier(TierKind::kFile, {Entry({1, 1}, 10, 1, 2)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_TRUE(saves[0].complete);
  EXPECT_FALSE(saves[0].CompleteIn(0));
  EXPECT_FALSE(saves[0].CompleteIn(1));
}

TEST(GroupSavesTest, TIER_02_AMissingRankIsNamed) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10, 0, 3), Entry({1, 1}, 10, 2, 3)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_FALSE(saves[0].complete);
  EXPECT_THAT(saves[0].missing_ranks, ElementsAre(1u));
  EXPECT_THAT(saves[0].reason, HasSubstr("rank 1 of 3 missing (found nothing)"));
  EXPECT_TRUE(saves[0].any_record);
}

TEST(GroupSavesTest, AnImageWithoutARecordDoesNotExist) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, {Without(Entry({1, 1}, 10), true, false)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_FALSE(saves[0].complete);
  EXPECT_FALSE(saves[0].any_record);
  EXPECT_THAT(saves[0].reason, HasSubstr("an image without a commit record"));
}

TEST(GroupSavesTest, ARecordWithoutItsImageIsNoSave) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, {Without(Entry({1, 1}, 10), false, true)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_FALSE(saves[0].complete);
  EXPECT_TRUE(saves[0].any_record);
  EXPECT_THAT(saves[0].reason, HasSubstr("a commit record without its image"));
}

TEST(GroupSavesTest, RecordAndImageOfDifferentTiersAreNotOneCopy) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kRam, {Without(Entry({1, 1}, 10), true, false)}),
                                            Tier(TierKind::kFile, {Without(Entry({1, 1}, 10), false, true)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_FALSE(saves[0].complete);
}

TEST(GroupSavesTest, ManyMissingRanksAreCutShortInTheReason) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10, 9999, 16384)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].missing_ranks.size(), 1024u);
  EXPECT_THAT(saves[0].reason, HasSubstr("rank 0, 1, 2, 3, 4, 5, 6, 7, ... of 16384 missing"));
  EXPECT_EQ(saves[0].ranks[9999].size(), 1u);
}

TEST(GroupSavesTest, ImagesOfOneSaveIdThatDisagreeMakeItIncomplete) {
  for (const storage::ImageEntry& other : {Entry({1, 1}, 10, 0, 2), Entry({1, 1}, 11)}) {
    const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10), other})});
    ASSERT_EQ(saves.size(), 1u);
    EXPECT_FALSE(saves[0].complete);
    EXPECT_FALSE(saves[0].CompleteIn(0));
    EXPECT_THAT(saves[0].reason, HasSubstr("step 10 of world 1"));
    EXPECT_THAT(saves[0].reason, HasSubstr(other.path));
  }
}

TEST(GroupSavesTest, ARankOutsideOfItsWorldMakesTheSaveIncomplete) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10, 5, 2)})});
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_FALSE(saves[0].complete);
  EXPECT_THAT(saves[0].reason, HasSubstr("rank 5 of world 2"));
}

TEST(GroupSavesTest, AHostileWorldInANameIsRefusedWithoutItsMemory) {
  constexpr uint32_t kMax = std::numeric_limits<uint32_t>::max();
  const auto saves =
      GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10, kMax - 1, kMax), Entry({1, 0}, 5)})});
  ASSERT_EQ(saves.size(), 2u);
  EXPECT_FALSE(saves[0].complete);
  EXPECT_LE(saves[0].ranks.size(), 1024u);
  EXPECT_THAT(saves[0].reason, HasSubstr("4294967295 ranks"));
  EXPECT_TRUE(saves[1].complete);
}

TEST(GroupSavesTest, APinInAnyTierPinsTheSave) {
  storage::ImageEntry pinned = Entry({1, 1}, 10);
  pinned.pinned = true;
  const auto saves =
      GroupSaves(std::vector{Tier(TierKind::kRam, {Entry({1, 1}, 10)}), Tier(TierKind::kFile, {pinned})});
  EXPECT_TRUE(saves[0].pinned);
}

TEST(ToRetireTest, WithoutARuleNothingGoes) {
  const auto saves = Saves(5);
  EXPECT_THAT(ToRetire(saves, 0, RetentionRule{}, {}, {}, std::nullopt), IsEmpty());
}

TEST(ToRetireTest, AllButTheNewestGoOldestFirst) {
  const auto saves = Saves(5);
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(2), {}, {}, std::nullopt)),
              ElementsAre(SaveId{1, 1}, SaveId{1, 2}, SaveId{1, 3}));
}

TEST(ToRetireTest, RET_02_TheNewestStaysWhateverTheRuleSays) {
  const auto saves = Saves(3);
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(0), {}, {}, std::nullopt)), ElementsAre(SaveId{1, 1}, SaveId{1, 2}));
}

TEST(ToRetireTest, FewerThanKeptLeavesAll) {
  const auto saves = Saves(3);
  EXPECT_THAT(ToRetire(saves, 0, Keep(3), {}, {}, std::nullopt), IsEmpty());
  EXPECT_THAT(ToRetire(saves, 0, Keep(~uint64_t{0}), {}, {}, std::nullopt), IsEmpty());
}

// Rank 1 of 2's images of saves 1..count, on its own disk, and rank 0's of `shared`.
std::vector<Save> OwnDisk(uint64_t count, const std::vector<uint64_t>& shared = {}) {
  std::vector<storage::ImageEntry> images;
  for (uint64_t i = 1; i <= count; ++i) images.push_back(Entry({1, i}, i * 10, 1, 2));
  for (const uint64_t i : shared) images.push_back(Entry({1, i}, i * 10, 0, 2));
  return GroupSaves(std::vector{Tier(TierKind::kFile, images)});
}

TEST(ToRetireTest, WhatAllRanksSaidTheyHaveIsCountedWhereTheirImagesAreNotSeen) {
  const auto saves = OwnDisk(5);
  const Told told{.saves = {SaveId{1, 2}, SaveId{1, 3}, SaveId{1, 4}}, .rank = 1, .world = 2};
  EXPECT_THAT(ToRetire(saves, 0, Keep(2), {}, {}, std::nullopt, true), IsEmpty());
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(2), {}, {}, std::nullopt, true, told)), ElementsAre(SaveId{1, 1}, SaveId{1, 2}));
  EXPECT_THAT(ToRetire(saves, 0, Keep(3), {}, {}, SaveId{1, 1}, true, told), IsEmpty());   // the bound still holds
  // What this rank itself does not have any more does not count, nor what is of another world.
  const auto gone = GroupSaves(
      std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10, 1, 2), Without(Entry({1, 4}, 40, 1, 2), true, false)})});
  EXPECT_THAT(ToRetire(gone, 0, Keep(1), {}, {}, std::nullopt, true, told), IsEmpty());
  EXPECT_THAT(ToRetire(saves, 0, Keep(1), {}, {}, std::nullopt, true, Told{told.saves, 1, 3}), IsEmpty());
}

TEST(ToRetireTest, WhatTheListingNeedsIsNeverRetiredForWhatIsTold) {
  // The listing shows save 2 whole; 3 and 4 are told to be, and are not seen to be.
  const auto saves = OwnDisk(4, {1, 2});
  const Told told{.saves = {SaveId{1, 2}, SaveId{1, 3}, SaveId{1, 4}}, .rank = 1, .world = 2};
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(1), {}, {}, std::nullopt, true, told)), ElementsAre(SaveId{1, 1}));
}

TEST(ToRetireTest, HeldSavesStay) {
  const auto saves = Saves(4);
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(1), {SaveId{1, 2}}, {}, std::nullopt)),
              ElementsAre(SaveId{1, 1}, SaveId{1, 3}));
}

TEST(ToRetireTest, PinnedSavesStayAndAreNotCounted) {
  auto saves = Saves(4);
  saves[0].pinned = true;  // the newest
  saves[3].pinned = true;  // the oldest
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(1), {}, {}, std::nullopt)), ElementsAre(SaveId{1, 2}));
}

TEST(ToRetireTest, IncompleteSavesAreNeitherCountedNorNamed) {
  const auto saves =
      GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10), Without(Entry({1, 2}, 20), true, false),
                                                    Without(Entry({1, 3}, 30), false, true), Entry({1, 0}, 5)})});
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(1), {}, {}, std::nullopt)), ElementsAre(SaveId{1, 0}));
}

TEST(ToRetireTest, RET_03_WhatOtherRanksBeganToTakeOutGoesTooBelowAllThatIsKept) {
  std::vector<storage::ImageEntry> images;
  for (uint64_t i = 3; i <= 6; ++i) {
    images.push_back(Entry({1, i}, i * 10, 0, 2));
    if (i != 6) images.push_back(Entry({1, i}, i * 10, 1, 2));
  }
  images.push_back(Entry({1, 1}, 10, 0, 2));   // rank 1 retired its own already
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kFile, images)});
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(2), {}, {}, std::nullopt)), ElementsAre(SaveId{1, 3}));
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(2), {}, {}, std::nullopt, true)), ElementsAre(SaveId{1, 1}, SaveId{1, 3}));
  EXPECT_THAT(ToRetire(saves, 0, Keep(3), {}, {}, SaveId{1, 1}, true), IsEmpty());
}

TEST(ToRetireTest, ASaveThatContradictsItselfDoesNotPushAGoodOneOut) {
  const auto saves =
      GroupSaves(std::vector{Tier(TierKind::kFile, {Entry({1, 1}, 10), Entry({1, 2}, 20), Entry({1, 2}, 21)})});
  EXPECT_THAT(ToRetire(saves, 0, Keep(1), {}, {}, std::nullopt), IsEmpty());
}

TEST(ToRetireTest, OnlyWhatIsCompleteInThatTierCountsThere) {
  const auto saves = GroupSaves(std::vector{Tier(TierKind::kRam, {Entry({1, 2}, 20), Entry({1, 3}, 30)}),
                                            Tier(TierKind::kFile, {Entry({1, 1}, 10)})});
  EXPECT_THAT(ToRetire(saves, 1, Keep(1), {}, {}, std::nullopt), IsEmpty());
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(1), {}, {}, std::nullopt)), ElementsAre(SaveId{1, 2}));
}

TEST(ToRetireTest, NothingAtOrAboveTheWatermarkGoes) {
  const auto saves = Saves(5);
  EXPECT_THAT(Ids(ToRetire(saves, 0, Keep(1), {}, {}, SaveId{1, 3})), ElementsAre(SaveId{1, 1}, SaveId{1, 2}));
}

TEST(ToRetireTest, TheBestByATagStayBesideTheNewest) {
  const auto saves = Saves(6);
  const std::map<SaveId, double> loss = {{{1, 1}, 0.5}, {{1, 2}, 0.1}, {{1, 3}, 0.9}, {{1, 4}, 0.2}, {{1, 5}, 0.4}};
  RetentionRule rule = Keep(1);
  rule.best_tag = "loss";
  rule.best_count = 2;
  EXPECT_THAT(Ids(ToRetire(saves, 0, rule, {}, loss, std::nullopt)),
              ElementsAre(SaveId{1, 1}, SaveId{1, 3}, SaveId{1, 5}));
  rule.best_is_max = true;
  EXPECT_THAT(Ids(ToRetire(saves, 0, rule, {}, loss, std::nullopt)),
              ElementsAre(SaveId{1, 2}, SaveId{1, 4}, SaveId{1, 5}));
}

TEST(ToRetireTest, ANaNIsNeverTheBest) {
  const auto saves = Saves(3);
  RetentionRule rule = Keep(1);
  rule.best_count = 1;
  const std::map<SaveId, double> loss = {{{1, 1}, std::numeric_limits<double>::quiet_NaN()}, {{1, 2}, 7.0}};
  for (const bool is_max : {false, true}) {
    rule.best_is_max = is_max;
    EXPECT_THAT(Ids(ToRetire(saves, 0, rule, {}, loss, std::nullopt)), ElementsAre(SaveId{1, 1}));
  }
}

TEST(GreatestIncarnationTest, CountsNamesOfIncompleteSavesAndClaims) {
  EXPECT_EQ(GreatestIncarnation({}), 0u);
  TierListing file = Tier(TierKind::kFile, {Without(Entry({4, 1}, 10), true, false)});
  file.listing.incarnation_max = 3;
  EXPECT_EQ(GreatestIncarnation(std::vector{file}), 4u);
  file.listing.incarnation_max = 7;
  EXPECT_EQ(GreatestIncarnation(std::vector{Tier(TierKind::kRam, {Entry({5, 1}, 10)}), file}), 7u);
}

}  // namespace
}  // namespace neve::catalog
