#include "slot/folder.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "base/os/io_hooks.h"
#include "slot/slot_fixture.h"

namespace neve::slot {
namespace {

using ::testing::HasSubstr;

class FolderTest : public SlotFixture {
 protected:
  void TearDown() override {
    ::unsetenv("NEVE_RAM_DIR");
    SlotFixture::TearDown();
  }
  void SetRamDir(const std::string& path) { ASSERT_EQ(::setenv("NEVE_RAM_DIR", path.c_str(), 1), 0); }
};

TEST_F(FolderTest, ARamFolderThatCannotBeMadeIsUnavailableWithTheReason) {
  ::setenv("NEVE_RAM_DIR", (root_ + "/no/such/dir").c_str(), 1);
  const absl::Status status = RamFolder(true).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrnoOf(status), ENOENT);
}

TEST_F(FolderTest, RamFolderIsMadeOnlyWhenAsked) {
  SetRamDir(ram_);
  EXPECT_TRUE(absl::IsNotFound(RamFolder(false).status()));
  EXPECT_FALSE(os::Exists(ram_));
  EXPECT_EQ(*RamFolder(true), ram_);
  EXPECT_EQ(*RamFolder(false), ram_);
  EXPECT_EQ(os::Stat(ram_)->st_mode & 07777, 0700u);
}

TEST_F(FolderTest, WithoutTheVariableItIsNamedForTheUser) {
  ::unsetenv("NEVE_RAM_DIR");
  const absl::StatusOr<std::string> folder = RamFolder(false);
  const std::string wanted = "/dev/shm/neve-" + std::to_string(::geteuid());
  if (folder.ok()) {
    EXPECT_EQ(*folder, wanted);
  } else {
    EXPECT_THAT(std::string(folder.status().message()), HasSubstr(wanted));
  }
}

TEST_F(FolderTest, RelativePathsAreInvalid) {
  SetRamDir("ram");
  EXPECT_TRUE(absl::IsInvalidArgument(RamFolder(true).status()));
}

TEST_F(FolderTest, LinksAreInvalidEvenWithASlashAtTheEnd) {
  ASSERT_EQ(::mkdir((root_ + "/real").c_str(), 0700), 0);
  ASSERT_EQ(::symlink((root_ + "/real").c_str(), ram_.c_str()), 0);
  for (const char* end : {"", "/", "//"}) {
    SetRamDir(ram_ + end);
    EXPECT_TRUE(absl::IsInvalidArgument(RamFolder(true).status())) << RamFolder(true).status();
  }
  ASSERT_EQ(::unlink(ram_.c_str()), 0);
  ASSERT_EQ(::symlink((root_ + "/none").c_str(), ram_.c_str()), 0);
  SetRamDir(ram_);
  EXPECT_TRUE(absl::IsInvalidArgument(RamFolder(true).status()));
  EXPECT_FALSE(os::Exists(root_ + "/none"));
}

TEST_F(FolderTest, AFileIsInvalid) {
  std::ofstream(ram_) << "x";
  EXPECT_TRUE(absl::IsInvalidArgument(PrivateFolder(ram_, true)));
}

TEST_F(FolderTest, AFolderThatOthersMayEnterIsInvalidAndKeepsItsMode) {
  ASSERT_EQ(::mkdir(ram_.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(ram_.c_str(), 0755), 0);
  const absl::Status status = PrivateFolder(ram_, true);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 700 " + ram_));
  EXPECT_EQ(os::Stat(ram_)->st_mode & 0777, 0755u);
}

TEST_F(FolderTest, AFolderOfAnotherUserIsInvalid) {
  // Where this user may not give folders away, the root folder belongs to somebody else.
  std::string path = ram_;
  ASSERT_EQ(::mkdir(ram_.c_str(), 0700), 0);
  if (::chown(ram_.c_str(), ::geteuid() + 1, static_cast<gid_t>(-1)) != 0) path = "/";
  const absl::Status status = PrivateFolder(path, true);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to user"));
}

TEST_F(FolderTest, AMissingParentIsNotMade) {
  EXPECT_TRUE(absl::IsNotFound(PrivateFolder(root_ + "/a/b", true)));
  EXPECT_FALSE(os::Exists(root_ + "/a"));
}

}  // namespace
}  // namespace neve::slot
