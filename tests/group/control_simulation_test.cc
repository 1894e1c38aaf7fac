// The tree of control connections, hundreds of ranks in one thread: what is told is true, and in the end all of it is told.
//
// A failing history prints its seed; `SEED=<seed> group_test --gtest_filter='ControlSimulation.*'` runs it alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "absl/strings/str_format.h"
#include "base/sync/seeded_random.h"
#include "support/sim_control.h"

namespace neve::group {
namespace {

using ::testing::HasSubstr;

void RunFor(sync::SimExecutor& executor, sync::Nanos time) {
  bool over = false;
  executor.PostAfter(time, [&] { over = true; });
  while (!over && executor.Step()) {
  }
}

uint64_t FirstSeed() { return (uint64_t{std::random_device{}()} << 20) + 1; }

// One history: saves at each rank's own speed, some skipped, connections and networks that break, ranks' silence, intruders.
class History {
 public:
  explicit History(uint64_t seed) : executor_(sync::SimExecutor::Create(seed)) {
    testing::SimControl::Options options;
    options.world = static_cast<uint32_t>(Chance(3) ? 2 + Below(511) : 2 + Below(30));
    options.fan_out = static_cast<uint32_t>(1 + Below(Chance(50) ? 3 : 8));
    options.columns = 1 + Below(3);
    options.pieces = Chance(30);
    options.delay_max = static_cast<sync::Nanos>(1 + Below(300)) * sync::kMillisecond;
    if (options.world / options.fan_out > 60) options.fan_out = 8;
    options_ = options;
    net_ = std::make_unique<testing::SimControl>(*executor_, options);
    committed_.assign(options.columns, std::vector<std::set<uint64_t>>(options.world));
    abandoned_ = committed_;
    next_.assign(options.world, 0);
    net_->OnTold([this](uint32_t rank) { Check(rank); });
  }

  std::string Run() {
    net_->Start();
    const uint64_t events = 20 + Below(50);
    for (uint64_t event = 0; event < events && failure_.empty(); ++event) {
      const uint64_t dice = Below(100);
      if (dice < 40) {
        RunFor(*executor_, static_cast<sync::Nanos>(Below(2000)) * sync::kMillisecond);
      } else if (dice < 75) {
        for (uint32_t rank = 0; rank < options_.world; ++rank) Save(rank);   // the steps of a job go together
      } else if (dice < 83) {
        const auto rank = static_cast<uint32_t>(Below(options_.world));      // one runs ahead
        for (uint64_t n = Below(Chance(10) ? 900 : 5); n > 0; --n) Save(rank);
      } else if (dice < 91) {
        std::set<uint32_t> island;
        for (uint32_t rank = 0; rank < options_.world; ++rank) {
          if (Chance(30)) island.insert(rank);
        }
        net_->Partition(Chance(50) ? island : std::set<uint32_t>(), Chance(50));
      } else if (dice < 96) {
        std::string junk(Below(200), '\0');
        for (char& c : junk) c = static_cast<char>(executor_->Random());
        for (uint64_t n = Below(100); n > 0; --n) net_->Intrude(static_cast<uint32_t>(Below(options_.world)), junk);
      } else {
        RunFor(*executor_, static_cast<sync::Nanos>(Below(120)) * sync::kSecond);
      }
    }
    if (failure_.empty()) Quiesce();
    return failure_;
  }
  uint64_t complete_saves() const { return complete_; }
  uint64_t lost_saves() const { return lost_; }

