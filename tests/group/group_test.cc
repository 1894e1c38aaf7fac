#include "group/group.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "base/error/status.h"
#include "base/os/random.h"
#include "base/sync/socket_address.h"
#include "base/sync/sockets.h"
#include "conformance/group_conformance.h"
#include "group/static_store.h"

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

// Places on the loopback that nobody listens at, as far as can be known.
StaticList FreePlaces(uint32_t world) {
  StaticList list;
  list.loopback = true;
  std::vector<std::unique_ptr<sync::Sockets>> taken;
  const sync::Sockets::Events none{[](auto) {}, [](auto) {}, [](auto, auto) {}, [](auto, const auto&) {}, [] {}};
  for (uint32_t rank = 0; rank < world; ++rank) {
    taken.push_back(sync::Sockets::Create({.listen = "127.0.0.1:0"}, none).value());
    list.places.push_back(taken.back()->place());
  }
  return list;
}

class StaticWorld : public World {
 public:
  explicit StaticWorld(uint32_t world) : list_(FreePlaces(world)) {}
  std::unique_ptr<Group> Join(uint32_t rank) override { return Join(rank, "a key that is long enough").value(); }
  absl::StatusOr<std::unique_ptr<Group>> Join(uint32_t rank, const std::string& key) {
    NEVE_ASSIGN_OR_RETURN(auto store, StaticStore(list_, rank, key, "job"));
    return StoreGroup(std::move(store), SelfOf(rank, static_cast<uint32_t>(list_.places.size())), os::RandomHex(16));
  }
  const StaticList& list() const { return list_; }

 private:
  const StaticList list_;
};

template <typename Kind>
WorldKind KindOf(const std::string& name) {
  return {name, [](uint32_t world) -> std::unique_ptr<World> { return std::make_unique<Kind>(world); }};
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupConformance,
                         ::testing::Values(KindOf<DirWorld>("dir"), KindOf<FunctionWorld>("functions"),
                                           KindOf<CallbackWorld>("callback"), KindOf<StaticWorld>("static")),
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
  run("d", false);
  // What is left are the last rounds of the last session and of the one before, which a slow rank may still have to read.
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) folders += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(folders, 2u);
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

TEST(StaticGroupTest, TheListIsCheckedBeforeAnythingIsOpened) {
  const auto message = [](const std::string& list, uint32_t world) { return std::string(ParseStaticList(list, world).status().message()); };
  EXPECT_THAT(message("127.0.0.1:1", 2), HasSubstr("lists 1 places, and the world has 2 ranks"));
  EXPECT_THAT(message("", 2), HasSubstr("the world has 2 ranks"));
  EXPECT_THAT(message("127.0.0.1:1,127.0.0.1:2,127.0.0.1:1", 3), HasSubstr("gives rank 0 and rank 2 the same place 127.0.0.1:1"));
  EXPECT_THAT(message("127.0.0.1:1,127.0.0.1:0", 2), HasSubstr("\"127.0.0.1:0\" of group"));
  EXPECT_THAT(message("127.0.0.1:1,127.0.0.1", 2), HasSubstr("\"127.0.0.1\" is not HOST:PORT"));
  EXPECT_THAT(message("127.0.0.1:1,127.0.0.1:x", 2), HasSubstr("is not HOST:PORT"));
  EXPECT_TRUE(absl::IsUnavailable(ParseStaticList("127.0.0.1:1,no-such-host.invalid:2", 2).status()));
  EXPECT_TRUE(ParseStaticList("127.0.0.1:1,[::1]:1", 2)->loopback);
  EXPECT_FALSE(ParseStaticList("127.0.0.1:1,192.0.2.1:1", 2)->loopback);
}

TEST(StaticGroupTest, AKeyIsAskedForBeyondTheLoopback) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/key";
  StaticList list;
  ::unsetenv("NEVE_KEY");
  ::unsetenv("NEVE_KEY_FILE");
  EXPECT_THAT(std::string(StaticKey(list).status().message()), HasSubstr("set NEVE_KEY_FILE (a file of mode 600) or NEVE_KEY"));
  list.loopback = true;
  EXPECT_TRUE(StaticKey(list).ok());
  ::setenv("NEVE_KEY", "short", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(StaticKey(list).status()));
  ::setenv("NEVE_KEY", "0123456789abcdef", 1);
  EXPECT_EQ(StaticKey(list).value(), "0123456789abcdef");
  ::setenv("NEVE_KEY_FILE", path.c_str(), 1);
  EXPECT_TRUE(absl::IsNotFound(StaticKey(list).status()));
  std::ofstream(path) << "of the file 0123456789\n";
  ::chmod(path.c_str(), 0640);
  EXPECT_THAT(std::string(StaticKey(list).status().message()), HasSubstr("chmod 600"));
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(StaticKey(list).value(), "of the file 0123456789");
  ::unsetenv("NEVE_KEY");
  ::unsetenv("NEVE_KEY_FILE");
}

TEST(StaticGroupTest, ARankWithAnotherKeyIsMissedByTheOthersAndToldWhy) {
  StaticWorld world(3);
  std::vector<absl::Status> ends(3);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = world.Join(rank, rank == 2 ? "another key, long enough" : "a key that is long enough");
      ends[rank] = (*group)->Gather("open", "", 0.5).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(std::string(ends[0].message()), HasSubstr("for rank 2"));
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_THAT(std::string(ends[2].message()), HasSubstr("what listens in the place of rank 0 has another key"));
}

TEST(StaticGroupTest, TwoProcessesOfOneRankAreNamed) {
  StaticWorld world(3);
  std::vector<absl::Status> ends(4);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { ends[i] = world.Join(i == 3 ? 2 : i)->Gather("open", "", 1).status(); });   // rank 2 twice
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(!ends[2].ok() || !ends[3].ok()) << ends[2] << " " << ends[3];
}

TEST(StaticGroupTest, APortThatIsTakenIsNamed) {
  StaticWorld world(2);
  const auto first = world.Join(0);
  const absl::Status status = world.Join(0, "a key that is long enough").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(world.list().places[0]), HasSubstr("another process has that port")));
}

TEST(StaticGroupTest, GarbageSilenceAndManyConnectionsOnThePortHarmNothing) {
  StaticWorld world(2);
  const auto first = world.Join(0);
  const auto address = sync::SocketAddress::Parse(world.list().places[0]);
  std::vector<int> open;
  for (int i = 0; i < 200; ++i) {
    open.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(open.back(), address->get(), address->size()), 0);
    if (i % 2 == 0) {
      ASSERT_GT(::send(open.back(), "S7:garbage,", 11, MSG_NOSIGNAL), 0);
    }
  }
  absl::Status ends[2];
  std::thread other([&] { ends[1] = world.Join(1)->Gather("open", "x", 60).status(); });
  ends[0] = first->Gather("open", "x", 60).status();
  other.join();
  EXPECT_EQ(ends[0], absl::OkStatus());
  EXPECT_EQ(ends[1], absl::OkStatus());
  for (const int fd : open) ::close(fd);
}

TEST(StaticGroupTest, ALargeMessageGoesThrough) {
  StaticWorld world(2);
  const std::string large(5'000'000, 'z');
  absl::StatusOr<Messages> results[2] = {absl::UnknownError(""), absl::UnknownError("")};
  std::thread other([&] { results[1] = world.Join(1)->Gather("open", large, 60); });
  results[0] = world.Join(0)->Gather("open", "small", 60);
  other.join();
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ((*result)[1], large);
  }
}

}  // namespace
}  // namespace neve::group
