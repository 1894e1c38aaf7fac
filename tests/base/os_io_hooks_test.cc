#include <fcntl.h>

#include <atomic>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "base/os/io_hooks.h"
#include "base/os/syscalls.h"
#include "tests/base/os_fixture.h"

namespace neve::os {
namespace {

class IoHooksTest : public FolderTest {};

TEST_F(IoHooksTest, AreNullUntilInstalled) {
  EXPECT_FALSE(IoHooksInUse());
  {
    ScriptedHooks hooks;
    EXPECT_EQ(IoHooksInUse().operator->(), &hooks);
  }
  EXPECT_FALSE(IoHooksInUse());
}

// They may be destroyed when SetIoHooks returns: no call is in them any more.
TEST_F(IoHooksTest, AreTakenAwayWhenNoCallIsInThem) {
  class Slow : public IoHooks {
   public:
    CallVerdict Before(const CallInfo&) override {
      entered.store(true);
      while (!may_leave.load()) std::this_thread::yield();
      left.store(true);
      return {};
    }
    std::atomic<bool> entered{false}, may_leave{false}, left{false};
  } hooks;
  SetIoHooks(&hooks);
  std::thread caller([&] { (void)Stat(Path("f")).ok(); });
  while (!hooks.entered.load()) std::this_thread::yield();
  std::atomic<bool> taken{false};
  std::thread taker([&] {
    SetIoHooks(nullptr);
    taken.store(true);
    EXPECT_TRUE(hooks.left.load());
  });
  while (IoHooksInUse()) std::this_thread::yield();   // from here on `taker` waits
  EXPECT_FALSE(taken.load());
  hooks.may_leave.store(true);
  taker.join();
  caller.join();
}

TEST_F(IoHooksTest, SeePathFlagsOffsetAndLength) {
  ScriptedHooks hooks;
  const auto file = Open(Path("f"), O_RDWR | O_CREAT);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(WriteAt(*file, 7, std::as_bytes(std::span("abc", 3))).ok());
  ASSERT_EQ(hooks.before_calls.size(), 2u);
  EXPECT_EQ(hooks.before_calls[0].call, Call::kOpen);
  EXPECT_EQ(hooks.before_calls[0].path, Path("f"));
  EXPECT_NE(hooks.before_calls[0].flags & O_CREAT, 0);
  EXPECT_EQ(hooks.before_calls[1].call, Call::kPwrite);
  EXPECT_EQ(hooks.before_calls[1].path, Path("f"));
  EXPECT_EQ(hooks.before_calls[1].offset, 7u);
  EXPECT_EQ(hooks.before_calls[1].length, 3u);
}

TEST_F(IoHooksTest, SeeTheTargetOfARename) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "x").ok());
  ScriptedHooks hooks;
  ASSERT_TRUE(Rename(Path("a"), Path("b")).ok());
  EXPECT_EQ(hooks.after_calls.at(0).target, Path("b"));
}

TEST_F(IoHooksTest, AreNotToldOfCallsThatFailed) {
  ScriptedHooks hooks;
  EXPECT_FALSE(Open(Path("none"), O_RDONLY).ok());
  EXPECT_EQ(hooks.before_calls.size(), 1u);
  EXPECT_TRUE(hooks.after_calls.empty());
}

TEST_F(IoHooksTest, SeeTheBytesThatWereReallyWritten) {
  const auto file = Open(Path("f"), O_RDWR | O_CREAT);
  bool first = true;
  ScriptedHooks hooks([&](const CallInfo&) { return CallVerdict{.shorten_to = std::exchange(first, false) ? 2 : -1}; });
  ASSERT_TRUE(WriteAt(*file, 0, std::as_bytes(std::span("abcde", 5))).ok());
  ASSERT_EQ(hooks.after_calls.size(), 2u);
  EXPECT_EQ(hooks.after_calls[0].length, 2u);
  EXPECT_EQ(hooks.after_calls[1].offset, 2u);
  EXPECT_EQ(hooks.written, "abcde");
}

}  // namespace
}  // namespace neve::os
