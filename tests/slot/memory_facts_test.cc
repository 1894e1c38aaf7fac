#include "slot/memory_facts.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "slot/slot_fixture.h"

namespace neve::slot {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kGiB = 1u << 30;

TEST(BudgetTest, TheFreeSpaceOfTheFolderBinds) {
  std::string reason;
  EXPECT_EQ(Budget({10 * kGiB, 100 * kGiB, 0, 0}, 0, &reason), 10 * kGiB);
  EXPECT_THAT(reason, HasSubstr("NEVE_RAM_DIR"));
  EXPECT_THAT(reason, HasSubstr("10.00 GiB"));
}

TEST(BudgetTest, AvailableMemoryBindsAtFourFifths) {
  std::string reason;
  EXPECT_EQ(Budget({100 * kGiB, 10 * kGiB, 0, 0}, 0, &reason), 8 * kGiB);
  EXPECT_THAT(reason, HasSubstr("MemAvailable"));
}

TEST(BudgetTest, TheControlGroupBindsAtFourFifthsOfWhatIsLeft) {
  std::string reason;
  EXPECT_EQ(Budget({100 * kGiB, 100 * kGiB, 30 * kGiB, 20 * kGiB}, 0, &reason), 8 * kGiB);
  EXPECT_THAT(reason, HasSubstr("control group"));
  EXPECT_THAT(reason, HasSubstr("30.00 GiB"));
}

TEST(BudgetTest, AFullControlGroupLeavesNothing) {
  EXPECT_EQ(Budget({kGiB, kGiB, 2 * kGiB, 3 * kGiB}, 0, nullptr), 0u);
}

TEST(BudgetTest, WhatIsConfiguredOverridesAll) {
  std::string reason;
  EXPECT_EQ(Budget({kGiB, kGiB, kGiB, kGiB}, 5 * kGiB, &reason), 5 * kGiB);
  EXPECT_THAT(reason, HasSubstr("ram:?bytes="));
}

TEST(MemoryTextTest, MemAvailableIsInKibibytes) {
  EXPECT_EQ(ParseMemAvailable("MemTotal: 100 kB\nMemAvailable:   123 kB\nBuffers: 7 kB\n"), 123u << 10);
  EXPECT_EQ(ParseMemAvailable("MemAvailable: 5 kB"), 5u << 10);
  for (const char* text : {"", "MemTotal: 100 kB\n", "MemAvailable:\n", "MemAvailable: x kB\n", "MemAvailable: 5 MB\n",
                           "MemAvailable: 18446744073709551615 kB\n", "XMemAvailable: 5 kB\n"}) {
    EXPECT_EQ(ParseMemAvailable(text), std::nullopt) << text;
  }
}

TEST(MemoryTextTest, NoLimitIsZero) {
  EXPECT_EQ(ParseCgroupLimit("max\n"), 0u);
  EXPECT_EQ(ParseCgroupLimit("9223372036854771712\n"), 0u);
  EXPECT_EQ(ParseCgroupLimit("536870912\n"), 536870912u);
  for (const char* text : {"", "\n", "x\n", "12x\n", "-1\n", "99999999999999999999999\n"}) {
    EXPECT_EQ(ParseCgroupLimit(text), std::nullopt) << text;
  }
}

TEST(MemoryTextTest, StatKeysMatchWhole) {
  constexpr std::string_view kStat = "cache 5\ntotal_inactive_file 7\ninactive_file 9\ninactive_file_x 11\n";
  EXPECT_EQ(ParseCgroupStat(kStat, "inactive_file"), 9u);
  EXPECT_EQ(ParseCgroupStat(kStat, "total_inactive_file"), 7u);
  EXPECT_EQ(ParseCgroupStat(kStat, "none"), std::nullopt);
  EXPECT_EQ(ParseCgroupStat("inactive_file\n", "inactive_file"), std::nullopt);
}

TEST(MemoryTextTest, PathsOfBothVersions) {
  const CgroupPaths hybrid = ParseCgroupPaths("9:name=systemd:/s\n4:cpu,memory:/a/b\n1:cpuset:/c\n0::/u\n");
  EXPECT_EQ(hybrid.v1_memory, "/a/b");
  EXPECT_EQ(hybrid.v2, "/u");
  const CgroupPaths unified = ParseCgroupPaths("0::/user.slice/x:y\n");
  EXPECT_EQ(unified.v1_memory, std::nullopt);
  EXPECT_EQ(unified.v2, "/user.slice/x:y");
  const CgroupPaths none = ParseCgroupPaths("garbage\n:\n::\n4:memory\n4:memory:\n4:memory:relative\n4:memoryx:/a");
  EXPECT_EQ(none.v1_memory, std::nullopt);
  EXPECT_EQ(none.v2, std::nullopt);
}

class MemoryFactsTest : public SlotFixture {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  CgroupMemory Read() const { return ReadCgroupMemory(root_ + "/proc", root_ + "/cg"); }
};

TEST_F(MemoryFactsTest, Version1CountsWhatCannotBeDropped) {
  Write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  Write("/cg/memory/job/memory.limit_in_bytes", "1000\n");
  Write("/cg/memory/job/memory.usage_in_bytes", "700\n");
  Write("/cg/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
  EXPECT_EQ(Read().limit, 1000u);
  EXPECT_EQ(Read().usage, 400u);
}

TEST_F(MemoryFactsTest, Version2CountsWhatCannotBeDropped) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/cg/job/memory.max", "1000\n");
  Write("/cg/job/memory.current", "700\n");
  Write("/cg/job/memory.stat", "anon 5\ninactive_file 900\n");
  EXPECT_EQ(Read().limit, 1000u);
  EXPECT_EQ(Read().usage, 0u);   // never below nothing
}

TEST_F(MemoryFactsTest, TheGroupWithTheLeastRoomBinds) {
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  Write("/cg/a/b/c/memory.max", "max\n");
  Write("/cg/a/b/c/memory.current", "10\n");
  Write("/cg/a/b/memory.max", "5000\n");
  Write("/cg/a/b/memory.current", "10\n");
  Write("/cg/a/memory.max", "6000\n");
  Write("/cg/a/memory.current", "5500\n");
  EXPECT_EQ(Read().limit, 6000u);
  EXPECT_EQ(Read().usage, 5500u);
}

TEST_F(MemoryFactsTest, InAContainerTheMountsRootCounts) {
  Write("/proc/self/cgroup", "4:memory:/only/the/host/sees/this\n");
  Write("/cg/memory/memory.limit_in_bytes", "1000\n");
  Write("/cg/memory/memory.usage_in_bytes", "10\n");
  EXPECT_EQ(Read().limit, 1000u);
}

TEST_F(MemoryFactsTest, WithoutControlGroupsThereIsNoLimit) {
  EXPECT_EQ(Read().limit, 0u);
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(Read().limit, 0u);
}

TEST_F(MemoryFactsTest, ReadsTheHostsOwn) {
  const absl::StatusOr<MemoryFacts> facts = ReadMemoryFacts(root_ + "/not/there/yet");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_GT(facts->ram_folder_free, 0u);
  EXPECT_GT(facts->available, 0u);
  EXPECT_GT(Budget(*facts, 0, nullptr), 0u);
}

TEST_F(MemoryFactsTest, AFolderBelowAFileIsUnavailable) {
  Write("/file", "");
  EXPECT_TRUE(absl::IsUnavailable(ReadMemoryFacts(root_ + "/file/ram").status()));
}

TEST_F(MemoryFactsTest, AHostWithoutTheNumberIsUnavailable) {
  Write("/proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_TRUE(absl::IsUnavailable(ReadMemoryFactsFrom(root_, root_ + "/proc", root_ + "/cg").status()));
  EXPECT_TRUE(absl::IsNotFound(ReadMemoryFactsFrom(root_, root_ + "/none", root_ + "/cg").status()));
}

}  // namespace
}  // namespace neve::slot
