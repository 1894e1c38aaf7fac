// Several ranks in one process, each an engine of its own: what they agree on, what they restore together, what they keep.
#include <fcntl.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/os/syscalls.h"
#include "engine/engine_fixture.h"
#include "neve/restore.h"

namespace neve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ManyRanksTest : public EngineTest {
 protected:
  struct Rank {
    std::unique_ptr<Engine> engine;
    absl::Status opened;
    TestState state{2, 5000};
  };

  // Runs `body` for each rank at once.
  void OnEach(const std::function<void(uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  EngineOptions OptionsOf(uint32_t rank, uint32_t world) {
    EngineOptions options;
    options.folder = job();
    options.rank = rank;
    options.world = world;
    options.group.place = "dir:" + folder_ + "/group";
    options.group.timeout_s = 60;
    for (const std::string& tier : tiers_) options.tiers.push_back(ParseTier(tier).value());
    return options;
  }
  void OpenWorld(uint32_t world, const std::function<void(uint32_t, EngineOptions&)>& change = {}) {
    ranks_.clear();
    ranks_.resize(world);
    OnEach([&](uint32_t rank) {
      EngineOptions options = OptionsOf(rank, world);
      if (change) change(rank, options);
      auto engine = Engine::Open(options);
      ranks_[rank].opened = engine.status();
      if (engine.ok()) ranks_[rank].engine = *std::move(engine);
    });
  }
  void ExpectOpen() {
    for (const Rank& rank : ranks_) ASSERT_TRUE(rank.opened.ok()) << rank.opened;
  }
  static float ValueOf(uint64_t step, uint32_t rank) { return static_cast<float>(step * 100 + rank); }
  std::shared_ptr<Ticket> SaveOn(uint32_t rank, uint64_t step, std::vector<std::string> to = {}, bool done = true) {
    Rank& self = ranks_[rank];
    self.state.Set(ValueOf(step, rank));
    SaveRequest request;
    request.step = step;
    request.state = self.state.state;
    request.addresses = self.state.addresses;
    request.to = std::move(to);
    auto ticket = self.engine->Save(request);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return nullptr;
    if (done) {
      EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    }
    return *ticket;
  }
  void SaveOnAll(uint64_t step) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) SaveOn(rank, step);
  }
  // What each rank restores, its bytes checked: the step, or the error.
  struct Restored {
    uint64_t step = 0;
    absl::Status status;
  };
  std::vector<Restored> RestoreAll(const FindRequest& request = {}) {
    std::vector<Restored> results(ranks_.size());
    OnEach([&](uint32_t rank) {
      auto image = ranks_[rank].engine->Find(request);
      results[rank].status = image.status();
      if (!image.ok()) return;
      results[rank].step = (*image)->info().step;
      TestState state(2, 5000);
      absl::Status read = ReadAll(**image, state);
      if (read.ok() && !state.Holds(ValueOf(results[rank].step, rank))) read = absl::InternalError("bytes of another rank or step");
      results[rank].status = ranks_[rank].engine->Agree(read);
    });
    return results;
  }
  void ExpectRestored(uint64_t step) {
    for (const Restored& result : RestoreAll()) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.step, step);
    }
  }
  void RemoveShard(uint64_t step, uint32_t rank) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
      const std::string path = entry.path().string();
      if (path.find(absl::StrFormat("step-%012d", step)) != std::string::npos &&
          path.find(absl::StrFormat("shard-%05d-of", rank)) != std::string::npos) {
        std::filesystem::remove(entry.path());
      }
    }
  }
  std::vector<uint64_t> StepsWithRank(uint32_t rank) {
    std::vector<uint64_t> steps;
    for (const auto& entry : std::filesystem::directory_iterator(job())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("step-")) continue;
      for (const auto& file : std::filesystem::directory_iterator(entry.path())) {
        if (file.path().filename().string().starts_with(absl::StrFormat("shard-%05d-of", rank)) &&
            file.path().filename().string().ends_with(".commit.json")) {
          steps.push_back(std::stoull(name.substr(5, 12)));
        }
      }
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  std::vector<std::string> tiers_;
  std::vector<Rank> ranks_;
};

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

