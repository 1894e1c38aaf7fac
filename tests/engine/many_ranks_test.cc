// Several ranks in one process, each an engine of its own: what they agree on, what they restore together, what they keep.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "engine/many_ranks_fixture.h"

namespace neve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ManyRanksTest, EachRankRestoresItsOwnImageOfTheNewestSave) {
  OpenWorld(3);
  ExpectOpen();
  for (const Restored& result : RestoreAll()) EXPECT_TRUE(absl::IsNotFound(result.status)) << result.status;
  EXPECT_FALSE(std::filesystem::exists(job()));   // nothing is made by open and restore
  SaveOnAll(1);
  SaveOnAll(2);
  ExpectRestored(2);
  ranks_.clear();
  OpenWorld(3);
  ExpectOpen();
  ExpectRestored(2);
  SaveOnAll(3);   // a new life, numbered above the first
  EXPECT_TRUE(std::filesystem::exists(job() + "/life-0001.json"));
  EXPECT_TRUE(std::filesystem::exists(job() + "/life-0002.json"));
  ExpectRestored(3);
}

TEST_F(ManyRanksTest, RET_05_ARankWithAnOlderSaveBringsAllBackToIt) {
  tiers_ = {"file:" + folder_};
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(1);
  SaveOn(0, 2);   // rank 1 died before its part
  ranks_.clear();
  OpenWorld(2);
  ExpectOpen();
  ExpectRestored(1);
  auto steps = ranks_[1].engine->Steps();
  ASSERT_TRUE(steps.ok());
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_FALSE(steps->at(0).complete);
  EXPECT_THAT(steps->at(0).missing_ranks, ElementsAre(1));
  EXPECT_TRUE(steps->at(1).complete);
  // Asked for by number it is an error that names the rank, on both.
  for (const Restored& result : RestoreAll({.step = 2})) {
    EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("rank 1 of 2 missing"));
  }
}

TEST_F(ManyRanksTest, TIER_01_RanksThatHoldDifferentStepsInMemoryRestoreTheCommonOne) {
  tiers_ = {"ram:"};
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(1);
  SaveOnAll(2);
  SaveOn(0, 3);
  ExpectRestored(2);
}

TEST_F(ManyRanksTest, ARecordThatOneRankCannotReadRulesTheSaveOutForAll) {
  tiers_ = {"file:" + folder_};
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(1);
  SaveOnAll(2);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
    const std::string path = entry.path().string();
    if (path.find("step-000000000002") != std::string::npos && path.ends_with("00001-of-00002.commit.json")) {
      std::filesystem::resize_file(entry.path(), 20);
    }
  }
  ExpectRestored(1);
  for (const Restored& result : RestoreAll({.step = 2})) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("rank 1"));
  }
}

TEST_F(ManyRanksTest, WhatOneRankFailsToReadIsEverybodysError) {
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(1);
  std::vector<absl::Status> ends(2);
  OnEach([&](uint32_t rank) {
    auto image = ranks_[rank].engine->Find({});
    ASSERT_TRUE(image.ok()) << image.status();
    ends[rank] = ranks_[rank].engine->Agree(rank == 1 ? absl::DataLossError("chunk 3") : absl::OkStatus());
  });
  EXPECT_EQ(ends[0], absl::DataLossError("rank 1: chunk 3"));
  EXPECT_EQ(ends[1], ends[0]);
}

TEST_F(ManyRanksTest, TwoJobsInTheRanksTiersAreNamed) {
  tiers_ = {"file:" + folder_ + "/a"};
  std::filesystem::create_directories(folder_ + "/a");
  std::filesystem::create_directories(folder_ + "/b");
  OpenWorld(1);
  SaveOn(0, 1);
  tiers_ = {"file:" + folder_ + "/b"};
  OpenWorld(1);
  SaveOn(0, 1);
  tiers_.clear();
  OpenWorld(2, [&](uint32_t rank, EngineOptions& options) {
    options.tiers = {ParseTier("file:" + folder_ + (rank == 0 ? "/a" : "/b")).value()};
  });
  for (const Rank& rank : ranks_) {
    EXPECT_TRUE(absl::IsInvalidArgument(rank.opened)) << rank.opened;
    EXPECT_THAT(std::string(rank.opened.message()), AllOf(HasSubstr("/a/job"), HasSubstr("rank 1"), HasSubstr("/b/job"), HasSubstr("uid")));
  }
}

