// What happens to slots when processes die, race for them, or run out of shared memory.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/os/syscalls.h"
#include "slot/slot.h"
#include "slot/slot_fixture.h"
#include "slot/slot_header.h"

namespace neve::slot {
namespace {

using ::testing::HasSubstr;

class SlotProcessTest : public SlotFixture {};

TEST_F(SlotProcessTest, SealedSlotsOutliveTheirProcess) {
  const std::string path = Orphan(State::kSealed);
  const SlotInfo info = OnlySlot();
  EXPECT_EQ(info.state, State::kSealed);
  EXPECT_FALSE(info.owner_alive);
  absl::StatusOr<std::unique_ptr<Slot>> reader = Slot::OpenForReading(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->image()[99], ByteAt(99, 17));
  EXPECT_EQ((*reader)->Record()->tags, (Tags{{"loss", 0.5}}));
}

TEST_F(SlotProcessTest, CapturedSlotsOfTheDeadAreDigestedAndSealed) {
  const std::string path = Orphan(State::kCaptured);
  EXPECT_TRUE(Slot::OpenForReading(path).ok());
  absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Adopt(path);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ((*slot)->state(), State::kCaptured);
  ASSERT_EQ((*slot)->DigestAndSeal(), absl::OkStatus());
  const absl::StatusOr<format::CommitRecord> record = (*slot)->Record();
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->digests[0], codec::DigestOf((*slot)->image().first(64 << 10)));
}

TEST_F(SlotProcessTest, FillingSlotsOfTheDeadNeverHeldASave) {
  const std::string path = Orphan(State::kFilling);
  EXPECT_TRUE(absl::IsUnavailable(Slot::OpenForReading(path).status()));
  absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Adopt(path);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ((*slot)->state(), State::kFree);
  EXPECT_EQ((*slot)->generation(), 1u);
  FillAndSeal(**slot, Identity(150'000, 40));
  EXPECT_EQ(OnlySlot().key.save.sequence, 40u);
  EXPECT_EQ((*slot)->generation(), 2u);
}

TEST_F(SlotProcessTest, SlotsOfALivingProcessAreNotAdopted) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  EXPECT_EQ(InChild([&] {
              EXPECT_TRUE(absl::IsUnavailable(Slot::Adopt(slot->path()).status()));
              EXPECT_TRUE(absl::IsUnavailable(Slot::OpenOwn(slot->path()).status()));
              EXPECT_TRUE(Slot::OpenForReading(slot->path()).ok());
              return HasFailure() ? 1 : 0;
            }),
            0);
}

// The losers must find the winner alive, so every child stays until all have tried.
TEST_F(SlotProcessTest, OfSeveralAdoptersExactlyOneWins) {
  constexpr int kAdopters = 4, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const std::string path = Orphan(State::kSealed);
    std::array<int, 2> start, leave, result;
    ASSERT_EQ(::pipe(start.data()) | ::pipe(leave.data()) | ::pipe(result.data()), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < kAdopters; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(start[1]);
        ::close(leave[1]);
        char byte = 0;
        (void)!::read(start[0], &byte, 1);
        absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Adopt(path);
        byte = slot.ok() ? 'w' : absl::IsUnavailable(slot.status()) ? 'u' : 'x';
        (void)!::write(result[1], &byte, 1);
        (void)!::read(leave[0], &byte, 1);
        ::_exit(0);
      }
      children.push_back(child);
    }
    ::close(start[0]);
    ::close(start[1]);   // the end of the pipe lets all go at once
    std::string results(kAdopters, ' ');
    for (char& byte : results) ASSERT_EQ(::read(result[0], &byte, 1), 1);
    for (const int fd : {leave[0], leave[1], result[0], result[1]}) ::close(fd);
    for (const pid_t child : children) ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(std::count(results.begin(), results.end(), 'w'), 1) << results;
    EXPECT_EQ(std::count(results.begin(), results.end(), 'x'), 0) << results;
    ASSERT_EQ(os::Unlink(path), absl::OkStatus());
  }
}

