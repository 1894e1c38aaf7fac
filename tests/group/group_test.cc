#include "group/group.h"

#include <stdlib.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "base/os/random.h"
#include "conformance/group_conformance.h"

namespace neve::group {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Self SelfOf(uint32_t rank, uint32_t world) {
  return {rank, world, "host h, process " + std::to_string(100 + rank), os::RandomHex(16)};
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = ::testing::TempDir() + "/neve-group-XXXXXX";
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class DirWorld : public World {
 public:
  explicit DirWorld(uint32_t world) : world_(world) {}
  std::unique_ptr<Group> Join(uint32_t rank) override {
    return StoreGroup(DirStore(folder_.path() + "/deep/group").value(), SelfOf(rank, world_), os::RandomHex(16));
  }

 private:
  const uint32_t world_;
  const TemporaryFolder folder_;
};

class FunctionWorld : public World {
 public:
  explicit FunctionWorld(uint32_t world) : world_(world) {}
  std::unique_ptr<Group> Join(uint32_t rank) override {
    StoreFunctions functions;
    functions.set = [this](const std::string& name, std::string_view value) {
      const std::lock_guard lock(mutex_);
      values_[name] = std::string(value);
      return absl::OkStatus();
    };
    functions.get = [this](const std::string& name) -> absl::StatusOr<std::optional<std::string>> {
      const std::lock_guard lock(mutex_);
      const auto found = values_.find(name);
      return found == values_.end() ? std::nullopt : std::optional(found->second);
    };
    return StoreGroup(FunctionStore(functions, "the launcher's store"), SelfOf(rank, world_), os::RandomHex(16));
  }

 private:
  const uint32_t world_;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

class CallbackWorld : public World {
 public:
  explicit CallbackWorld(uint32_t world) : world_(world), barrier_(world), messages_(world) {}
  bool keeps_deadlines() const override { return false; }
  std::unique_ptr<Group> Join(uint32_t rank) override {
    return CallbackGroup(
        [this, rank](std::string_view mine, double) -> absl::StatusOr<Messages> {
          messages_[rank] = std::string(mine);
          barrier_.arrive_and_wait();
          Messages all = messages_;
          barrier_.arrive_and_wait();
          return all;
        },
        SelfOf(rank, world_));
  }

 private:
  const uint32_t world_;
  std::barrier<> barrier_;
  Messages messages_;
};

template <typename Kind>
WorldKind KindOf(const std::string& name) {
  return {name, [](uint32_t world) -> std::unique_ptr<World> { return std::make_unique<Kind>(world); }};
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupConformance,
                         ::testing::Values(KindOf<DirWorld>("dir"), KindOf<FunctionWorld>("functions"),
                                           KindOf<CallbackWorld>("callback")),
                         [](const auto& info) { return info.param.name; });

TEST(SoloGroupTest, GetsItsOwnMessage) { EXPECT_THAT(SoloGroup()->Gather("open", "x", 0).value(), ElementsAre("x")); }

TEST(CallbackGroupTest, AnswersThatDoNotFitAreRefused) {
  const auto gather = [](AllGather all) { return CallbackGroup(std::move(all), SelfOf(0, 2))->Gather("open", "x", 1).status(); };
  EXPECT_THAT(std::string(gather([](std::string_view, double) { return Messages{"a"}; }).message()), HasSubstr("gave 1 messages"));
  EXPECT_THAT(std::string(gather([](std::string_view mine, double) { return Messages{std::string(mine), "junk"}; }).message()),
              HasSubstr("for rank 1 that no rank sent"));
  EXPECT_THAT(std::string(gather([](std::string_view mine, double) { return Messages{std::string(mine), std::string(mine)}; }).message()),
              HasSubstr("message of rank 0 of 2 in the place of rank 1"));
  EXPECT_EQ(gather([](std::string_view, double) { return Unavailable("no network"); }), Unavailable("no network"));
}

TEST(DirGroupTest, FilesOfAnEarlierLifeAreNeverTakenForThisOne) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& life, bool late_first) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        if (late_first && rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const auto group = StoreGroup(DirStore(folder.path()).value(), SelfOf(rank, 3), os::RandomHex(16));
        for (int round = 0; round < 3; ++round) {
          const auto result = group->Gather("open", life + std::to_string(rank), 60);
          ASSERT_TRUE(result.ok()) << result.status();
          EXPECT_THAT(*result, ElementsAre(life + "0", life + "1", life + "2"));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  run("a", false);
  run("b", true);   // the others find the first life's answers, and wait for their own
  run("c", true);
  // What is left is the last session's last round.
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) folders += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(folders, 1u);
}

TEST(DirGroupTest, TwoProcessesOfOneRankAreNamed) {
  const TemporaryFolder folder;
  std::vector<absl::Status> ends(4);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const uint32_t rank = i == 3 ? 2 : i;   // rank 2 twice
      ends[i] = StoreGroup(DirStore(folder.path()).value(), SelfOf(rank, 3), os::RandomHex(16))->Gather("open", "", 0.5).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // One of the two was taken in, the other is told.
  EXPECT_TRUE(ends[2].ok() != ends[3].ok() || (!ends[2].ok() && !ends[3].ok())) << ends[2] << " " << ends[3];
}

TEST(DirGroupTest, AWorldOfAnotherSizeIsRefused) {
  const TemporaryFolder folder;
  std::vector<absl::Status> ends(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ends[rank] = StoreGroup(DirStore(folder.path()).value(), SelfOf(rank, rank == 0 ? 2 : 3), os::RandomHex(16))
                       ->Gather("open", "", 10)
                       .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& end : ends) {
    EXPECT_TRUE(absl::IsInvalidArgument(end)) << end;
    EXPECT_THAT(std::string(end.message()), AllOf(HasSubstr("world of 2"), HasSubstr("one of 3")));
  }
}

TEST(DirGroupTest, GarbageInTheFolderIsPassedOver) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/session") << "not a session of ours";
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto result = StoreGroup(DirStore(folder.path()).value(), SelfOf(rank, 2), os::RandomHex(16))->Gather("open", "x", 60);
      EXPECT_TRUE(result.ok()) << result.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DirGroupTest, AFolderThatCannotBeMadeIsNamed) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  const auto group = StoreGroup(DirStore(folder.path() + "/file/group").value(), SelfOf(0, 2), os::RandomHex(16));
  const absl::Status status = group->Gather("open", "", 0.05).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path() + "/file"));
  EXPECT_TRUE(absl::IsInvalidArgument(DirStore("").status()));
}

}  // namespace
}  // namespace neve::group