TEST_F(ManyRanksTest, NodeLocalTiersGetOneUidAndAClaimEach) {
  for (const char* host : {"/h0", "/h1"}) std::filesystem::create_directories(folder_ + host);
  const auto local = [&](uint32_t rank, EngineOptions& options) {
    options.tiers = {ParseTier("file:" + folder_ + absl::StrFormat("/h%d", rank)).value()};
  };
  OpenWorld(2, local);
  ExpectOpen();
  SaveOnAll(1);
  SaveOnAll(2);
  for (const char* host : {"/h0", "/h1"}) EXPECT_TRUE(std::filesystem::exists(folder_ + host + "/job/life-0001.json"));
  OpenWorld(2, local);
  ExpectOpen();
  ExpectRestored(2);
  // A rank on a new host: its disk is empty, and the others' saves cannot be reached by it.
  std::filesystem::remove_all(folder_ + "/h1/job");
  OpenWorld(2, local);
  ExpectOpen();
  for (const Restored& result : RestoreAll()) {
    EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("rank 1 of 2 missing"));
  }
  SaveOnAll(5);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/h1/job/life-0002.json"));   // numbered by what rank 0 lists
  ExpectRestored(5);
}

TEST_F(ManyRanksTest, ATierThatOneRankCannotListKeepsAllFromOpening) {
  OpenWorld(2, [&](uint32_t rank, EngineOptions& options) {
    options.tiers = {ParseTier("file:" + folder_ + (rank == 1 ? "/nowhere" : "")).value()};
  });
  for (const Rank& rank : ranks_) {
    EXPECT_TRUE(absl::IsUnavailable(rank.opened)) << rank.opened;
    EXPECT_THAT(std::string(rank.opened.message()), AllOf(HasSubstr("rank 1"), HasSubstr("/nowhere")));
  }
}

TEST_F(ManyRanksTest, WhoDoesNotComeIsNamed) {
  ranks_.resize(2);
  OnEach([&](uint32_t rank) {
    EngineOptions options = OptionsOf(rank, 3);
    options.group.timeout_s = 0.2;
    ranks_[rank].opened = Engine::Open(options).status();
  });
  for (const Rank& rank : ranks_) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(rank.opened)) << rank.opened;
    EXPECT_THAT(std::string(rank.opened.message()), HasSubstr("rank 2"));
  }
}

TEST_F(ManyRanksTest, DCP_03_PlainTensorsThatDifferAreNamedToAnotherNumberOfRanks) {
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(7);
  for (const uint32_t world : {1u, 3u}) {
    OpenWorld(world);
    ExpectOpen();
    for (const Restored& result : RestoreAll()) {
      EXPECT_TRUE(absl::IsUnimplemented(result.status)) << result.status;
      EXPECT_THAT(std::string(result.status.message()),
                  AllOf(HasSubstr("step 7"), HasSubstr("\"t0\" has different bytes on ranks 0 and 1")));
    }
    OnEach([&](uint32_t rank) {
      auto image = ranks_[rank].engine->Find({.take_rank0 = {"t*"}});
      ASSERT_TRUE(image.ok()) << image.status();
      EXPECT_TRUE((*image)->is_global());
      TestState state(2, 5000);
      const absl::Status read = ReadAll(**image, state);
      EXPECT_TRUE(state.Holds(ValueOf(7, 0)));
      EXPECT_EQ(ranks_[rank].engine->Agree(read), absl::OkStatus());
    });
  }
}

TEST_F(ManyRanksTest, CompleteIsReachedWhenEveryRankHasCommitted) {
  OpenWorld(2);
  ExpectOpen();
  const auto first = SaveOn(0, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(first->Wait("complete", 0.2)));
  EXPECT_THAT(std::string(first->Wait("complete:file", 0).message()), HasSubstr("rank 1 of 2 missing"));
  const auto second = SaveOn(1, 1);
  for (const auto& ticket : {first, second}) {
    for (const char* stage : {"complete", "complete:file", "complete:ram"}) EXPECT_EQ(ticket->Wait(stage, 60), absl::OkStatus()) << stage;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(first->Wait("complete:object", 0)));
}