 private:
  uint64_t Below(uint64_t limit) { return executor_->Random() % limit; }
  bool Chance(uint64_t percent) { return Below(100) < percent; }
  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  void Save(uint32_t rank) {
    const uint64_t sequence = next_[rank]++;
    for (size_t column = 0; column < options_.columns; ++column) {
      if (column > 0 && sequence % (2 * column) != 0) continue;   // by its cadence not due there
      if (Chance(3)) {
        abandoned_[column][rank].insert(sequence);
        net_->Abandon(rank, column, sequence);
      } else {
        committed_[column][rank].insert(sequence);
        net_->Commit(rank, column, sequence);
      }
    }
  }
  bool ByAll(size_t column, uint64_t sequence) const {
    return std::all_of(committed_[column].begin(), committed_[column].end(), [&](const auto& of) { return of.contains(sequence); });
  }
  void Check(uint32_t rank) {
    for (size_t column = 0; column < options_.columns; ++column) {
      const std::set<uint64_t>& told = net_->at(rank).Complete(column);
      if (told.empty()) continue;
      for (auto it = told.rbegin(); it != told.rend() && *it + 10 >= *told.rbegin(); ++it) {
        if (ByAll(column, *it)) continue;
        Fail(absl::StrFormat("rank %d is told that all have %d in column %d, and they have not", rank, *it, column));
      }
    }
  }
  void Quiesce() {
    net_->Partition({}, false);
    const uint64_t end = *std::max_element(next_.begin(), next_.end());
    for (uint32_t rank = 0; rank < options_.world; ++rank) {
      while (next_[rank] < end) Save(rank);
    }
    RunFor(*executor_, 400 * sync::kSecond);   // silent connections are found dead, one level after the other
    for (uint32_t rank = 0; rank < options_.world; ++rank) {
      if (!net_->at(rank).joined()) return Fail(absl::StrFormat("rank %d never joined: %s", rank, net_->at(rank).last_error()));
    }
    for (size_t column = 0; column < options_.columns; ++column) {
      for (uint64_t sequence = 0; sequence < end; ++sequence) {
        const bool all = ByAll(column, sequence);
        const bool lost = std::any_of(abandoned_[column].begin(), abandoned_[column].end(),
                                      [&](const auto& of) { return of.contains(sequence); });
        for (uint32_t rank = 0; rank < options_.world; ++rank) {
          const Control& control = net_->at(rank);
          if (all != control.Complete(column, sequence)) {
            return Fail(absl::StrFormat("all ranks %s %d in column %d, and rank %d is told otherwise", all ? "have" : "have not", sequence,
                                        column, rank));
          }
          if (control.Lost(column, sequence) && !lost) return Fail("a save that nobody abandoned is told to be");
          complete_ += all ? 1 : 0;
          lost_ += control.Lost(column, sequence) ? 1 : 0;
        }
      }
    }
  }

