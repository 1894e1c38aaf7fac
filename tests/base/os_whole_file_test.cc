#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/syscalls.h"
#include "tests/base/os_fixture.h"

namespace neve::os {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class WholeFile : public FolderTest {
 protected:
  mode_t ModeOf(const std::string& name) { return Stat(Path(name))->st_mode & 0777; }
};

TEST_F(WholeFile, ReadGivesTheContent) {
  const std::string content(100'000, 'x');
  ASSERT_TRUE(WriteFileAtomic(Path("f"), content).ok());
  EXPECT_EQ(*ReadFile(Path("f"), content.size()), content);
  ASSERT_TRUE(WriteFileAtomic(Path("empty"), "").ok());
  EXPECT_EQ(*ReadFile(Path("empty"), 0), "");
}

TEST_F(WholeFile, ReadContinuesShortReads) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "0123456789").ok());
  ScriptedHooks hooks([](const CallInfo&) { return CallVerdict{.shorten_to = 3}; });
  EXPECT_EQ(*ReadFile(Path("f"), 100), "0123456789");
}

TEST_F(WholeFile, ReadRefusesMoreThanTheLimit) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "0123456789").ok());
  const auto content = ReadFile(Path("f"), 9);
  EXPECT_TRUE(IsDamaged(content.status()));
  EXPECT_THAT(std::string(content.status().message()), HasSubstr("at most 9"));
}

TEST_F(WholeFile, ReadDoesNotTrustASizeOfZero) {
  // Files of /proc have no size but content; the limit holds for them too.
  EXPECT_THAT(*ReadFile("/proc/self/stat", 10'000), StartsWith(std::to_string(::getpid())));
  EXPECT_TRUE(IsDamaged(ReadFile("/proc/self/stat", 3).status()));
}

TEST_F(WholeFile, ReadOfAMissingFileIsNotFound) {
  EXPECT_EQ(ReadFile(Path("none"), 10).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(WholeFile, ReadNeverWaitsForAPipe) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_TRUE(IsDamaged(ReadFile(Path("fifo"), 10).status()));
  EXPECT_TRUE(IsDamaged(ReadFile(folder_, 10).status()));
}

TEST_F(WholeFile, FailedReadIsReported) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "0123456789").ok());
  ScriptedHooks hooks(Refuse(Call::kPread, EIO));
  EXPECT_EQ(ErrnoOf(ReadFile(Path("f"), 100).status()), EIO);
}

TEST_F(WholeFile, DUR_03_AtomicWriteSyncsBeforeRenameAndFolderAfter) {
  ScriptedHooks hooks;
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "content").ok());
  std::vector<Call> changes;
  for (const CallInfo& info : hooks.after_calls) {
    if (info.call != Call::kStat && info.call != Call::kOpen) changes.push_back(info.call);
  }
  EXPECT_THAT(changes, ElementsAre(Call::kPwrite, Call::kFsync, Call::kRename, Call::kFsync));
  EXPECT_EQ(hooks.after_calls.back().path, folder_);
}

TEST_F(WholeFile, DUR_03_ExclusiveWriteSyncsBeforeLinkAndFolderAfter) {
  ScriptedHooks hooks;
  ASSERT_TRUE(WriteFileExclusive(Path("f"), "content").ok());
  std::vector<Call> changes;
  for (const CallInfo& info : hooks.after_calls) {
    if (info.call != Call::kStat && info.call != Call::kOpen) changes.push_back(info.call);
  }
  EXPECT_THAT(changes, ElementsAre(Call::kPwrite, Call::kFsync, Call::kLink, Call::kUnlink, Call::kFsync));
  EXPECT_EQ(hooks.after_calls.back().path, folder_);
}

TEST_F(WholeFile, TemporaryIsNamedAsOneBesideTheTarget) {
  ScriptedHooks hooks;
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "content").ok());
  for (const CallInfo& info : hooks.after_calls) {
    if (info.call == Call::kRename) {
      EXPECT_THAT(info.path, StartsWith(Path(".tmp-")));
      EXPECT_EQ(info.target, Path("f"));
    }
  }
}

TEST_F(WholeFile, DUR_01_FailureAtAnyStepLeavesTheOldFileAndNoTemporary) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  for (const Call call : {Call::kOpen, Call::kPwrite, Call::kFsync, Call::kRename}) {
    {
      ScriptedHooks hooks(Refuse(call, EIO));
      EXPECT_EQ(ErrnoOf(WriteFileAtomic(Path("f"), "new")), EIO) << static_cast<int>(call);
    }
    EXPECT_EQ(*ReadFile(Path("f"), 10), "old") << static_cast<int>(call);
    EXPECT_THAT(Names(), ElementsAre("f")) << static_cast<int>(call);
  }
}

