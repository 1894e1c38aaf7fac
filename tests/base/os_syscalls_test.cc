#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/syscalls.h"
#include "tests/base/os_fixture.h"

namespace neve::os {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Syscalls : public FolderTest {
 protected:
  File Make(const std::string& name, std::string_view content = {}) {
    auto file = Open(Path(name), O_RDWR | O_CREAT);
    EXPECT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(WriteAt(*file, 0, std::as_bytes(std::span(content))).ok());
    return *std::move(file);
  }
  std::string Read(const File& file, uint64_t offset, size_t bytes) {
    std::string text(bytes, '\0');
    EXPECT_TRUE(ReadAt(file, offset, std::as_writable_bytes(std::span(text))).ok());
    return text;
  }
};

TEST_F(Syscalls, OpenOfAMissingFileIsNotFoundAndNamesIt) {
  const auto file = Open(Path("none"), O_RDONLY);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(Path("none")));
}

TEST_F(Syscalls, OpenedFilesDoNotOutliveExec) {
  const File file = Make("f");
  EXPECT_NE(::fcntl(file.fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(Syscalls, HooksRefuseOpen) {
  ScriptedHooks hooks(Refuse(Call::kOpen, EMFILE));
  const auto file = Open(Path("f"), O_RDWR | O_CREAT);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoOf(file.status()), EMFILE);
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(Syscalls, WhatWasWrittenIsReadBack) {
  const File file = Make("f", "0123456789");
  EXPECT_EQ(Read(file, 3, 4), "3456");
}

TEST_F(Syscalls, ShortWritesAreContinued) {
  ScriptedHooks hooks([](const CallInfo&) { return CallVerdict{.shorten_to = 3}; });
  const File file = Make("f", "0123456789");
  EXPECT_EQ(hooks.written, "0123456789");
  EXPECT_EQ(hooks.after_calls.back().offset, 9u);
  EXPECT_EQ(hooks.after_calls.back().length, 1u);
}

TEST_F(Syscalls, ShortReadsAreContinued) {
  const File file = Make("f", "0123456789");
  ScriptedHooks hooks([](const CallInfo&) { return CallVerdict{.shorten_to = 3}; });
  EXPECT_EQ(Read(file, 0, 10), "0123456789");
  EXPECT_EQ(hooks.after_calls.size(), 4u);
}

TEST_F(Syscalls, InterruptedCallsAreRepeated) {
  int interruptions = 0;
  ScriptedHooks hooks([&](const CallInfo&) {
    return CallVerdict{.error_number = ++interruptions % 2 == 1 ? EINTR : 0};
  });
  const File file = Make("f", "0123456789");
  EXPECT_EQ(Read(file, 0, 10), "0123456789");
  EXPECT_TRUE(Fsync(file).ok());
  EXPECT_EQ(interruptions, 8);  // open, write, read, fsync: each asked twice
}

TEST_F(Syscalls, ReadInterruptedByASignalIsRepeated) {
  // A pipe cannot be read at an offset, so this asks open() of a FIFO, which waits for its other side and is interrupted.
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  struct sigaction action {};
  struct sigaction before {};
  static volatile sig_atomic_t signals = 0;
  signals = 0;
  action.sa_handler = [](int) { signals = signals + 1; };  // without SA_RESTART
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const std::string path = Path("fifo");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    // Signals until the parent has surely been inside open(): it opens the other side only after that.
    for (int i = 0; i < 20; ++i) {
      ::kill(parent, SIGUSR1);
      ::usleep(2000);
    }
    ::_exit(::open(path.c_str(), O_WRONLY) < 0);
  }
  const auto file = Open(path, O_RDONLY);
  EXPECT_TRUE(file.ok()) << file.status();
  EXPECT_GT(signals, 0);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  EXPECT_EQ(status, 0);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(Syscalls, ReadPastTheEndIsDamagedWithBothNumbers) {
  const File file = Make("f", "0123456789");
  std::byte target[8];
  const absl::Status status = ReadAt(file, 6, target);
  EXPECT_TRUE(IsDamaged(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("wanted 8 bytes at 6, found 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("f")));
}

TEST_F(Syscalls, ReadAtAnImpossibleOffsetIsDamaged) {
  const File file = Make("f", "0123456789");
  std::byte target[8];
  EXPECT_TRUE(IsDamaged(ReadAt(file, std::numeric_limits<uint64_t>::max() - 2, target)));
}

TEST_F(Syscalls, FailedReadNamesFileAndRange) {
  const File file = Make("f", "0123456789");
  ScriptedHooks hooks(Refuse(Call::kPread, EIO));
  std::byte target[8];
  const absl::Status status = ReadAt(file, 1, target);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("read of 8 bytes at 1 of " + Path("f") + ": Input/output error"));
}

TEST_F(Syscalls, DUR_02_FullDiskSaysBytesWantedAndFree) {
  const File file = Make("f");
  ScriptedHooks hooks(Refuse(Call::kPwrite, ENOSPC));
  const absl::Status status = WriteAt(file, 0, std::as_bytes(std::span("0123456789", 10)));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_THAT(std::string(status.message()), HasSubstr("write of 10 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes are free"));
}

TEST_F(Syscalls, DUR_02_FileSizeLimitIsExhausted) {
  const File file = Make("f");
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit {1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  // The first part fits, so this also meets a real short write.
  const std::string content(2000, 'x');
  const absl::Status status = WriteAt(file, 0, std::as_bytes(std::span(content)));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(ErrnoOf(status), EFBIG);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(Syscalls, DUR_02_AlwaysFullDeviceIsExhausted) {
  const auto file = Open("/dev/full", O_WRONLY);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ErrnoOf(WriteAt(*file, 0, std::as_bytes(std::span("x", 1)))), ENOSPC);
}

TEST_F(Syscalls, WriteThatTakesNothingIsAnErrorAndNotALoop) {
  const File file = Make("f");
  ScriptedHooks hooks([](const CallInfo&) { return CallVerdict{.shorten_to = 0}; });
  EXPECT_EQ(ErrnoOf(WriteAt(file, 0, std::as_bytes(std::span("x", 1)))), EIO);
}

TEST_F(Syscalls, WriteAtAnImpossibleOffsetIsExhausted) {
  const File file = Make("f");
  EXPECT_EQ(ErrnoOf(WriteAt(file, ~uint64_t{0}, std::as_bytes(std::span("x", 1)))), EFBIG);
}

TEST_F(Syscalls, FailedSyncsAreReported) {
  const File file = Make("f");
  ScriptedHooks hooks([](const CallInfo& info) {
    return CallVerdict{.error_number = info.call == Call::kFsync ? EIO : ENOSPC};
  });
  EXPECT_EQ(ErrnoOf(Fsync(file)), EIO);
  EXPECT_EQ(ErrnoOf(Fdatasync(file)), ENOSPC);
}

TEST_F(Syscalls, TruncateSetsTheSize) {
  const File file = Make("f", "0123456789");
  ASSERT_TRUE(Ftruncate(file, 4).ok());
  EXPECT_EQ(StatOpen(file)->st_size, 4);
  ASSERT_TRUE(Ftruncate(file, 40).ok());
  EXPECT_EQ(Stat(Path("f"))->st_size, 40);
}

TEST_F(Syscalls, FailedTruncateSaysTheSizeWanted) {
  const File file = Make("f");
  EXPECT_EQ(ErrnoOf(Ftruncate(file, ~uint64_t{0})), EFBIG);
  ScriptedHooks hooks(Refuse(Call::kFtruncate, EIO));
  EXPECT_THAT(std::string(Ftruncate(file, 77).message()), HasSubstr("to 77 bytes"));
}

TEST_F(Syscalls, FallocateReservesBlocks) {
  const File file = Make("f", "0123");
  ASSERT_TRUE(Fallocate(file, 1 << 20).ok());
  const auto details = StatOpen(file);
  EXPECT_EQ(details->st_size, 1 << 20);
  EXPECT_GE(details->st_blocks * 512, 1 << 20);
  EXPECT_EQ(Read(file, 0, 4), "0123");
  EXPECT_TRUE(Fallocate(file, 0).ok());
}

TEST_F(Syscalls, FallocateWorksWhereTheFileSystemCannotReserve) {
  const File file = Make("f", "0123");
  ScriptedHooks hooks(Refuse(Call::kFallocate, EOPNOTSUPP));
  ASSERT_TRUE(Fallocate(file, 1 << 20).ok());
  EXPECT_GE(StatOpen(file)->st_blocks * 512, 1 << 20);
  EXPECT_EQ(Read(file, 0, 4), "0123");
}

TEST_F(Syscalls, DUR_02_FallocateWithoutRoomIsExhausted) {
  const File file = Make("f");
  EXPECT_EQ(ErrnoOf(Fallocate(file, ~uint64_t{0})), EFBIG);
  ScriptedHooks hooks(Refuse(Call::kFallocate, ENOSPC));
  const absl::Status status = Fallocate(file, 4096);
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_THAT(std::string(status.message()), HasSubstr("reserve 4096 bytes"));
}

TEST_F(Syscalls, RenameReplaces) {
  Make("a", "new");
  Make("b", "old");
  ASSERT_TRUE(Rename(Path("a"), Path("b")).ok());
  EXPECT_THAT(Names(), ElementsAre("b"));
  EXPECT_EQ(*ReadFile(Path("b"), 100), "new");
}

TEST_F(Syscalls, FailedRenameNamesBothPaths) {
  const absl::Status status = Rename(Path("a"), Path("b"));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("a") + " to " + Path("b")));
}

TEST_F(Syscalls, RenameNoReplaceMovesOntoAFreeName) {
  Make("a", "x");
  ASSERT_TRUE(RenameNoReplace(Path("a"), Path("b")).ok());
  EXPECT_THAT(Names(), ElementsAre("b"));
}

TEST_F(Syscalls, RenameNoReplaceNeverReplaces) {
  Make("a", "new");
  Make("b", "old");
  const absl::Status status = RenameNoReplace(Path("a"), Path("b"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoOf(status), EEXIST);
  EXPECT_EQ(*ReadFile(Path("b"), 100), "old");
  EXPECT_EQ(*ReadFile(Path("a"), 100), "new");
}

TEST_F(Syscalls, RenameNoReplaceFallsBackToALink) {
  Make("a", "new");
  Make("b", "old");
  ScriptedHooks hooks(Refuse(Call::kRename, EINVAL));
  EXPECT_EQ(ErrnoOf(RenameNoReplace(Path("a"), Path("b"))), EEXIST);
  ASSERT_TRUE(RenameNoReplace(Path("a"), Path("c")).ok());
  EXPECT_THAT(Names(), ElementsAre("b", "c"));
  EXPECT_EQ(*ReadFile(Path("c"), 100), "new");
}

TEST_F(Syscalls, LinkNeverReplaces) {
  Make("a", "new");
  ASSERT_TRUE(Link(Path("a"), Path("b")).ok());
  EXPECT_EQ(ErrnoOf(Link(Path("a"), Path("b"))), EEXIST);
}

TEST_F(Syscalls, UnlinkOfAMissingFileIsFine) {
  Make("a");
  EXPECT_TRUE(Unlink(Path("a")).ok());
  EXPECT_TRUE(Unlink(Path("a")).ok());
  ScriptedHooks hooks(Refuse(Call::kUnlink, EACCES));
  EXPECT_EQ(ErrnoOf(Unlink(Path("a"))), EACCES);
}

TEST_F(Syscalls, MkdirOfAnExistingFolderIsFine) {
  EXPECT_TRUE(Mkdir(Path("d")).ok());
  EXPECT_TRUE(Mkdir(Path("d")).ok());
  EXPECT_EQ(Mkdir(Path("x/y")).code(), absl::StatusCode::kNotFound);
}

TEST_F(Syscalls, MkdirOverAFileIsRefused) {
  Make("f");
  const absl::Status status = Mkdir(Path("f"));
  EXPECT_EQ(ErrnoOf(status), EEXIST);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no folder"));
}

TEST_F(Syscalls, MakeDirsMakesAllParents) {
  EXPECT_TRUE(MakeDirs(Path("a/b/c")).ok());
  EXPECT_TRUE(MakeDirs(Path("a/b/c/")).ok());
  EXPECT_TRUE(S_ISDIR(Stat(Path("a/b/c"))->st_mode));
}

TEST_F(Syscalls, MakeDirsThroughAFileIsRefused) {
  Make("f");
  EXPECT_EQ(ErrnoOf(MakeDirs(Path("f/b/c"))), ENOTDIR);
}

TEST_F(Syscalls, RmdirForgivesMissingButNotFullFolders) {
  ASSERT_TRUE(MakeDirs(Path("a/b")).ok());
  EXPECT_EQ(ErrnoOf(Rmdir(Path("a"))), ENOTEMPTY);
  EXPECT_TRUE(Rmdir(Path("a/b")).ok());
  EXPECT_TRUE(Rmdir(Path("a/b")).ok());
  EXPECT_TRUE(Rmdir(Path("a")).ok());
}

TEST_F(Syscalls, FolderSyncReportsFailure) {
  EXPECT_TRUE(FsyncDirectory(folder_).ok());
  EXPECT_EQ(FsyncDirectory(Path("none")).code(), absl::StatusCode::kNotFound);
  ScriptedHooks hooks(Refuse(Call::kFsync, EIO));
  EXPECT_EQ(ErrnoOf(FsyncDirectory(folder_)), EIO);
}

TEST_F(Syscalls, FolderSyncIsFineWhereFoldersHaveNone) {
  ScriptedHooks hooks(Refuse(Call::kFsync, EINVAL));
  EXPECT_TRUE(FsyncDirectory(folder_).ok());
}

TEST_F(Syscalls, StatFollowsLinks) {
  Make("f", "0123");
  ASSERT_EQ(::symlink("f", Path("link").c_str()), 0);
  EXPECT_EQ(Stat(Path("link"))->st_size, 4);
  EXPECT_TRUE(Exists(Path("link")));
  EXPECT_FALSE(Exists(Path("none")));
  EXPECT_EQ(Stat(Path("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Syscalls, ListIsSortedAndKnowsFoldersFromLinks) {
  Make("b");
  ASSERT_TRUE(Mkdir(Path("a")).ok());
  ASSERT_EQ(::symlink("a", Path("c").c_str()), 0);
  const auto entries = ListDirectory(folder_);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_TRUE((*entries)[0].is_directory);
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_FALSE((*entries)[1].is_directory);
  EXPECT_FALSE((*entries)[2].is_directory);
}

TEST_F(Syscalls, ListOfAMissingFolderIsNotFound) {
  EXPECT_EQ(ListDirectory(Path("none")).status().code(), absl::StatusCode::kNotFound);
  ScriptedHooks hooks(Refuse(Call::kList, EACCES));
  EXPECT_EQ(ErrnoOf(ListDirectory(folder_).status()), EACCES);
}

TEST(Paths, AreSplitAsPosixDoes) {
  const std::vector<std::vector<std::string>> cases = {
      {"/a/b", "/a", "b"}, {"/a/b/", "/a", "b"}, {"a", ".", "a"}, {"a/", ".", "a"}, {"/a", "/", "a"},
      {"/", "/", "/"},     {"//", "/", "/"},     {"", ".", ""},   {"a//b", "a", "b"}};
  for (const auto& expected : cases) {
    EXPECT_EQ(DirName(expected[0]), expected[1]) << expected[0];
    EXPECT_EQ(BaseName(expected[0]), expected[2]) << expected[0];
  }
}

TEST(Paths, AreJoinedByOneSlash) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
}

}  // namespace
}  // namespace neve::os
