// Ranks on hosts with disks of their own, many times over: keep= retires by what is told, and after any kill all ranks still find
// the newest save that was durable on all of them.
//
// A failing history prints its seed; `SEED=<seed> simulation_test --gtest_filter='ManyHosts*'` runs it alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/obs/log.h"
#include "simulation/many_hosts_history.h"

namespace neve::simulation {
namespace {

TEST(ManyHostsSimulation, ACommonSaveIsLeftAndOnlyWhatIsKept) {
  obs::SetLevel(obs::Level::kOff);
  Tally tally;
  if (const char* seed = std::getenv("SEED"); seed != nullptr) {
    EXPECT_EQ(ManyHostsHistory(std::strtoull(seed, nullptr, 10), &tally).Run(), "");
    return;
  }
  const uint64_t histories = std::getenv("NEVE_LONG") != nullptr ? 20'000 : 200;
  const uint64_t first = (uint64_t{std::random_device{}()} << 20) + 1;
  std::printf("%llu histories from seed %llu on\n", static_cast<unsigned long long>(histories), static_cast<unsigned long long>(first));
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    const std::string failure = ManyHostsHistory(seed, &tally).Run();
    ASSERT_EQ(failure, "") << "replay this history alone with SEED=" << seed;
  }
  for (const char* what : {"saves", "saves failed", "saves skipped", "saves retired", "told", "partitions", "kills of one rank",
                           "kills of all", "losses of power", "restores"}) {
    EXPECT_GT(tally.counts[what], 0u) << what;
  }
  for (const auto& [what, count] : tally.counts) std::printf("  %-28s %llu\n", what.c_str(), static_cast<unsigned long long>(count));
}

}  // namespace
}  // namespace neve::simulation