  std::unique_ptr<sync::SimExecutor> executor_;
  testing::SimControl::Options options_;
  std::unique_ptr<testing::SimControl> net_;
  std::vector<std::vector<std::set<uint64_t>>> committed_, abandoned_;   // [column][rank]
  std::vector<uint64_t> next_;
  std::string failure_;
  uint64_t complete_ = 0, lost_ = 0;
};

TEST(ControlSimulation, WhatIsToldIsTrueAndAllOfItIsTold) {
  if (const char* seed = std::getenv("SEED"); seed != nullptr) {
    EXPECT_EQ(History(std::strtoull(seed, nullptr, 10)).Run(), "");
    return;
  }
  const uint64_t histories = std::getenv("NEVE_LONG") != nullptr ? 20'000 : 200, first = FirstSeed();
  std::printf("%llu histories from seed %llu on\n", static_cast<unsigned long long>(histories), static_cast<unsigned long long>(first));
  uint64_t complete = 0, lost = 0;
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    History history(seed);
    ASSERT_EQ(history.Run(), "") << "replay this history alone with SEED=" << seed;
    complete += history.complete_saves();
    lost += history.lost_saves();
  }
  EXPECT_GT(complete, 0u);
  EXPECT_GT(lost, 0u);
}

// A world of ranks that meet well.
class ControlTest : public ::testing::Test {
 protected:
  void Make(testing::SimControl::Options options) {
    world_ = options.world;
    net_ = std::make_unique<testing::SimControl>(*executor_, std::move(options));
  }
  void SaveAll(uint64_t sequence, size_t columns = 1) {
    for (uint32_t rank = 0; rank < world_; ++rank) {
      for (size_t column = 0; column < columns; ++column) net_->Commit(rank, column, sequence);
    }
  }
  bool AllTold(uint64_t sequence) {
    for (uint32_t rank = 0; rank < world_; ++rank) {
      if (!net_->at(rank).Complete(0, sequence)) return false;
    }
    return true;
  }
  uint32_t world_ = 0;
  std::unique_ptr<sync::SimExecutor> executor_ = sync::SimExecutor::Create(FirstSeed());
  std::unique_ptr<testing::SimControl> net_;
};

TEST_F(ControlTest, ASlowRankIsNamedUpAndDownTheTree) {
  Make({.world = 30, .fan_out = 2});
  net_->Start();
  RunFor(*executor_, sync::kSecond);
  for (uint32_t rank = 0; rank < 30; ++rank) {
    if (rank != 17) net_->Commit(rank, 0, 0);
  }
  RunFor(*executor_, 10 * sync::kSecond);
  for (const uint32_t rank : {0u, 17u, 29u}) {
    EXPECT_FALSE(net_->at(rank).Complete(0, 0));
    EXPECT_THAT(net_->at(rank).WaitsFor(0), HasSubstr("rank 17 of 30"));
  }
  net_->Commit(17, 0, 0);
  RunFor(*executor_, sync::kSecond);
  EXPECT_TRUE(AllTold(0));
}

TEST_F(ControlTest, ARankThatDiedKeepsWhatItSaidAndStopsTheRest) {
  Make({.world = 9, .fan_out = 2});
  net_->Start();
  RunFor(*executor_, sync::kSecond);
  SaveAll(0);
  RunFor(*executor_, sync::kSecond);
  net_->Kill(8);
  world_ = 8;
  SaveAll(1);
  RunFor(*executor_, 100 * sync::kSecond);
  EXPECT_TRUE(AllTold(0));
  EXPECT_FALSE(net_->at(0).Complete(0, 1));
  EXPECT_THAT(net_->at(5).WaitsFor(0), HasSubstr("rank 8 of 9"));
  // Without an inner rank those below say whom they miss.
  net_->Kill(1);
  RunFor(*executor_, 100 * sync::kSecond);
  EXPECT_FALSE(net_->at(3).joined());
  EXPECT_THAT(net_->at(3).WaitsFor(0), HasSubstr("no control connection to rank 1"));
}

TEST_F(ControlTest, StrangersStayOutWithinBounds) {
  Make({.world = 2});
  net_->Record(true);
  net_->Start();
  RunFor(*executor_, sync::kSecond);
  ASSERT_TRUE(net_->at(1).joined());
  SaveAll(0);
  RunFor(*executor_, sync::kSecond);
  // Garbage, silence, half a greeting, many at once, and all that rank 1 ever said to rank 0, again.
  net_->Intrude(0, "GET / HTTP/1.1\r\n\r\n");
  net_->Intrude(0, "neve.c1\n");
  const std::string recorded = net_->recorded().at({1, 0});
  net_->Intrude(0, recorded);
  net_->Intrude(0, recorded.substr(0, Session::kHelloBytes));
  RunFor(*executor_, sync::kSecond);
  for (int i = 0; i < 500; ++i) net_->Intrude(0, "");
  RunFor(*executor_, 30 * sync::kSecond);
  const Control::Counts& counts = net_->at(0).counts();
  EXPECT_GE(counts.refused, 2u);
  EXPECT_GE(counts.displaced, 400u);
  EXPECT_GE(counts.too_slow, 1u);
  EXPECT_EQ(net_->at(0).children_joined(), 1u);
  SaveAll(1);
  RunFor(*executor_, sync::kSecond);
  EXPECT_TRUE(AllTold(1));
  // A crowd that never goes away keeps nobody out that proves itself.
  net_->Kill(1);
  for (int i = 0; i < 2000; ++i) executor_->PostAfter(i * 10 * sync::kMillisecond, [this] { net_->Intrude(0, ""); });
  executor_->PostAfter(5 * sync::kSecond, [this] { net_->StartOne(1); });
  RunFor(*executor_, 15 * sync::kSecond);
  EXPECT_TRUE(net_->at(1).joined());
}

TEST_F(ControlTest, AnotherKeyOrLifeIsRefusedAndSaysSo) {
  Make({.world = 2});
  net_->StartOne(0);
  std::string heard;
  Session session = Session::Connecting({.key = "another", .context = "job 1, life 1", .self = 1}, 0, {});
  net_->Intrude(0, session.Start(), [&](std::string_view bytes) { heard += bytes; });
  RunFor(*executor_, sync::kSecond);
  std::string send;
  std::vector<std::string> frames;
  EXPECT_THAT(std::string(session.Feed(heard, &send, &frames).message()), HasSubstr("another key"));
  EXPECT_EQ(send, "");
}

TEST_F(ControlTest, ARankOfTheWrongPlaceIsNotTaken) {
  Make({.world = 30, .fan_out = 2});
  net_->StartOne(0);
  std::string heard;
  Session session = Session::Connecting({.key = "key", .context = "job 1, life 1", .self = 17}, 0, {});
  // Its answer needs two trips: the second is sent when the first was heard.
  net_->Intrude(0, session.Start(), [&](std::string_view bytes) { heard += bytes; });
  RunFor(*executor_, sync::kSecond);
  EXPECT_FALSE(heard.empty());
  EXPECT_EQ(net_->at(0).children_joined(), 0u);
}

TEST_F(ControlTest, AWatermarkThatStoodStillLongCatchesUp) {
  Make({.world = 3});
  net_->Start();
  RunFor(*executor_, sync::kSecond);
  for (uint64_t sequence = 0; sequence < 3000; ++sequence) {
    net_->Commit(0, 0, sequence);
    net_->Commit(1, 0, sequence);
  }
  RunFor(*executor_, sync::kSecond);
  EXPECT_TRUE(net_->at(0).Complete(0).empty());
  for (uint64_t sequence = 0; sequence < 3000; ++sequence) net_->Commit(2, 0, sequence);
  RunFor(*executor_, 5 * sync::kSecond);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(net_->at(rank).Complete(0).size(), 3000u) << rank;
}

// The row: control bytes that one rank sends for one save, the busiest and the mean, two tiers and "any of them".
TEST_F(ControlTest, ControlBytesOfASaveStayWithinTheirBound) {
  constexpr uint32_t kWorld = 16'384;
  constexpr uint64_t kWarm = 1;
  const uint64_t kSaves = std::getenv("NEVE_LONG") != nullptr ? 10 : 2;
  Make({.world = kWorld, .columns = 3, .delay_max = 2 * sync::kMillisecond});
  net_->Start();
  RunFor(*executor_, 2 * sync::kSecond);
  uint64_t before_total = 0, before_most = 0, sequence = 0;
  const auto save = [&] {
    // RAM at once, the file tier over the seconds that follow.
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      executor_->PostAfter(static_cast<sync::Nanos>(executor_->Random() % 1000) * sync::kMillisecond, [this, rank, sequence] {
        net_->Commit(rank, 0, sequence);
        net_->Commit(rank, 1, sequence);
      });
      executor_->PostAfter(static_cast<sync::Nanos>(1000 + executor_->Random() % 8000) * sync::kMillisecond,
                           [this, rank, sequence] { net_->Commit(rank, 2, sequence); });
    }
    RunFor(*executor_, 10 * sync::kSecond);
    ++sequence;
  };
  const auto most = [&](uint64_t* total) {
    uint64_t greatest = 0;
    *total = 0;
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      greatest = std::max(greatest, net_->at(rank).counts().sent_bytes);
      *total += net_->at(rank).counts().sent_bytes;
    }
    return greatest;
  };
  while (sequence < kWarm) save();
  before_most = most(&before_total);
  while (sequence < kWarm + kSaves) save();
  uint64_t total = 0;
  const uint64_t greatest = (most(&total) - before_most) / kSaves, mean = (total - before_total) / kSaves / kWorld;
  EXPECT_TRUE(AllTold(sequence - 1));
  std::printf("  control bytes sent per rank and save at %u ranks: mean %llu, busiest %llu\n", kWorld,
              static_cast<unsigned long long>(mean), static_cast<unsigned long long>(greatest));
  RecordProperty("mean", static_cast<int>(mean));
  RecordProperty("busiest", static_cast<int>(greatest));
  EXPECT_LE(greatest, 4096u);
}

