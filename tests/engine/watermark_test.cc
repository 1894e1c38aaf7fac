// What ranks tell each other by control connections, with a disk of each rank's own: no listing shows the others' images.
#include "engine/watermark.h"

#include <gmock/gmock.h>

#include "base/error/status.h"
#include "base/sync/pause.h"
#include "base/sync/sockets.h"
#include "engine/many_ranks_fixture.h"
#include "neve/restore.h"

namespace neve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WatermarkTest : public ManyRanksTest {
 protected:
  void TearDown() override {
    ranks_.clear();
    ::unsetenv("NEVE_CONTROL");
    ManyRanksTest::TearDown();
  }
  std::string DiskOf(uint32_t rank) const { return folder_ + "/disk" + std::to_string(rank); }
  // Ranks on hosts of their own, as far as the file tier goes.
  void OpenHosts(uint32_t world, const std::string& query = "", const std::string& ram = "ram:") {
    OpenWorld(world, [&](uint32_t rank, EngineOptions& options) {
      std::filesystem::create_directories(DiskOf(rank));
      options.tiers = {ParseTier("file:" + DiskOf(rank) + query).value()};
      if (!ram.empty()) options.tiers.insert(options.tiers.begin(), ParseTier(ram).value());
    });
    ExpectOpen();
  }
  std::vector<uint64_t> StepsOnDisk(uint32_t rank) {
    std::vector<uint64_t> steps;
    for (const auto& entry : std::filesystem::directory_iterator(DiskOf(rank) + "/job")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-")) steps.push_back(std::stoull(name.substr(5, 12)));
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  bool Await(const std::function<bool()>& what) {
    for (int i = 0; i < 6000; ++i) {
      if (what()) return true;
      sync::Pause(10 * sync::kMillisecond);
    }
    return false;
  }
  std::string Health(uint32_t rank) { return ranks_[rank].engine->HealthJson(); }
};

TEST_F(WatermarkTest, OnDisksOfTheirOwnKeepRetiresAndCompleteIsAnswered) {
  OpenHosts(3, "?keep=2");
  for (uint64_t step = 1; step <= 6; ++step) {
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (uint32_t rank = 0; rank < 3; ++rank) tickets.push_back(SaveOn(rank, step));
    for (const auto& ticket : tickets) {
      for (const char* stage : {"complete", "complete:file", "complete:ram"}) EXPECT_EQ(ticket->Wait(stage, 60), absl::OkStatus());
    }
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(Await([&] { return StepsOnDisk(rank) == std::vector<uint64_t>{5, 6}; })) << ::testing::PrintToString(StepsOnDisk(rank));
    EXPECT_THAT(Health(rank), AllOf(HasSubstr("\"joined\":true"), HasSubstr("\"file\":\"i0001.s000005\"")));
  }
  ExpectRestored(6);
  // A rank that is ahead keeps what the others have.
  SaveOn(0, 7);
  SaveOn(0, 8);
  SaveOn(1, 7);
  ranks_.clear();
  EXPECT_THAT(StepsOnDisk(0), ElementsAre(5, 6, 7, 8));
  OpenHosts(3, "?keep=2");
  ExpectRestored(6);
  for (uint64_t step = 7; step <= 9; ++step) SaveOnAll(step);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(Await([&] { return StepsOnDisk(rank) == std::vector<uint64_t>{8, 9}; })) << ::testing::PrintToString(StepsOnDisk(rank));
  }
}

TEST_F(WatermarkTest, SwitchedOffEverythingIsKeptAndNothingIsTold) {
  ::setenv("NEVE_CONTROL", "off", 1);
  OpenHosts(2, "?keep=1");
  std::shared_ptr<Ticket> ticket;
  for (uint64_t step = 1; step <= 5; ++step) {
    SaveOn(1, step);
    ticket = SaveOn(0, step);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(ticket->Wait("complete:file", 0.2)));
  EXPECT_THAT(Health(0), AllOf(HasSubstr("\"on\":false"), HasSubstr("NEVE_CONTROL=off")));
  for (auto& rank : ranks_) EXPECT_EQ(rank.engine->Drain(60), absl::OkStatus());
  EXPECT_THAT(StepsOnDisk(0), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(WatermarkTest, APortThatOneRankCannotHaveSwitchesItOffForAllAndSaysWhy) {
  ::setenv("NEVE_CONTROL", "192.0.2.7", 1);   // nobody's
  OpenHosts(2);
  SaveOnAll(1);
  ExpectRestored(1);
  EXPECT_THAT(Health(1), AllOf(HasSubstr("\"on\":false"), HasSubstr("rank 0: cannot listen at 192.0.2.7:0")));
}

TEST_F(WatermarkTest, RanksWithDifferentTiersAreNotToldOfEachOther) {
  OpenWorld(2, [&](uint32_t rank, EngineOptions& options) {
    std::filesystem::create_directories(DiskOf(rank));
    options.tiers = {ParseTier("file:" + DiskOf(rank)).value()};
    if (rank == 1) options.tiers.insert(options.tiers.begin(), ParseTier("ram:").value());
  });
  ExpectOpen();
  EXPECT_THAT(Health(0), HasSubstr("the ranks have different tiers"));
}

TEST_F(WatermarkTest, ASaveThatOneRankMissesEndsTheOthersWait) {
  OpenHosts(2);
  SaveOnAll(1);
  const auto ticket = SaveOn(0, 2);
  ranks_[1].engine->CountSave();   // it could not make its part
  EXPECT_TRUE(absl::IsUnavailable(ticket->Wait("complete", 60)));
  EXPECT_TRUE(absl::IsUnavailable(ticket->Wait("complete:file", 60)));
  EXPECT_THAT(std::string(ticket->Wait("complete:file", 0).message()),
              HasSubstr("step 2 (save i0001.s000001) will never be complete in tier file"));
  SaveOnAll(3);
  ExpectRestored(3);
}

TEST_F(WatermarkTest, ARankThatIsMissedIsNamedAndHarmsNothing) {
  OpenHosts(3, "?keep=1");
  SaveOnAll(1);
  ranks_[2].engine.reset();
  std::shared_ptr<Ticket> last;
  for (uint64_t step = 2; step <= 5; ++step) {
    last = SaveOn(0, step);
    SaveOn(1, step);
  }
  EXPECT_TRUE(Await([&] { return std::string(last->Wait("complete:file", 0.02).message()).find("rank 2 of 3") != std::string::npos; }));
  EXPECT_EQ(ranks_[1].engine->Close(true, 1), absl::OkStatus());
  EXPECT_EQ(ranks_[0].engine->Close(true, 1), absl::OkStatus());
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_THAT(StepsOnDisk(rank), ElementsAre(1, 2, 3, 4, 5)) << rank;
  ranks_.clear();
  OpenHosts(3, "?keep=1");
  ExpectRestored(1);   // the newest that all have
}

TEST_F(WatermarkTest, CloseFreesTheSlotsOfWhatAllRanksHave) {
  OpenHosts(2);
  SaveOnAll(1);
  OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 60), absl::OkStatus()); });
  size_t slots = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ram_)) slots += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(slots, 0u);
}