TEST_F(WholeFile, DUR_01_KilledAtAnyStepLeavesTheOldOrTheNewFile) {
  // The hooks are asked before each call: the child dies there, and the folder is what a crash at that point leaves.
  for (int fatal = 1; fatal <= 10; ++fatal) {
    ASSERT_TRUE(WriteFileAtomic(Path("f"), "old content").ok());
    const pid_t child = ::fork();
    if (child == 0) {
      int calls = 0;
      ScriptedHooks hooks([&](const CallInfo&) {
        if (++calls == fatal) ::kill(::getpid(), SIGKILL);
        return CallVerdict{.shorten_to = 4};
      });
      ::_exit(WriteFileAtomic(Path("f"), "new content").ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    EXPECT_THAT(*ReadFile(Path("f"), 100), ::testing::AnyOf("old content", "new content")) << "killed at call " << fatal;
    for (const std::string& name : Names()) {
      if (name != "f") {
        EXPECT_THAT(name, StartsWith(".tmp-"));
      }
    }
  }
}

TEST_F(WholeFile, FailedFolderSyncIsReported) {
  int syncs = 0;
  ScriptedHooks hooks([&](const CallInfo& info) {
    return CallVerdict{.error_number = info.call == Call::kFsync && ++syncs == 2 ? EIO : 0};
  });
  EXPECT_EQ(ErrnoOf(WriteFileAtomic(Path("f"), "new")), EIO);
}

TEST_F(WholeFile, DUR_04_LinkStaysALinkAndItsTargetIsReplaced) {
  ASSERT_TRUE(MakeDirs(Path("far/away")).ok());
  ASSERT_TRUE(WriteFileAtomic(Path("far/away/real"), "old").ok());
  ASSERT_EQ(::symlink("far/away/real", Path("second").c_str()), 0);
  ASSERT_EQ(::symlink(Path("second").c_str(), Path("first").c_str()), 0);
  ScriptedHooks hooks;
  ASSERT_TRUE(WriteFileAtomic(Path("first"), "new").ok());
  struct ::stat details;
  ASSERT_EQ(::lstat(Path("first").c_str(), &details), 0);
  EXPECT_TRUE(S_ISLNK(details.st_mode));
  EXPECT_EQ(*ReadFile(Path("far/away/real"), 10), "new");
  EXPECT_THAT(Names(), ElementsAre("far", "first", "second"));
  for (const CallInfo& info : hooks.after_calls) {
    if (info.call == Call::kRename) {
      EXPECT_THAT(info.path, StartsWith(Path("far/away/.tmp-")));
    }
  }
}

TEST_F(WholeFile, DUR_04_LinkToNothingMakesItsTarget) {
  ASSERT_TRUE(Mkdir(Path("d")).ok());
  ASSERT_EQ(::symlink("d/real", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomic(Path("link"), "new").ok());
  EXPECT_EQ(*ReadFile(Path("d/real"), 10), "new");
}

TEST_F(WholeFile, LinksInACircleAreRefused) {
  ASSERT_EQ(::symlink("b", Path("a").c_str()), 0);
  ASSERT_EQ(::symlink("a", Path("b").c_str()), 0);
  EXPECT_EQ(ErrnoOf(WriteFileAtomic(Path("a"), "new")), ELOOP);
}

TEST_F(WholeFile, DUR_05_NewFilesAndFoldersObeyTheUmask) {
  const std::vector<std::pair<mode_t, std::pair<mode_t, mode_t>>> cases = {
      {022, {0644, 0755}}, {027, {0640, 0750}}, {077, {0600, 0700}}};
  for (const auto& [mask, modes] : cases) {
    const std::string name = std::to_string(mask);
    const mode_t before = ::umask(mask);
    EXPECT_TRUE(WriteFileAtomic(Path("a" + name), "x").ok());
    EXPECT_TRUE(WriteFileExclusive(Path("e" + name), "x").ok());
    EXPECT_TRUE(MakeDirs(Path("d" + name)).ok());
    EXPECT_EQ(::umask(before), mask);  // nobody changed it meanwhile
    EXPECT_EQ(ModeOf("a" + name), modes.first);
    EXPECT_EQ(ModeOf("e" + name), modes.first);
    EXPECT_EQ(ModeOf("d" + name), modes.second);
  }
}

TEST_F(WholeFile, DUR_05_ReplacedFileKeepsItsMode) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  ASSERT_EQ(::chmod(Path("f").c_str(), 0664), 0);
  const mode_t before = ::umask(077);
  EXPECT_TRUE(WriteFileAtomic(Path("f"), "new").ok());
  ::umask(before);
  EXPECT_EQ(ModeOf("f"), 0664u);
}

TEST_F(WholeFile, OpenReadersKeepTheOldContent) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  const auto reader = Open(Path("f"), O_RDONLY);
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "new").ok());
  char text[3];
  ASSERT_TRUE(ReadAt(*reader, 0, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(std::string(text, 3), "old");
}

TEST_F(WholeFile, ExclusiveWriteRefusesWhatIsThere) {
  ASSERT_TRUE(WriteFileExclusive(Path("f"), "first").ok());
  const absl::Status status = WriteFileExclusive(Path("f"), "second");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoOf(status), EEXIST);
  EXPECT_EQ(*ReadFile(Path("f"), 10), "first");
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_F(WholeFile, ExclusiveWriteTakesALinkForAFile) {
  ASSERT_EQ(::symlink("nowhere", Path("link").c_str()), 0);
  EXPECT_EQ(ErrnoOf(WriteFileExclusive(Path("link"), "x")), EEXIST);
}

TEST_F(WholeFile, ExclusiveWriteWorksWithoutHardLinks) {
  for (const int error_number : {EPERM, EOPNOTSUPP, ENOSYS, EMLINK}) {
    const std::string name = "f" + std::to_string(error_number);
    ScriptedHooks hooks(Refuse(Call::kLink, error_number));
    EXPECT_TRUE(WriteFileExclusive(Path(name), "first").ok());
    EXPECT_EQ(ErrnoOf(WriteFileExclusive(Path(name), "second")), EEXIST);
    EXPECT_EQ(*ReadFile(Path(name), 10), "first");
  }
  EXPECT_EQ(Names().size(), 4u);
}

TEST_F(WholeFile, ExclusiveWriteBelievesASecondNameOverALostAnswer) {
  // As NFS does when the answer to a link got lost: the link is there, the repeated call says EEXIST.
  ScriptedHooks hooks([&](const CallInfo& info) {
    if (info.call != Call::kLink) return CallVerdict{};
    EXPECT_EQ(::link(info.path.c_str(), info.target.c_str()), 0);
    return CallVerdict{.error_number = EEXIST};
  });
  EXPECT_TRUE(WriteFileExclusive(Path("f"), "first").ok());
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_F(WholeFile, FailedExclusiveWriteLeavesNothing) {
  for (const Call call : {Call::kOpen, Call::kPwrite, Call::kFsync, Call::kLink}) {
    ScriptedHooks hooks(Refuse(call, EIO));
    EXPECT_EQ(ErrnoOf(WriteFileExclusive(Path("f"), "new")), EIO);
    EXPECT_THAT(Names(), ElementsAre());
  }
}

TEST_F(WholeFile, DUR_06_OfManyExclusiveWritersOneWins) {
  constexpr int kWriters = 8;
  for (int round = 0; round < 5; ++round) {
    const std::string path = Path("claim" + std::to_string(round));
    std::vector<pid_t> children;
    for (int i = 0; i < kWriters; ++i) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(WriteFileExclusive(path, std::string(1000, static_cast<char>('a' + i))).ok() ? i + 1 : 0);
      children.push_back(child);
    }
    int winners = 0, winner = 0;
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      if (WEXITSTATUS(status) != 0) {
        ++winners;
        winner = WEXITSTATUS(status) - 1;
      }
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(*ReadFile(path, 1000), std::string(1000, static_cast<char>('a' + winner)));
  }
}

TEST_F(WholeFile, DUR_06_ManyAtomicWritersNeverMix) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int round = 0; round < 5; ++round) {
        if (!WriteFileAtomic(Path("f"), std::string(10'000, static_cast<char>('a' + i))).ok()) ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::string content = *ReadFile(Path("f"), 10'000);
  EXPECT_EQ(content, std::string(10'000, content[0]));
  EXPECT_THAT(Names(), ElementsAre("f"));
}

}  // namespace
}  // namespace neve::os
