// Single files: what a kill or a failure leaves, with files without names and where there are none.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/error/status.h"
#include "tests/base/os_fixture.h"
#include "tests/engine/engine_fixture.h"

namespace neve {
namespace {

using os::Call;
using os::CallInfo;
using os::CallVerdict;
using os::ScriptedHooks;

class FileSaveTest : public os::FolderTest {
 protected:
  static CallVerdict NoUnnamedFiles(const CallInfo& info) {
    const bool unnamed = info.call == Call::kOpen && (info.flags & O_TMPFILE) == O_TMPFILE;
    return {.error_number = unnamed ? EOPNOTSUPP : 0};
  }
  absl::Status Save(float value) {
    state_.Set(value);
    return SaveFile(Path("w.safetensors"), state_.state, state_.addresses, "", {});
  }
  bool Holds(float value) {
    auto image = OpenImageFile(Path("w.safetensors"));
    if (!image.ok()) return false;
    // The first tensor's first number stands right after the header.
    float first = 0;
    const ReadRange range{.offset = (*image)->header().size(), .bytes = sizeof(first), .target = &first};
    return (*image)->Read(std::span(&range, 1)).ok() && first == value;
  }
  TestState state_;
};

TEST_F(FileSaveTest, DUR_01_AKillBeforeTheRenameLeavesNoName) {
  ASSERT_TRUE(Save(1).ok());
  std::vector<std::string> names;
  ScriptedHooks hooks([&](const CallInfo& info) {
    if (info.call == Call::kFsync || info.call == Call::kPwrite) names = Names();
    return CallVerdict{};
  });
  ASSERT_TRUE(Save(2).ok());
  EXPECT_EQ(names, std::vector<std::string>{"w.safetensors"});
  EXPECT_TRUE(Holds(2));
}

TEST_F(FileSaveTest, WithoutUnnamedFilesATemporaryIsUsed) {
  ScriptedHooks hooks(NoUnnamedFiles);
  ASSERT_TRUE(Save(1).ok());
  ASSERT_TRUE(Save(2).ok());
  EXPECT_EQ(Names(), std::vector<std::string>{"w.safetensors"});
  EXPECT_TRUE(Holds(2));
}

TEST_F(FileSaveTest, DUR_02_AFailureAtAnyStepLeavesTheOldFileAlone) {
  ASSERT_TRUE(Save(1).ok());
  for (const bool unnamed : {true, false}) {
    for (const Call call : {Call::kFallocate, Call::kPwrite, Call::kFtruncate, Call::kFsync, Call::kLink, Call::kRename}) {
      if (call == Call::kLink && !unnamed) continue;
      absl::Status status;
      {
        ScriptedHooks hooks([&](const CallInfo& info) {
          return info.call == call ? CallVerdict{.error_number = ENOSPC} : unnamed ? CallVerdict{} : NoUnnamedFiles(info);
        });
        status = Save(2);
      }
      EXPECT_EQ(ErrnoOf(status), ENOSPC) << static_cast<int>(call) << " " << status;
      EXPECT_EQ(Names(), std::vector<std::string>{"w.safetensors"}) << static_cast<int>(call);
      EXPECT_TRUE(Holds(1));
    }
  }
}

TEST_F(FileSaveTest, DUR_01_TheNextSaveRemovesTheTemporariesOfKilledOnes) {
  for (const bool unnamed : {true, false}) {
    // What a kill between naming and renaming leaves: a file that nobody has locked, under a number that any save may use.
    for (const char* left : {".tmp-0000000000000000", ".tmp-0000000000000002", ".tmp-000000000000000f"}) {
      std::ofstream(Path(left)) << "half a file";
    }
    ScriptedHooks hooks([&](const CallInfo& info) { return unnamed ? CallVerdict{} : NoUnnamedFiles(info); });
    ASSERT_TRUE(Save(3).ok());
    EXPECT_EQ(Names(), std::vector<std::string>{"w.safetensors"}) << unnamed;
    EXPECT_TRUE(Holds(3));
  }
}

TEST_F(FileSaveTest, ATemporaryThatIsBeingWrittenIsLeftAlone) {
  const os::File other = os::Open(Path(".tmp-0000000000000000"), O_CREAT | O_EXCL | O_RDWR).value();
  ASSERT_TRUE(os::TryLock(other));
  std::filesystem::create_directory(Path(".tmp-0000000000000001"));                       // things that are no temporaries
  ASSERT_EQ(::symlink("nowhere", Path(".tmp-0000000000000002").c_str()), 0);
  ASSERT_EQ(::mkfifo(Path(".tmp-0000000000000003").c_str(), 0600), 0);
  const std::vector<std::string> before = Names();
  for (const bool unnamed : {true, false}) {
    ScriptedHooks hooks([&](const CallInfo& info) { return unnamed ? CallVerdict{} : NoUnnamedFiles(info); });
    ASSERT_TRUE(Save(4).ok());
    EXPECT_TRUE(Holds(4));
    std::vector<std::string> names = Names();
    std::erase(names, "w.safetensors");
    EXPECT_EQ(names, before) << unnamed;
  }
}

TEST_F(FileSaveTest, WhereThereAreNoLocksNoTemporaryIsHeldForDead) {
  std::ofstream(Path(".tmp-0000000000000000")) << "perhaps being written";
  for (const bool unnamed : {true, false}) {
    ScriptedHooks hooks([&](const CallInfo& info) {
      if (info.call == Call::kLease) return CallVerdict{.error_number = ENOLCK};
      return unnamed ? CallVerdict{} : NoUnnamedFiles(info);
    });
    ASSERT_TRUE(Save(5).ok());
    EXPECT_EQ(Names(), (std::vector<std::string>{".tmp-0000000000000000", "w.safetensors"})) << unnamed;
    EXPECT_TRUE(Holds(5));
  }
}

TEST_F(FileSaveTest, DUR_04_ALinkToNothingStaysALinkAndItsTargetIsMade) {
  std::filesystem::create_directory(Path("d"));
  ASSERT_EQ(::symlink("d/real.safetensors", Path("w.safetensors").c_str()), 0);
  ASSERT_TRUE(Save(1).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("w.safetensors")));
  EXPECT_TRUE(std::filesystem::is_regular_file(Path("d/real.safetensors")));
  EXPECT_TRUE(Holds(1));
}

}  // namespace
}  // namespace neve
