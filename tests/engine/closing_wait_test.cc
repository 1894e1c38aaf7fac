// How long a closing rank waits: by what a listing shows and who lives.
#include "engine/closing_wait.h"

#include <gtest/gtest.h>

#include <map>

namespace neve::engine {
namespace {

constexpr SaveId kOld{1, 3}, kNewest{1, 4};
constexpr double kAllowed = 300;

class ClosingWaitTest : public ::testing::Test {
 protected:
  enum Form { kBegun, kWhole };
  void Add(SaveId save, uint32_t rank, Form form) {
    storage::ImageEntry entry;
    entry.key = {save, save.sequence, rank, 3};
    entry.has_image = true;
    entry.has_record = form == kWhole;
    listing_.listing.images.push_back(entry);
  }
  ClosingWait Look(const std::map<uint32_t, bool>& lives) {
    const auto saves = catalog::GroupSaves({&listing_, 1});
    return LookWhileClosing(saves, durable_, kNewest, 0, 3, kAllowed, [&](uint32_t rank) {
      const auto known = lives.find(rank);
      return known == lives.end() ? std::nullopt : std::optional(known->second);
    });
  }

  std::vector<int> durable_ = {0};
  catalog::TierListing listing_{TierKind::kFile, "file:/x", absl::OkStatus(), {}};
};

TEST_F(ClosingWaitTest, WhatAllHaveIsNotWaitedFor) {
  for (uint32_t rank = 0; rank < 3; ++rank) Add(kNewest, rank, kWhole);
  const ClosingWait wait = Look({{1, true}, {2, true}});
  EXPECT_EQ(wait.whole, kNewest);
  EXPECT_EQ(wait.patience_s, 0);
}

TEST_F(ClosingWaitTest, RanksThatLiveHereAreWaitedForThoughNothingOfThemIsSeen) {
  Add(kNewest, 0, kWhole);
  const ClosingWait wait = Look({{1, true}, {2, true}});
  EXPECT_FALSE(wait.whole.has_value());
  EXPECT_EQ(wait.patience_s, kAlivePatience_s);
}

TEST_F(ClosingWaitTest, ARankThatWritesIsWaitedForAsLongAsTheCallerAllows) {
  Add(kNewest, 0, kWhole);
  Add(kNewest, 1, kBegun);
  Add(kNewest, 2, kWhole);
  EXPECT_EQ(Look({{1, true}, {2, true}}).patience_s, kAllowed);
  EXPECT_EQ(Look({{2, true}}).patience_s, kAlivePatience_s);   // elsewhere: it may have died
}

TEST_F(ClosingWaitTest, ADeadRankIsNotWaitedForUnlessItHasCommitted) {
  for (uint32_t rank = 0; rank < 3; ++rank) Add(kOld, rank, kWhole);
  Add(kNewest, 0, kWhole);
  Add(kNewest, 1, kBegun);
  const ClosingWait wait = Look({{1, false}, {2, true}});
  EXPECT_EQ(wait.whole, kOld);
  EXPECT_EQ(wait.patience_s, 0);
  listing_.listing.images.back().has_record = true;
  EXPECT_EQ(Look({{1, false}, {2, true}}).patience_s, kAlivePatience_s);
}

TEST_F(ClosingWaitTest, RanksElsewhereAreWaitedForLongerOnceOneWasSeenHere) {
  Add(kNewest, 0, kWhole);
  EXPECT_EQ(Look({}).patience_s, kUnseenPatience_s);
  Add(kOld, 2, kWhole);
  EXPECT_EQ(Look({}).patience_s, kAlivePatience_s);
}

TEST_F(ClosingWaitTest, EveryDurableTierCounts) {
  for (uint32_t rank = 0; rank < 3; ++rank) Add(kNewest, rank, kWhole);
  durable_ = {0, 1};
  const ClosingWait wait = Look({{1, true}, {2, true}});
  EXPECT_FALSE(wait.whole.has_value());
  EXPECT_EQ(wait.patience_s, kAlivePatience_s);
}

}  // namespace
}  // namespace neve::engine