// Row r of a logical [rows, 4] tensor holds step * 1000 + r.
struct RowState {
  RowState(int64_t rows, uint32_t rank, uint32_t world) {
    first = rows * rank / world;
    count = rows * (rank + 1) / world - first;
    data.resize(static_cast<size_t>(count) * 4);
    const std::vector<std::string_view> names = {"rows"};
    const std::vector<DType> dtypes = {DType::kI64};
    const std::vector<uint8_t> dims = {2}, pieces = {1};
    const std::vector<int64_t> extents = {count, 4}, global = {rows, 4}, offsets = {first, 0};
    state = DescribeState({names, dtypes, dims, extents, {}, pieces, global, offsets, {}}, "", 0).value();
    addresses = {data.data()};
  }
  void Set(uint64_t step) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = ValueAt(step, first + static_cast<int64_t>(i / 4));
  }
  static int64_t ValueAt(uint64_t step, int64_t row) { return static_cast<int64_t>(step) * 1000 + row; }
  bool Holds(uint64_t step) const {
    for (size_t i = 0; i < data.size(); ++i) {
      if (data[i] != ValueAt(step, first + static_cast<int64_t>(i / 4))) return false;
    }
    return true;
  }

  int64_t first, count;
  std::vector<int64_t> data;
  std::shared_ptr<State> state;
  std::vector<const void*> addresses;
};

constexpr int64_t kRows = 1000;

class ReshardTest : public ManyRanksTest {
 protected:
  void SaveRows(uint64_t step) {
    OnEach([&](uint32_t rank) {
      RowState rows(kRows, rank, static_cast<uint32_t>(ranks_.size()));
      rows.Set(step);
      SaveRequest request;
      request.step = step;
      request.state = rows.state;
      request.addresses = rows.addresses;
      auto ticket = ranks_[rank].engine->Save(request);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    });
  }
  static absl::Status ReadRows(Image* image, RowState* rows) {
    NEVE_ASSIGN_OR_RETURN(const auto table, ImageTensors::Of(image));
    const int64_t offset[] = {rows->first, 0}, extent[] = {rows->count, 4};
    const BoxTarget box{*table->Find("rows"), offset, extent, rows->data.data()};
    return table->ReadBoxes({&box, 1});
  }
  void ExpectRows(uint64_t step, bool global) {
    OnEach([&](uint32_t rank) {
      auto image = ranks_[rank].engine->Find({});
      ASSERT_TRUE(image.ok()) << image.status();
      EXPECT_EQ((*image)->info().step, step);
      EXPECT_EQ((*image)->is_global(), global);
      RowState rows(kRows, rank, static_cast<uint32_t>(ranks_.size()));
      const absl::Status read = ReadRows(image->get(), &rows);
      EXPECT_EQ(read, absl::OkStatus());
      EXPECT_TRUE(rows.Holds(step));
      EXPECT_EQ(ranks_[rank].engine->Agree(read), absl::OkStatus());
    });
  }
};

TEST_F(ReshardTest, DCP_06_RanksOfAnotherNumberFillTheirBoxesFromFiles) {
  tiers_ = {"file:" + folder_};
  OpenWorld(4);
  ExpectOpen();
  SaveRows(5);
  for (const uint32_t world : {3u, 1u, 4u}) {
    OpenWorld(world);
    ExpectOpen();
    ExpectRows(5, world != 4);
  }
  OpenWorld(3);
  SaveRows(6);   // the job goes on with three, and back to four
  OpenWorld(4);
  ExpectRows(6, true);
}

TEST_F(ReshardTest, DCP_06_TheMemoryOfRanksThatAreGoneIsReadByThoseThatRemain) {
  tiers_ = {"ram:"};
  OpenWorld(3);
  ExpectOpen();
  SaveRows(5);
  OpenWorld(2);
  ExpectOpen();
  ExpectRows(5, true);
}

TEST_F(ReshardTest, DCP_06_OneRanksLayoutIsReadAsAnotherInTheSameWorld) {
  OpenWorld(2);
  ExpectOpen();
  SaveRows(5);
  OnEach([&](uint32_t rank) {
    auto image = ranks_[rank].engine->Find({});
    ASSERT_TRUE(image.ok()) << image.status();
    RowState whole(kRows, 0, 1);
    EXPECT_TRUE(absl::IsInvalidArgument(ReadRows(image->get(), &whole)));
    auto global = (*image)->Global({});
    ASSERT_TRUE(global.ok()) << global.status();
    image->reset();
    EXPECT_EQ(ReadRows(global->get(), &whole), absl::OkStatus());
    EXPECT_TRUE(whole.Holds(5));
    EXPECT_EQ((*global)->VerifyAll(), absl::OkStatus());
    EXPECT_EQ(ranks_[rank].engine->Agree(absl::OkStatus()), absl::OkStatus());
  });
}

