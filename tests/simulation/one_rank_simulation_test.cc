// Kill and restart, many times over: whatever happens, the newest save that must be there is there, with its own bytes.
//
// A failing history prints its seed; `SEED=<seed> simulation_test` runs it alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/obs/log.h"
#include "simulation/one_rank_history.h"

namespace neve::simulation {
namespace {

TEST(OneRankSimulation, NoHistoryLosesOrInventsASave) {
  obs::SetLevel(obs::Level::kOff);
  Tally tally;
  if (const char* seed = std::getenv("SEED"); seed != nullptr) {
    EXPECT_EQ(OneRankHistory(std::strtoull(seed, nullptr, 10), &tally).Run(), "");
    return;
  }
  const uint64_t histories = std::getenv("NEVE_LONG") != nullptr ? 100'000 : 1'000;
  const uint64_t first = (uint64_t{std::random_device{}()} << 20) + 1;
  std::printf("%llu histories from seed %llu on\n", static_cast<unsigned long long>(histories),
              static_cast<unsigned long long>(first));
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    const std::string failure = OneRankHistory(seed, &tally).Run();
    ASSERT_EQ(failure, "") << "replay this history alone with SEED=" << seed;
  }
  for (const char* what : {"saves captured", "saves retired", "saves lapsed", "saves failed", "saves replaced",
                           "saves skipped", "adopted saves flushed", "commits", "retries", "degraded answers", "kills",
                           "losses of power", "deaths while filling", "deaths before the digests",
                           "files torn by power loss", "names lost by power loss", "restores"}) {
    EXPECT_GT(tally.counts[what], 0u) << what;
  }
  for (const auto& [what, count] : tally.counts) {
    std::printf("  %-28s %llu\n", what.c_str(), static_cast<unsigned long long>(count));
    EXPECT_GT(count, 0u) << what;
  }
}

TEST(OneRankSimulation, TheSameSeedIsTheSameHistory) {
  obs::SetLevel(obs::Level::kOff);
  Tally first, second;
  EXPECT_EQ(OneRankHistory(7, &first).Run(), OneRankHistory(7, &second).Run());
  EXPECT_EQ(first.counts, second.counts);
}

}  // namespace
}  // namespace neve::simulation
