// What a steady save allocates on the caller's thread: a fixed handful of small things (the ticket, the record, a queue entry for
// each tier), however large the state.
#include <algorithm>
#include <cstdio>

#include "tests/engine/engine_fixture.h"
#include "tests/support/counting_new.h"

namespace neve {
namespace {

class EngineAllocationTest : public EngineTest {
 protected:
  // The most that one of several saves costs, once the slots are made and the layout is known.
  testing::Allocated SteadySave(TestState& state) {
    testing::Allocated most;
    for (uint64_t step = 0; step < 12; ++step) {
      const testing::Allocated before = testing::by_this_thread;
      auto ticket = Save(state, step);
      const testing::Allocated& after = testing::by_this_thread;
      if (step >= 6) most = {std::max(most.count, after.count - before.count), std::max(most.bytes, after.bytes - before.bytes)};
      EXPECT_TRUE(ticket.ok() && (*ticket)->Wait("done", -1).ok());
    }
    return most;
  }
};

TEST_F(EngineAllocationTest, ASteadySaveAllocatesAHandfulHoweverLargeTheState) {
  TestState small(3, 1000), large(60, 100'000);   // 12 KB, 24 MB
  ASSERT_TRUE(Open({"ram:?slots=3", "file:" + folder_ + "?keep=2"}).ok());
  const testing::Allocated little = SteadySave(small);
  ASSERT_TRUE(Open({"ram:?slots=3", "file:" + folder_ + "?keep=2"}).ok());
  const testing::Allocated much = SteadySave(large);
  EXPECT_LE(little.count, 24u);
  EXPECT_LE(little.bytes, 4096u);
  EXPECT_EQ(much.count, little.count);
  EXPECT_LE(much.bytes, little.bytes + 2 * 16 * 6);   // the digests of its 6 chunks, in the record
  std::printf("a steady save allocates %llu times, %llu bytes in all\n", static_cast<unsigned long long>(little.count),
              static_cast<unsigned long long>(little.bytes));
}

}  // namespace
}  // namespace neve