// Both ranks hold all rows; the end of one image is spoilt, behind the chunk of the header.
TEST_F(ReshardTest, ARestoreReadsTheCopyOfAnotherRankWhereItsOwnBytesAreBad) {
  constexpr int64_t kMany = 200'000;
  tiers_ = {"file:" + folder_};
  OpenWorld(2);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  OnEach([&](uint32_t rank) {
    RowState rows(kMany, 0, 1);
    rows.Set(5);
    SaveRequest request;
    request.step = 5;
    request.state = rows.state;
    request.addresses = rows.addresses;
    auto ticket = ranks_[rank].engine->Save(request);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
  });
  const auto spoil = [&](const std::string& shard) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
      const std::string path = entry.path().string();
      if (path.find(shard) == std::string::npos || !path.ends_with(".safetensors")) continue;
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('?');
    }
  };
  const auto restore = [&](uint32_t rank, RowState* rows) {
    const std::vector<void*> targets = {rows->data.data()};
    RestoreRequest request;
    request.state = rows->state;
    request.targets = targets;
    return RestoreInto(*ranks_[rank].engine, request).status();
  };
  spoil("shard-00000");
  OnEach([&](uint32_t rank) {
    RowState rows(kMany, 0, 1);
    EXPECT_EQ(restore(rank, &rows), absl::OkStatus());
    EXPECT_TRUE(rows.Holds(5));
  });
  spoil("shard-00001");
  OnEach([&](uint32_t rank) {
    RowState rows(kMany, 0, 1);
    const absl::Status status = restore(rank, &rows);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  });
}

TEST_F(ReshardTest, DCP_06_ASaveThatOneRankCannotReachAllOfIsOfferedToNone) {
  const auto local = [&](uint32_t rank, EngineOptions& options) {
    options.tiers = {ParseTier("file:" + folder_ + "/host" + std::to_string(std::min(rank, 1u))).value()};
  };
  for (const char* host : {"/host0", "/host1"}) std::filesystem::create_directory(folder_ + host);
  OpenWorld(3, local);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  SaveRows(5);   // rank 0 on its own disk, ranks 1 and 2 on another
  OpenWorld(2, local);
  ExpectOpen();
  OnEach([&](uint32_t rank) {
    const absl::Status status = ranks_[rank].engine->Find({}).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0, 1 of 2 cannot reach all of its images"));
  });
}

TEST_F(ReshardTest, ABadCopyOfAReplicaIsReadFromAnotherRank) {
  tiers_ = {"file:" + folder_};
  OpenWorld(2);
  ExpectOpen();
  OnEach([&](uint32_t rank) {   // both hold all of it
    RowState rows(kRows, 0, 1);
    rows.Set(5);
    SaveRequest request;
    request.step = 5;
    request.state = rows.state;
    request.addresses = rows.addresses;
    auto ticket = ranks_[rank].engine->Save(request);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
  });
  const auto damage = [&](uint32_t rank) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
      const std::string path = entry.path().string();
      if (!path.ends_with(absl::StrFormat("shard-%05d-of-00002.safetensors", rank))) continue;
      const auto file = os::Open(path, O_RDWR);
      const std::byte wrong{0x5a};
      ASSERT_TRUE(os::WriteAt(*file, std::filesystem::file_size(path) - 9, {&wrong, 1}).ok());
    }
  };
  OpenWorld(1);
  auto image = ranks_[0].engine->Find({});   // headers are read before the damage, which lies in the same chunk
  ASSERT_TRUE(image.ok()) << image.status();
  damage(0);
  RowState rows(kRows, 0, 1);
  EXPECT_EQ(ReadRows(image->get(), &rows), absl::OkStatus());
  EXPECT_TRUE(rows.Holds(5));
  damage(1);
  EXPECT_TRUE(absl::IsDataLoss(ReadRows(image->get(), &rows)));
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
  OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 0.2), absl::OkStatus()); });
  std::filesystem::remove_all(ram_);
  OpenWorld(2);
  ExpectOpen();
  ExpectRestored(4);
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
  options.group.place = "static:a:1,b:2";
  EXPECT_TRUE(absl::IsUnimplemented(Engine::Open(options).status()));
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