TEST_F(ManyRanksTest, ASaveThatOneRankCouldNotMakeIsCountedByIt) {
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(1);
  SaveOn(0, 2);
  SaveRequest wrong;
  wrong.step = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(ranks_[1].engine->Save(wrong).status()));
  SaveOn(0, 3);
  ranks_[1].engine->CountSave();   // it did not get as far as the engine
  const auto a = SaveOn(0, 4), b = SaveOn(1, 4);
  EXPECT_EQ(a->save_id(), b->save_id());
  ExpectRestored(4);
}

TEST_F(ManyRanksTest, AfterARestoreTheRanksCountAlike) {
  OpenWorld(2);
  ExpectOpen();
  SaveOnAll(1);
  SaveOn(0, 2);   // rank 1 never called it, and never told
  ExpectRestored(1);
  const auto a = SaveOn(0, 2), b = SaveOn(1, 2);
  EXPECT_EQ(a->save_id(), b->save_id());
  ExpectRestored(2);
}

TEST_F(ManyRanksTest, RET_03_RanksRetireTheirOwnAndKeepWhatAllHave) {
  tiers_ = {"ram:", "file:" + folder_ + "?keep=2"};
  OpenWorld(2);
  ExpectOpen();
  for (uint64_t step = 1; step <= 3; ++step) SaveOnAll(step);
  // Rank 0 runs ahead: nothing that rank 1 might have to go back to goes.
  for (uint64_t step = 4; step <= 6; ++step) SaveOn(0, step);
  for (Rank& rank : ranks_) ASSERT_TRUE(rank.engine->Drain(60).ok());
  EXPECT_THAT(StepsWithRank(1), ElementsAre(2, 3));
  EXPECT_THAT(StepsWithRank(0), ElementsAre(2, 3, 4, 5, 6));
  for (uint64_t step = 4; step <= 7; ++step) SaveOn(1, step);
  SaveOn(0, 7);
  SaveOnAll(8);
  for (Rank& rank : ranks_) ASSERT_TRUE(rank.engine->Drain(60).ok());
  EXPECT_THAT(StepsWithRank(1), ElementsAre(7, 8));
  SaveOn(0, 9);
  ASSERT_TRUE(ranks_[0].engine->Drain(60).ok());
  EXPECT_THAT(StepsWithRank(0), ElementsAre(7, 8, 9));   // 9 is not complete
  ExpectRestored(8);
}

TEST_F(ManyRanksTest, AStoreOfTheProgramsOwnAndAnAllGatherDoToo) {
  std::mutex mutex;
  std::map<std::string, std::string> values;
  const auto through_store = [&](uint32_t, EngineOptions& options) {
    options.group.place.clear();
    options.group.set = [&](const std::string& name, std::string_view value) {
      const std::lock_guard lock(mutex);
      values[name] = std::string(value);
      return absl::OkStatus();
    };
    options.group.get = [&](const std::string& name) -> absl::StatusOr<std::optional<std::string>> {
      const std::lock_guard lock(mutex);
      const auto found = values.find(name);
      return found == values.end() ? std::nullopt : std::optional(found->second);
    };
  };
  OpenWorld(2, through_store);
  ExpectOpen();
  SaveOnAll(1);
  OpenWorld(2, through_store);
  ExpectOpen();
  ExpectRestored(1);
  ranks_.clear();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/group"));
}

TEST_F(ManyRanksTest, AWorldWithoutAGroupIsRefused) {
  EngineOptions options = OptionsOf(0, 2);
  options.group = {};
  EXPECT_TRUE(absl::IsInvalidArgument(Engine::Open(options).status()));
  options.group.place = "static:127.0.0.1:1";
  EXPECT_TRUE(absl::IsInvalidArgument(Engine::Open(options).status()));   // of one rank
  options.group.place = "static:127.0.0.1:1,192.0.2.1:2";
  EXPECT_TRUE(absl::IsInvalidArgument(Engine::Open(options).status()));   // without a key
  options.group.place = "dir:/x";
  options.group.timeout_s = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Engine::Open(options).status()));
}

TEST_F(ManyRanksTest, CloseEndsAWaitForOtherRanks) {
  OpenWorld(2);
  ExpectOpen();
  std::thread waiting([&] { EXPECT_FALSE(ranks_[0].engine->Find({}).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(ranks_[0].engine->Close(true, 60), absl::OkStatus());
  waiting.join();
}

}  // namespace
}  // namespace neve