TEST(Progress, MergesInAnyOrderAndSurvivesItsEncoding) {
  const uint64_t seed = FirstSeed();
  sync::SeededRandom random(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<Progress> all;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      std::set<uint64_t> committed, abandoned;
      for (uint64_t s = 0; s < 700; ++s) (random.Below(10) == 0 ? abandoned : committed).insert(s);
      all.emplace_back(rank, committed, abandoned, random.Below(150));
    }
    Progress forward = all[0], backward = all[3];
    for (size_t i = 1; i < 4; ++i) forward.Merge(all[i]);
    for (size_t i = 3; i-- > 0;) backward.Merge(all[i]);
    ASSERT_EQ(forward, backward) << "seed " << seed;
    forward.Merge(all[2]);
    ASSERT_EQ(forward, backward) << "seed " << seed;
    std::string text;
    forward.EncodeTo(&text);
    EXPECT_LE(text.size(), Progress::kEncodedBytesMax);
    std::string_view rest = text;
    ASSERT_EQ(Progress::DecodeFrom(&rest), forward) << "seed " << seed;
    EXPECT_TRUE(rest.empty());
    for (size_t cut = 0; cut < text.size(); ++cut) {
      std::string_view part = std::string_view(text).substr(0, cut);
      EXPECT_FALSE(Progress::DecodeFrom(&part).has_value());
    }
  }
}

TEST(Progress, GarbageIsNoProgress) {
  for (const std::string& text : {std::string(), std::string("\x80"), std::string(20, '\xff'), std::string("\0\0\0\x41", 4)}) {
    std::string_view rest = text;
    EXPECT_FALSE(Progress::DecodeFrom(&rest).has_value());
  }
  sync::SeededRandom random(5);
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random.Below(30), '\0');
    for (char& c : text) c = static_cast<char>(random.Next());
    std::string_view rest = text;
    const std::optional<Progress> progress = Progress::DecodeFrom(&rest);
    if (!progress.has_value()) continue;
    std::string again;
    progress->EncodeTo(&again);
    std::string_view encoded = again;
    EXPECT_EQ(Progress::DecodeFrom(&encoded), progress);
  }
}

}  // namespace
}  // namespace neve::group