TEST_F(SlotProcessTest, AnAdopterWhoseLockIsHeldElsewhereIsTurnedAway) {
  const std::string path = Orphan(State::kSealed);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);   // another open file, so another holder
  EXPECT_TRUE(absl::IsUnavailable(Slot::Adopt(path).status()));
  ::close(fd);
  EXPECT_TRUE(Slot::Adopt(path).ok());
}

TEST_F(SlotProcessTest, LeftoversOfACreateThatWasKilledAreRemoved) {
  ASSERT_NE(MakeSlot(), nullptr);
  const std::string folder = os::JoinPath(ram_, TestUid(1).ToHex());
  ASSERT_EQ(InChild([&] {
              const std::string name = MakeTemporaryName(os::CurrentProcess());
              return os::Open(os::JoinPath(folder, name), O_CREAT | O_RDWR, 0600).ok() ? 0 : 1;
            }),
            0);
  const std::string living = os::JoinPath(folder, MakeTemporaryName(os::CurrentProcess()));
  ASSERT_TRUE(os::Open(living, O_CREAT | O_RDWR, 0600).ok());
  ASSERT_EQ(os::ListDirectory(folder)->size(), 3u);
  ASSERT_NE(MakeSlot(), nullptr);
  EXPECT_EQ(os::ListDirectory(folder)->size(), 3u);   // two slots and the temporary of a living process
  EXPECT_TRUE(os::Exists(living));
}

TEST_F(SlotProcessTest, SlotsAreNotInheritedByAFork) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  EXPECT_EQ(InChild([&] {
              ::signal(SIGSEGV, SIG_DFL);
              slot->image()[0] = std::byte{1};
              return 0;
            }),
            -1);
}

bool WriteText(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return written;
}

// Enters a mount namespace of our own (a user namespace too, unless root) and mounts a small tmpfs at `path`.
bool MountSmallTmpfs(const std::string& path, const char* options) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  if (uid != 0) {
    const bool mapped = WriteText("/proc/self/setgroups", "deny") &&
                        WriteText("/proc/self/uid_map", std::to_string(uid) + " " + std::to_string(uid) + " 1") &&
                        WriteText("/proc/self/gid_map", std::to_string(gid) + " " + std::to_string(gid) + " 1");
    if (!mapped) return false;
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return ::mount("none", path.c_str(), "tmpfs", 0, options) == 0;
}

// Where no mount is allowed, a limit on the size of files refuses the room in the same place.
bool LimitFileSize(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const struct ::rlimit limit = {bytes, bytes};
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

TEST_F(SlotProcessTest, MEM_01_TooSmallSharedMemoryIsExhaustedNotABusError) {
  constexpr uint64_t kRoom = 6u << 20, kWanted = 20u << 20;
  ASSERT_EQ(::mkdir(ram_.c_str(), 0700), 0);
  EXPECT_EQ(InChild([&] {
              const bool mounted = MountSmallTmpfs(ram_, "size=6m,mode=0700");
              if (!mounted && !LimitFileSize(kRoom)) return 2;
              const absl::Status status = Slot::Create(Options(kWanted)).status();
              const std::string text(status.message());
              EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
              EXPECT_THAT(text, HasSubstr(std::to_string(kWanted + kHugePageBytes) + " bytes wanted"));
              EXPECT_THAT(text, HasSubstr("NEVE_RAM_DIR"));
              if (mounted) {
                EXPECT_EQ(ErrnoOf(status), ENOSPC);
                EXPECT_EQ(text.find(" 0 bytes free"), std::string::npos) << text;
              }
              EXPECT_TRUE(os::ListDirectory(os::JoinPath(ram_, TestUid(1).ToHex()))->empty());
              // What fits is reserved in full: each byte can be touched, then there is no room for a second one.
              absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Create(Options(3u << 20));
              EXPECT_TRUE(slot.ok()) << slot.status();
              if (slot.ok()) std::memset((*slot)->image().data(), 0x5a, (*slot)->image().size());
              if (mounted) {
                EXPECT_TRUE(absl::IsResourceExhausted(Slot::Create(Options(3u << 20)).status()));
              }
              return HasFailure() ? 1 : 0;
            }),
            0);
}

}  // namespace
}  // namespace neve::slot
