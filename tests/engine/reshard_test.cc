// Boxes of logical tensors, saved by some ranks and read by others; copies of a box that several ranks hold.
#include <fcntl.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "engine/many_ranks_fixture.h"
#include "neve/restore.h"

namespace neve {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace neve
