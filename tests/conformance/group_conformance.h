// What every group does, whatever carries its messages. A suite's parameter makes the groups of one world.
#ifndef NEVE_TESTS_CONFORMANCE_GROUP_CONFORMANCE_H_
#define NEVE_TESTS_CONFORMANCE_GROUP_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "group/group.h"

namespace neve::group {

// One world of ranks, each to be used by a thread of its own.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Group> Join(uint32_t rank) = 0;
  virtual bool keeps_deadlines() const { return true; }   // false: that is the affair of what carries it
};
struct WorldKind {
  std::string name;
  std::function<std::unique_ptr<World>(uint32_t world)> make;
};

class GroupConformance : public ::testing::TestWithParam<WorldKind> {
 protected:
  using Result = absl::StatusOr<Messages>;
  // Runs `body` for each of the ranks at once.
  static void OnEach(const std::vector<uint32_t>& ranks, const std::function<void(uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_P(GroupConformance, EveryRankGetsEveryMessageByRank) {
  const auto world = GetParam().make(4);
  std::vector<Result> results(4, absl::UnknownError(""));
  OnEach({0, 1, 2, 3}, [&](uint32_t rank) { results[rank] = world->Join(rank)->Gather("open", "m" + std::to_string(rank), 60); });
  for (const Result& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(*result, ::testing::ElementsAre("m0", "m1", "m2", "m3"));
  }
}

TEST_P(GroupConformance, MessagesAreAnyBytes) {
  const auto world = GetParam().make(2);
  const std::string odd("\0:,\xff\n7:x,", 9);
  std::vector<Result> results(2, absl::UnknownError(""));
  OnEach({0, 1}, [&](uint32_t rank) { results[rank] = world->Join(rank)->Gather("open", rank == 0 ? odd : std::string(), 60); });
  for (const Result& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(*result, ::testing::ElementsAre(odd, ""));
  }
}

TEST_P(GroupConformance, ManyRoundsDoNotMix) {
  constexpr int kRounds = 20;
  const auto world = GetParam().make(3);
  OnEach({0, 1, 2}, [&](uint32_t rank) {
    const std::unique_ptr<Group> group = world->Join(rank);
    for (int round = 0; round < kRounds; ++round) {
      const Result result = group->Gather("round", absl::StrFormat("%d of %d", round, rank), 60);
      ASSERT_TRUE(result.ok()) << result.status();
      for (int other = 0; other < 3; ++other) ASSERT_EQ((*result)[other], absl::StrFormat("%d of %d", round, other));
    }
  });
}

TEST_P(GroupConformance, RanksThatDoDifferentThingsAreToldSo) {
  const auto world = GetParam().make(3);
  std::vector<Result> results(3, Messages{});
  OnEach({0, 1, 2}, [&](uint32_t rank) { results[rank] = world->Join(rank)->Gather(rank == 2 ? "restore" : "open", "", 60); });
  for (const Result& result : results) {
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    EXPECT_THAT(std::string(result.status().message()), ::testing::AllOf(::testing::HasSubstr("restore"), ::testing::HasSubstr("open")));
  }
}

TEST_P(GroupConformance, AfterAFailedRoundTheNextOneWorks) {
  const auto world = GetParam().make(2);
  OnEach({0, 1}, [&](uint32_t rank) {
    const std::unique_ptr<Group> group = world->Join(rank);
    EXPECT_FALSE(group->Gather(rank == 0 ? "a" : "b", "", 60).ok());
    const Result result = group->Gather("again", std::to_string(rank), 60);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(*result, ::testing::ElementsAre("0", "1"));
  });
}

TEST_P(GroupConformance, DCP_08_ADeadlineNamesWhoDidNotCome) {
  const auto world = GetParam().make(4);
  if (!world->keeps_deadlines()) return;
  std::vector<Result> results(4, Messages{});
  OnEach({0, 1, 3}, [&](uint32_t rank) { results[rank] = world->Join(rank)->Gather("open", "", 0.2); });
  for (uint32_t rank : {0u, 1u, 3u}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(results[rank].status())) << results[rank].status();
    EXPECT_THAT(std::string(results[rank].status().message()), ::testing::HasSubstr("rank 2"));
  }
}

TEST_P(GroupConformance, WithoutTheFirstRankTheOthersSaySo) {
  const auto world = GetParam().make(2);
  if (!world->keeps_deadlines()) return;
  const Result result = world->Join(1)->Gather("open", "", 0.05);
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), ::testing::AllOf(::testing::HasSubstr("rank 0"), ::testing::HasSubstr("\"open\"")));
}

TEST_P(GroupConformance, WhoLeavesIsNamedAtOnce) {
  for (const uint32_t leaving : {0u, 2u}) {
    const auto world = GetParam().make(3);
    if (!world->keeps_deadlines()) return;
    OnEach({0, 1, 2}, [&](uint32_t rank) {
      const std::unique_ptr<Group> group = world->Join(rank);
      ASSERT_TRUE(group->Gather("open", "", 60).ok());
      if (rank == leaving) return group->Leave("restore", "interrupted");
      const Result result = group->Gather("restore", "", 600);
      EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
      EXPECT_THAT(std::string(result.status().message()),
                  ::testing::AllOf(::testing::HasSubstr("rank " + std::to_string(leaving)), ::testing::HasSubstr("interrupted")));
    });
  }
}

}  // namespace neve::group

#endif  // NEVE_TESTS_CONFORMANCE_GROUP_CONFORMANCE_H_
