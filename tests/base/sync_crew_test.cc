#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sync/crew.h"
#include "base/sync/usable_cores.h"
#include "tests/base/forked_child.h"
#include "tests/support/counting_new.h"

namespace neve::sync {
namespace {

TEST(Crew, EachPartRunsOnce) {
  const auto crew = Crew::Create(3);
  EXPECT_EQ(crew->threads(), 4);
  for (const uint64_t parts : {0, 1, 2, 3, 4, 5, 1000}) {
    std::vector<std::atomic<int>> runs(parts);
    auto part = [&](uint64_t index, int) { runs[index].fetch_add(1); };
    crew->Run(parts, part);
    for (const auto& count : runs) ASSERT_EQ(count.load(), 1) << parts;
  }
}

TEST(Crew, WithoutHelpersTheCallerDoesAll) {
  const auto crew = Crew::Create(0);
  EXPECT_EQ(crew->threads(), 1);
  std::vector<uint64_t> order;
  auto part = [&](uint64_t index, int worker) {
    EXPECT_EQ(worker, 0);
    order.push_back(index);
  };
  crew->Run(5, part);
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(Crew, WorkIsSharedByAllWhenNoneCanFinishAlone) {
  constexpr int kThreads = 4;
  const auto crew = Crew::Create(kThreads - 1);
  // Each part waits until as many parts as there are threads have begun: it ends only if each thread took one.
  std::atomic<int> begun{0};
  std::atomic<uint32_t> workers{0};
  auto part = [&](uint64_t, int worker) {
    workers.fetch_or(1u << worker);
    begun.fetch_add(1);
    while (begun.load() < kThreads) std::this_thread::yield();
  };
  crew->Run(kThreads, part);
  EXPECT_EQ(workers.load(), (1u << kThreads) - 1);
}

TEST(Crew, OnePartIsRunByItsCaller) {
  const auto crew = Crew::Create(2);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) {
    auto part = [&](uint64_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), caller);
    };
    crew->Run(1, part);
  }
}

TEST(Crew, ReturnsOnlyWhenNobodyIsInside) {
  const auto crew = Crew::Create(3);
  for (int round = 0; round < 2000; ++round) {
    // Lives on this stack frame: a helper that came back late would write into a dead one, which sanitizers report.
    std::vector<uint64_t> sums(static_cast<size_t>(crew->threads()) * 8, 0);
    auto part = [&](uint64_t index, int worker) { sums[static_cast<size_t>(worker) * 8] += index; };
    crew->Run(16, part);
    uint64_t sum = 0;
    for (const uint64_t one : sums) sum += one;
    ASSERT_EQ(sum, 120u);
  }
}

TEST(Crew, CallersTakeTurns) {
  const auto crew = Crew::Create(2);
  std::atomic<int> inside{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 200; ++round) {
        auto part = [&](uint64_t, int) {
          // Only parts of one caller are ever under way: the high digits would mix otherwise.
          const int before = inside.fetch_add(1 << (8 * caller));
          EXPECT_EQ(before & ~(0xFF << (8 * caller)), 0);
          inside.fetch_sub(1 << (8 * caller));
        };
        crew->Run(8, part);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(Crew, RunAllocatesNothing) {
  const auto crew = Crew::Create(2);
  std::atomic<uint64_t> sum{0};
  auto part = [&](uint64_t index, int) { sum.fetch_add(index, std::memory_order_relaxed); };
  crew->Run(100, part);  // the helpers have started and named themselves only after a first run with each of them
  std::atomic<int> begun{0};
  auto all = [&](uint64_t, int) {
    begun.fetch_add(1);
    while (begun.load() < 3) std::this_thread::yield();
  };
  crew->Run(3, all);
  const uint64_t before = testing::allocations_of_all_threads.load();
  for (int i = 0; i < 100; ++i) crew->Run(100, part);
  EXPECT_EQ(testing::allocations_of_all_threads.load(), before);
}

TEST(Crew, HelpersBlockSignalsAndHaveNames) {
  const auto crew = Crew::Create(1, /*background=*/true);
  std::atomic<int> begun{0};
  std::atomic<bool> blocked{false};
  std::string name;
  auto part = [&](uint64_t, int worker) {
    if (worker == 1) {
      sigset_t mask;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      blocked = ::sigismember(&mask, SIGTERM) == 1 && ::sigismember(&mask, SIGURG) == 1;
      char text[16];
      ::pthread_getname_np(::pthread_self(), text, sizeof(text));
      name = text;
    }
    begun.fetch_add(1);
    while (begun.load() < 2) std::this_thread::yield();
  };
  crew->Run(2, part);
  EXPECT_TRUE(blocked);
  EXPECT_EQ(name, "neve-crew-1");
}

TEST(Crew, ASY_07_ForkedChildWorksAloneAndEnds) {
  auto crew = Crew::Create(3);
  auto nothing = [](uint64_t, int) {};
  crew->Run(8, nothing);
  EXPECT_TRUE(EndsWellInAChild([&] {
    uint64_t sum = 0;
    bool alone = true;
    auto part = [&](uint64_t index, int worker) {
      sum += index;
      alone = alone && worker == 0;
    };
    crew->Run(100, part);
    crew->Run(100, part);
    crew.reset();  // joins nobody
    return alone && sum == 2 * 4950;
  }));
  std::atomic<int> runs{0};
  auto part = [&](uint64_t, int) { runs.fetch_add(1); };
  crew->Run(100, part);
  EXPECT_EQ(runs.load(), 100);  // the parent's crew is untouched
}

TEST(Crew, ASY_07_ForkInTheMiddleOfARunDoesNotHangTheChild) {
  auto crew = Crew::Create(2);
  std::atomic<bool> running{false}, done{false};
  std::thread other([&] {
    auto part = [&](uint64_t, int) {
      running = true;
      while (!done) std::this_thread::yield();
    };
    crew->Run(3, part);
  });
  while (!running) std::this_thread::yield();
  // The child inherits a lock that is held and a gate that is open.
  EXPECT_TRUE(EndsWellInAChild([&] {
    uint64_t runs = 0;
    auto part = [&](uint64_t, int) { ++runs; };
    crew->Run(10, part);
    crew.reset();
    return runs == 10;
  }));
  done = true;
  other.join();
}

TEST(Crew, ForkedChildCanMakeItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts threads";
#endif
  const auto by_both = [](Crew& crew) {
    std::atomic<int> begun{0};
    auto part = [&](uint64_t, int) {
      begun.fetch_add(1);
      while (begun.load() < 2) std::this_thread::yield();
    };
    crew.Run(2, part);
  };
  const auto parents = Crew::Create(1);
  by_both(*parents);   // its thread is past its start: the allocator of a sanitizer does not survive a fork in the middle of that
  EXPECT_TRUE(EndsWellInAChild([&] {
    const auto crew = Crew::Create(1);
    by_both(*crew);
    return true;
  }));
}

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    std::string pattern = ::testing::TempDir() + "/neve-cgroup-XXXXXX";
    mount_ = ::mkdtemp(pattern.data());
  }
  ~CgroupTest() override { std::filesystem::remove_all(mount_); }
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(mount_ + "/" + path).parent_path());
    std::ofstream(mount_ + "/" + path) << text;
  }
  std::string mount_;
};

