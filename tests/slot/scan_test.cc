#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "base/os/syscalls.h"
#include "slot/slot.h"
#include "slot/slot_fixture.h"

namespace neve::slot {
namespace {

class ScanTest : public SlotFixture {};

TEST_F(ScanTest, MissingFolderIsAnEmptyAnswerAndIsNotMade) {
  absl::StatusOr<std::vector<SlotInfo>> slots = Scan(ram_, TestUid(1));
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_TRUE(slots->empty());
  EXPECT_TRUE(Scan(ram_, Uid{})->empty());
  EXPECT_FALSE(os::Exists(ram_));
  ASSERT_EQ(::mkdir(ram_.c_str(), 0700), 0);
  EXPECT_TRUE(Scan(ram_, TestUid(1))->empty());
  EXPECT_TRUE(os::ListDirectory(ram_)->empty());
}

TEST_F(ScanTest, TellsWhatTheSlotHolds) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  SlotInfo info = OnlySlot();
  EXPECT_EQ(info.state, State::kFree);
  EXPECT_EQ(info.job, "gpt");
  EXPECT_EQ(info.rank, 3u);
  EXPECT_EQ(info.owner, os::CurrentProcess());
  EXPECT_TRUE(info.owner_alive);
  EXPECT_EQ(info.image_capacity, slot->image_capacity());
  EXPECT_EQ(info.file_bytes, std::filesystem::file_size(slot->path()));
  FillAndSeal(*slot);
  info = OnlySlot();
  EXPECT_EQ(info.status, absl::OkStatus());
  EXPECT_EQ(info.state, State::kSealed);
  EXPECT_EQ(info.key, Identity().key);
  EXPECT_EQ(info.image_bytes, Identity().image_bytes);
  EXPECT_EQ(info.time, Identity().time);
  EXPECT_EQ(info.generation, 1u);
}

TEST_F(ScanTest, OneJobSeesItsOwnSlotsAndAnUnknownUidSeesAll) {
  Slot::CreateOptions other = Options();
  other.uid = TestUid(2);
  other.job = "bert";
  ASSERT_TRUE(Slot::Create(Options()).ok());
  ASSERT_TRUE(Slot::Create(other).ok());
  EXPECT_EQ(OnlySlot().job, "gpt");
  EXPECT_EQ(Scan(ram_, TestUid(2))->at(0).job, "bert");
  EXPECT_EQ(Scan(ram_, Uid{})->size(), 2u);
}

TEST_F(ScanTest, ASlotMovedToAnotherJobsFolderIsDamaged) {
  std::string path;
  {
    const std::unique_ptr<Slot> slot = MakeSlot();
    FillAndSeal(*slot);
    path = slot->path();
  }
  const std::string folder = os::JoinPath(ram_, TestUid(2).ToHex());
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(os::Rename(path, os::JoinPath(folder, os::BaseName(path))), absl::OkStatus());
  absl::StatusOr<std::vector<SlotInfo>> slots = Scan(ram_, TestUid(2));
  ASSERT_EQ(slots->size(), 1u);
  EXPECT_TRUE(IsDamaged(slots->at(0).status));
}

TEST_F(ScanTest, ForeignFilesLinksAndFifosAreLeftAlone) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  const std::string folder = os::DirName(slot->path());
  std::ofstream(folder + "/notes.txt") << "mine";
  std::ofstream(folder + "/x.slot") << "mine";
  ASSERT_EQ(::mkdir((folder + "/r1-0123456789abcdef.slot").c_str(), 0700), 0);
  ASSERT_EQ(::mkfifo((folder + "/r2-0123456789abcdef.slot").c_str(), 0600), 0);
  ASSERT_EQ(::symlink(slot->path().c_str(), (folder + "/r3-0123456789abcdef.slot").c_str()), 0);
  ASSERT_EQ(::symlink("/nowhere", (folder + "/r4-0123456789abcdef.slot").c_str()), 0);
  std::ofstream(ram_ + "/file") << "mine";
  ASSERT_EQ(::symlink(folder.c_str(), (ram_ + "/" + TestUid(9).ToHex()).c_str()), 0);
  EXPECT_EQ(OnlySlot().path, slot->path());
  EXPECT_EQ(Scan(ram_, Uid{})->size(), 1u);
  EXPECT_EQ(os::ListDirectory(folder)->size(), 7u);
}

TEST_F(ScanTest, AFolderThatOthersMayEnterIsInvalid) {
  ASSERT_NE(MakeSlot(), nullptr);
  ASSERT_EQ(::chmod(ram_.c_str(), 0750), 0);
  const absl::Status status = Scan(ram_, TestUid(1)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("chmod 700"));
}

}  // namespace
}  // namespace neve::slot
