// Boxes of logical tensors, saved by some ranks and read by others; copies of a box that several ranks hold.
#include <fcntl.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "engine/many_ranks_fixture.h"
#include "neve/places.h"
#include "neve/restore.h"

namespace neve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  const auto restore = [&](uint32_t rank, RowState* rows, bool atomic) {
    const std::vector<void*> targets = {rows->data.data()};
    RestoreRequest request;
    request.atomic = atomic;
    request.state = rows->state;
    request.targets = targets;
    return RestoreInto(*ranks_[rank].engine, request).status();
  };
  spoil("shard-00000");
  for (const bool atomic : {true, false}) {
    OnEach([&](uint32_t rank) {
      RowState rows(kMany, 0, 1);
      EXPECT_EQ(restore(rank, &rows, atomic), absl::OkStatus());
      EXPECT_TRUE(rows.Holds(5));
    });
  }
  spoil("shard-00001");
  for (const bool atomic : {true, false}) {
    OnEach([&](uint32_t rank) {
      RowState rows(kMany, 0, 1);
      const absl::Status status = restore(rank, &rows, atomic);
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      if (atomic) {
        EXPECT_EQ(std::count(rows.data.begin(), rows.data.end(), 0), static_cast<ptrdiff_t>(rows.data.size()));   // untouched
      }
    });
  }
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

// The first chunk holds the header. Ranks of equal states have equal ones, and the record's digest tells that they are.
TEST_F(ReshardTest, AHeaderIsMendedFromARankThatHasTheSame) {
  tiers_ = {"file:" + folder_};
  const auto save = [&](bool alike) {
    OpenWorld(2);
    ASSERT_NO_FATAL_FAILURE(ExpectOpen());
    OnEach([&](uint32_t rank) {
      RowState rows(kRows, alike ? 0 : rank, alike ? 1 : 2);
      rows.Set(5);
      SaveRequest request;
      request.step = 5;
      request.state = rows.state;
      request.addresses = rows.addresses;
      auto ticket = ranks_[rank].engine->Save(request);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    });
  };
  const auto spoil = [&](const std::string& shard) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
      const std::string path = entry.path().string();
      if (path.find(shard) == std::string::npos || !path.ends_with(".safetensors")) continue;
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(40);
      file.put('\1');
    }
  };
  save(true);
  spoil("shard-00001");
  OpenWorld(2);
  ExpectRows(5, false);
  spoil("shard-00001");
  OpenWorld(3);   // other worlds read every rank's header
  ExpectRows(5, true);
  for (const std::string shard : {"shard-00000", "shard-00001"}) spoil(shard);
  OpenWorld(2);
  for (const Restored& result : RestoreAll()) EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
  std::filesystem::remove_all(job());
  save(false);   // of its own rows each: nobody else has that
  spoil("shard-00001");
  OpenWorld(2);
  for (const Restored& result : RestoreAll()) EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
}

// Each rank has a seed of its own beside the rows. Who wants the rows alone does not ask whose seed it is.
TEST_F(ReshardTest, WhatTheStateDoesNotNameMayDiffer) {
  tiers_ = {"file:" + folder_};
  OpenWorld(2);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  OnEach([&](uint32_t rank) {
    RowState rows(kRows, rank, 2);
    rows.Set(5);
    const int64_t seed = rank;
    const std::vector<std::string_view> names = {"rows", "seed"};
    const std::vector<DType> dtypes(2, DType::kI64);
    const std::vector<uint8_t> dims = {2, 1}, pieces = {1, 0};
    const std::vector<int64_t> extents = {rows.count, 4, 1}, global = {kRows, 4, 1}, offsets = {rows.first, 0, 0};
    const std::vector<const void*> addresses = {rows.data.data(), &seed};
    SaveRequest request;
    request.step = 5;
    request.state = DescribeState({names, dtypes, dims, extents, {}, pieces, global, offsets, {}}, "", 0).value();
    request.addresses = addresses;
    auto ticket = ranks_[rank].engine->Save(request);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
  });
  OpenWorld(1);
  RowState rows(kRows, 0, 1);
  const std::vector<void*> targets = {rows.data.data()};
  RestoreRequest request;
  request.state = rows.state;
  request.targets = targets;
  const absl::Status all = RestoreInto(*ranks_[0].engine, request).status();
  EXPECT_TRUE(absl::IsUnimplemented(all)) << all;
  request.only_state = true;
  EXPECT_EQ(RestoreInto(*ranks_[0].engine, request).status(), absl::OkStatus());
  EXPECT_TRUE(rows.Holds(5));
}

// What ranks hold in RAM is checked against each other as what they hold in files.
TEST_F(ReshardTest, TheSlotsOfAllRanksAreVerifiedAgainstEachOther) {
  tiers_ = {"ram:"};
  const auto problems_of = [&](const std::function<RowState(uint32_t)>& state_of) {
    ranks_.clear();
    std::filesystem::remove_all(ram_);
    OpenWorld(2);
    OnEach([&](uint32_t rank) {
      const RowState rows = state_of(rank);
      SaveRequest request;
      request.step = 5;
      request.state = rows.state;
      request.addresses = rows.addresses;
      auto ticket = ranks_[rank].engine->Save(request);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    });
    const auto report = VerifyPlace("ram:job", -1, {});
    EXPECT_TRUE(report.ok()) << report.status();
    std::vector<std::string> problems;
    for (const Problem& problem : report->problems) problems.push_back(problem.code + " " + problem.tensor + ": " + problem.message);
    return problems;
  };
  const auto rows = [](uint32_t rank, uint32_t world, uint64_t step) {
    RowState state(kRows, rank, world);
    state.Set(step);
    return state;
  };
  EXPECT_THAT(problems_of([&](uint32_t rank) { return rows(rank, 2, 5); }), IsEmpty());
  EXPECT_THAT(problems_of([&](uint32_t) { return rows(0, 1, 5); }), IsEmpty());
  EXPECT_THAT(problems_of([&](uint32_t rank) { return rows(rank, 3, 5); }), ElementsAre(AllOf(HasSubstr("pieces rows"), HasSubstr("666"))));
  EXPECT_THAT(problems_of([&](uint32_t rank) { return rows(rank, rank + 1, 5); }),
              ElementsAre(AllOf(HasSubstr("pieces rows"), HasSubstr("overlap"))));
  EXPECT_THAT(problems_of([&](uint32_t rank) { return rows(0, 1, 5 + rank); }),
              ElementsAre(AllOf(HasSubstr("replica rows"), HasSubstr("ranks 0 and 1"))));
}

}  // namespace
}  // namespace neve