TEST_F(CgroupTest, Version2QuotaIsRoundedUp) {
  Put("job/cpu.max", "150000 100000\n");
  EXPECT_EQ(CgroupCores("0::/job\n", mount_), 2);
}

TEST_F(CgroupTest, GroupAboveLimitsToo) {
  Put("a/cpu.max", "200000 100000\n");
  Put("a/b/cpu.max", "max 100000\n");
  Put("a/b/c/cpu.max", "800000 100000\n");
  EXPECT_EQ(CgroupCores("0::/a/b/c\n", mount_), 2);
}

TEST_F(CgroupTest, ContainerSeesItsGroupAtTheRoot) {
  Put("cpu.max", "300000 100000\n");
  EXPECT_EQ(CgroupCores("0::/\n", mount_), 3);
  EXPECT_EQ(CgroupCores("0::/docker/0123\n", mount_), 3);
}

TEST_F(CgroupTest, Version1QuotaCounts) {
  Put("cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  Put("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCores("5:memory:/x\n4:cpu,cpuacct:/job\n", mount_), 4);
}

TEST_F(CgroupTest, Version1WithoutQuotaIsNoLimit) {
  Put("cpu/job/cpu.cfs_quota_us", "-1\n");
  Put("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCores("4:cpu:/job\n", mount_), 0);
}

TEST_F(CgroupTest, BothVersionsGiveTheLesser) {
  Put("cpu/job/cpu.cfs_quota_us", "400000\n");
  Put("cpu/job/cpu.cfs_period_us", "100000\n");
  Put("job/cpu.max", "100000 100000\n");
  EXPECT_EQ(CgroupCores("4:cpu:/job\n0::/job\n", mount_), 1);
}

TEST_F(CgroupTest, NonsenseIsNoLimit) {
  EXPECT_EQ(CgroupCores("", mount_), 0);
  EXPECT_EQ(CgroupCores("garbage\n:\n0:\n0::", mount_), 0);
  Put("job/cpu.max", "words\n");
  Put("zero/cpu.max", "0 0\n");
  Put("short/cpu.max", "100000");
  EXPECT_EQ(CgroupCores("0::/job\n", mount_), 0);
  EXPECT_EQ(CgroupCores("0::/zero\n", mount_), 0);
  EXPECT_EQ(CgroupCores("0::/short\n", mount_), 0);
  EXPECT_EQ(CgroupCores("0::/none\n", mount_), 0);
}

TEST(UsableCores, AreWithinWhatTheMachineHas) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(UsableCores, ObeyTheAffinityOfTheThread) {
  int cores = 0;
  std::thread([&] {
    cpu_set_t allowed, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    cores = UsableCores();
  }).join();
  EXPECT_EQ(cores, 1);
}

}  // namespace
}  // namespace neve::sync