TEST_F(WatermarkTest, WithoutRamASaveInFilesIsComplete) {
  OpenHosts(2, "", "");
  const auto first = SaveOn(0, 1), second = SaveOn(1, 1);
  for (const auto& ticket : {first, second}) EXPECT_EQ(ticket->Wait("complete", 60), absl::OkStatus());
}

// A world by a list of places on the loopback that nobody listens at, as far as can be known.
class StaticListTest : public WatermarkTest {
 protected:
  std::string List(uint32_t world) {
    std::string list = "static:";
    std::vector<std::unique_ptr<sync::Sockets>> taken;
    for (uint32_t rank = 0; rank < world; ++rank) {
      taken.push_back(Take("127.0.0.1:0"));
      places_.push_back(taken.back()->place());
      list += (rank == 0 ? "" : ",") + places_.back();
    }
    return list;
  }
  static std::unique_ptr<sync::Sockets> Take(const std::string& place) {
    const sync::Sockets::Events none{[](auto) {}, [](auto) {}, [](auto, auto) {}, [](auto, const auto&) {}, [] {}};
    return sync::Sockets::Create({.listen = place}, none).value();
  }
  std::vector<std::string> places_;
};

TEST_F(StaticListTest, RanksMeetSaveAndRestoreByAListOfPlaces) {
  const std::string list = List(3);
  for (uint64_t life = 1; life <= 2; ++life) {   // the ports are free again at once
    OpenWorld(3, [&](uint32_t, EngineOptions& options) { options.group.place = list; });
    ExpectOpen();
    if (life == 2) ExpectRestored(1);
    SaveOnAll(life);
    ExpectRestored(life);
    EXPECT_THAT(Health(2), HasSubstr("\"place\":\"" + places_[2] + "\""));   // its own place
    OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 60), absl::OkStatus()); });
  }
}

TEST_F(StaticListTest, AnyRanksPortThatIsTakenIsEverybodysError) {
  const std::string list = List(3);
  const auto other = Take(places_[2]);
  OpenWorld(3, [&](uint32_t, EngineOptions& options) { options.group.place = list; });
  for (const Rank& rank : ranks_) {
    EXPECT_TRUE(absl::IsUnavailable(rank.opened)) << rank.opened;
    EXPECT_THAT(std::string(rank.opened.message()), AllOf(HasSubstr("rank 2: cannot listen at " + places_[2]),
                                                          HasSubstr("another process has that port")));
  }
}

TEST(ControlAddress, IsTheLoopbackOnOneHostAndTowardsTheOthersElse) {
  ::unsetenv("NEVE_CONTROL");
  EXPECT_EQ(engine::ControlAddress(true, "").value(), "127.0.0.1");
  EXPECT_EQ(engine::ControlAddress(false, "127.0.0.9").value(), "127.0.0.1");   // the route to it
  ::setenv("NEVE_CONTROL", "10.1.2.3", 1);
  EXPECT_EQ(engine::ControlAddress(true, "").value(), "10.1.2.3");
  ::setenv("NEVE_CONTROL", "off", 1);
  EXPECT_TRUE(absl::IsUnimplemented(engine::ControlAddress(true, "").status()));
  ::unsetenv("NEVE_CONTROL");
}

}  // namespace
}  // namespace neve
