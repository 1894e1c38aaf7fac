#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/process.h"
#include "base/os/random.h"
#include "base/os/thread.h"
#include "base/os/unique_handle.h"

namespace neve::os {
namespace {

using ::testing::MatchesRegex;

// A child that lives until it is told to end.
class Child {
 public:
  Child() {
    EXPECT_EQ(::pipe(report_), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const ProcessId self = CurrentProcess();
      [[maybe_unused]] const ssize_t written = ::write(report_[1], &self, sizeof(self));
      while (true) ::pause();
    }
    char bytes[sizeof(id)];
    EXPECT_EQ(::read(report_[0], bytes, sizeof(bytes)), static_cast<ssize_t>(sizeof(bytes)));
    std::memcpy(&id, bytes, sizeof(id));
  }
  ~Child() {
    Kill();
    Reap();
    ::close(report_[0]);
    ::close(report_[1]);
  }
  // Dead but not yet waited for when this returns.
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  void Reap() {
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  ProcessId id;

 private:
  int report_[2];
  pid_t pid_;
};

TEST(Process, ThisOneIsAlive) {
  const ProcessId self = CurrentProcess();
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_GT(self.start_time, 0u);
  EXPECT_TRUE(IsAlive(self));
  EXPECT_EQ(self, CurrentProcess());
}

TEST(Process, ForkedChildIsAnotherProcess) {
  Child child;
  EXPECT_NE(child.id.pid, ::getpid());
  EXPECT_EQ(child.id.boot_id, CurrentProcess().boot_id);
  EXPECT_TRUE(IsAlive(child.id));
}

TEST(Process, ZombieIsDead) {
  Child child;
  child.Kill();
  EXPECT_FALSE(IsAlive(child.id));
}

TEST(Process, ReapedOneIsDead) {
  Child child;
  child.Kill();
  child.Reap();
  EXPECT_FALSE(IsAlive(child.id));
}

TEST(Process, SamePidWithAnotherStartTimeIsDead) {
  ProcessId reused = CurrentProcess();
  reused.start_time += 1;
  EXPECT_FALSE(IsAlive(reused));
}

TEST(Process, AnotherBootIsDead) {
  ProcessId before_reboot = CurrentProcess();
  before_reboot.boot_id[3] ^= 1;
  EXPECT_FALSE(IsAlive(before_reboot));
}

TEST(Process, NonsensePidsAreDead) {
  ProcessId nobody = CurrentProcess();
  for (const int64_t pid : {int64_t{0}, int64_t{-1}}) {
    nobody.pid = pid;
    EXPECT_FALSE(IsAlive(nobody));
  }
}

TEST(Process, NameWithSpacesAndParenthesesIsReadOver) {
  char before[16];
  ASSERT_EQ(::prctl(PR_GET_NAME, before), 0);
  ASSERT_EQ(::prctl(PR_SET_NAME, "a) R (b 1 2"), 0);
  const ProcessId self = CurrentProcess();
  const bool alive = IsAlive(self);
  ::prctl(PR_SET_NAME, before);
  EXPECT_TRUE(alive);
  EXPECT_EQ(self, CurrentProcess());
}

TEST(Process, BootIdIsWrittenAsTheKernelWritesIt) {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  EXPECT_EQ(BootIdString(CurrentProcess()), text);
  ProcessId process;
  for (int i = 0; i < 16; ++i) process.boot_id[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 17);
  EXPECT_EQ(BootIdString(process), "00112233-4455-6677-8899-aabbccddeeff");
}

TEST(Process, HostHasAName) { EXPECT_FALSE(HostName().empty()); }

TEST(Process, MissingKernelFileIsNothing) {
  EXPECT_FALSE(ReadKernelFile("/proc/none").has_value());
  EXPECT_FALSE(ReadKernelFile("/proc").has_value());  // a folder opens but cannot be read
}

TEST(Random, HexHasTheLengthAskedFor) {
  EXPECT_THAT(RandomHex(16), MatchesRegex("[0-9a-f]+"));
  for (const int digits : {0, 1, 7, 32}) EXPECT_EQ(RandomHex(digits).size(), static_cast<size_t>(digits));
}

TEST(Random, ValuesDoNotRepeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(RandomHex(32)).second);
}

struct ThreadReport {
  sigset_t mask;
  char name[32];
  int nice = 0;
};

void* Report(void* argument) {
  auto* const report = static_cast<ThreadReport*>(argument);
  NameThisThread("a-name-that-is-too-long");
  MakeThisThreadBackground();
  ::pthread_sigmask(SIG_SETMASK, nullptr, &report->mask);
  ::pthread_getname_np(::pthread_self(), report->name, sizeof(report->name));
  report->nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)));
  return nullptr;
}

TEST(Thread, BlocksSignalsHasANameAndStepsBack) {
  ThreadReport report;
  sigset_t before, after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  pthread_t thread;
  ASSERT_TRUE(StartThread(&Report, &report, &thread));
  ::pthread_join(thread, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGURG, SIGIO, SIGUSR1, SIGPROF}) {
    EXPECT_EQ(::sigismember(&report.mask, signal), 1) << signal;
  }
  EXPECT_EQ(std::string(report.name), "a-name-that-is-");
  EXPECT_EQ(report.nice, 19);
  // The caller keeps its own mask and priority.
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(::sigismember(&after, SIGTERM), ::sigismember(&before, SIGTERM));
  EXPECT_NE(::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid))), 19);
}

TEST(Thread, GenerationGrowsInTheChildOnly) {
  const uint64_t before = ForkGeneration();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ForkGeneration() == before + 1 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ForkGeneration(), before);
}

struct CountingTraits {
  using Handle = int;
  static int Invalid() { return -1; }
  static void Close(int handle) { closed.insert(handle); }
  static inline std::multiset<int> closed;
};
using Counted = UniqueHandle<CountingTraits>;

TEST(UniqueHandle, ClosesOnce) {
  CountingTraits::closed.clear();
  {
    Counted first(1);
    Counted second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_TRUE(second);
    Counted third(3);
    third = std::move(second);
    EXPECT_EQ(third.get(), 1);
    EXPECT_THAT(CountingTraits::closed, ::testing::ElementsAre(3));
  }
  EXPECT_THAT(CountingTraits::closed, ::testing::ElementsAre(1, 3));
}

TEST(UniqueHandle, ReleasedOnesAreLeftToTheCaller) {
  CountingTraits::closed.clear();
  {
    Counted handle(1);
    EXPECT_EQ(handle.release(), 1);
    handle.reset(2);
    Counted& self = handle;
    handle = std::move(self);
    EXPECT_EQ(handle.get(), 2);
  }
  EXPECT_THAT(CountingTraits::closed, ::testing::ElementsAre(2));
}

}  // namespace
}  // namespace neve::os
