// A capture allocates nothing while it runs.
#include "capture/random_state.h"
#include "tests/support/counting_new.h"

namespace neve::capture {
namespace {

TEST(CaptureAllocationTest, RunAllocatesNothing) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::unique_ptr<sync::Crew> crew = sync::Crew::Create(1);
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<State> state = RandomState(random);
    const CapturePlan plan(state->layout(), 64 << 10);
    std::vector<std::byte> image(plan.layout().image_bytes());
    std::vector<codec::Digest> digests(plan.chunk_count());
    const CaptureInput input = state->input();
    for (int run = 0; run < 2; ++run) {
      const uint64_t before = testing::allocations_of_all_threads.load();
      const absl::Status status = plan.Run(input, image, digests, *crew);
      const uint64_t after = testing::allocations_of_all_threads.load();
      EXPECT_EQ(status, absl::OkStatus());
      EXPECT_EQ(after, before) << "round " << round << " run " << run;
    }
  }
}

TEST(CaptureAllocationTest, TheCountingCounts) {
  const uint64_t before = testing::allocations_of_all_threads.load();
  const auto number = std::make_unique<uint64_t>(before);
  EXPECT_GT(testing::allocations_of_all_threads.load(), before);
}

}  // namespace
}  // namespace neve::capture
