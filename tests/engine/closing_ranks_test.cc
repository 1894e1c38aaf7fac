// Ranks that close: what they write, whom they wait for, what they leave in RAM.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "engine/closing_wait.h"
#include "engine/many_ranks_fixture.h"

namespace neve {
namespace {

TEST_F(ManyRanksTest, CloseLeavesInRamWhatIsNotWholeAndFreesTheRest) {
  tiers_ = {"ram:", "file:" + folder_ + "?every=100"};
  OpenWorld(2);
  ExpectOpen();
  for (uint64_t step = 1; step <= 3; ++step) SaveOnAll(step);
  OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 60), absl::OkStatus()); });
  size_t slots = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ram_)) slots += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(slots, 0u);
  OpenWorld(2);
  ExpectOpen();
  ExpectRestored(3);
  // Rank 1 is a step behind when it ends: what both have is written by both.
  SaveOnAll(4);
  SaveOn(0, 5);
  OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 5), absl::OkStatus()); });
  std::filesystem::remove_all(ram_);
  OpenWorld(2);
  ExpectOpen();
  ExpectRestored(4);
}

// The rank that is done first sees nothing of the others: they have not begun.
TEST_F(ManyRanksTest, TheFirstToCloseWaitsForRanksThatHaveNotBegunToWrite) {
  tiers_ = {"ram:", "file:" + folder_ + "?every=100"};
  OpenWorld(2);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  SaveOnAll(1);
  std::thread first([&] { EXPECT_EQ(ranks_[0].engine->Close(true, 60), absl::OkStatus()); });
  while (StepsWithRank(0).empty()) std::this_thread::yield();   // it has written its own, and looks for rank 1's
  EXPECT_EQ(ranks_[1].engine->Close(true, 60), absl::OkStatus());
  first.join();
  size_t slots = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ram_)) slots += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(slots, 0u);
}

// Rank 1 is another process, and it is killed with its part in RAM only.
TEST_F(ManyRanksTest, ADeadRankIsNotWaitedForAtClose) {
  tiers_ = {"ram:", "file:" + folder_ + "?every=100"};
  ranks_.clear();
  ranks_.resize(2);
  const pid_t child = ::fork();
  if (child == 0) {
    auto engine = Engine::Open(OptionsOf(1, 2));
    if (!engine.ok()) ::_exit(1);
    ranks_[1].engine = *std::move(engine);
    SaveOn(1, 1);
    ::_exit(0);   // without a close: as a kill leaves it
  }
  auto engine = Engine::Open(OptionsOf(0, 2));
  ASSERT_TRUE(engine.ok()) << engine.status();
  ranks_[0].engine = *std::move(engine);
  SaveOn(0, 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ranks_[0].engine->Close(true, 600), absl::OkStatus());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::duration<double>(engine::kAlivePatience_s));
  size_t slots = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ram_)) slots += entry.is_regular_file() ? 1 : 0;
  EXPECT_GE(slots, 2u);   // one of each rank at least: worth nothing without the other
}

}  // namespace
}  // namespace neve
