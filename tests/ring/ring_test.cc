// What a Ring promises, on both engines.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "ring/ring_fixture.h"

namespace neve::ring {
namespace {

TEST_P(RingTest, SaysWhichEngineItIs) { EXPECT_EQ(ring_->engine(), GetParam()); }

TEST_P(RingTest, MovesWholeTransfersAtManySizesAndOffsets) {
  const Bytes source = RandomBytes(9 << 20, 1);
  for (const uint64_t bytes : {1, 511, 512, 4095, 4096, 4097, 65'536, 1'000'003, 9 << 20}) {
    for (const uint64_t offset : {0, 1, 4096, 123'457}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, offset, std::span(source).first(bytes)));
    }
  }
}

TEST_P(RingTest, AnEmptyTransferCompletesWithZero) {
  EXPECT_EQ(Write(file_, 10, {}).value(), 0u);
  EXPECT_EQ(Read(file_, 10, {}).value(), 0u);
}

TEST_P(RingTest, MovesMemoryOfARegisteredRegionAndOfNone) {
  Bytes region = RandomBytes(3 << 20, 2);
  const absl::Status registered = ring_->RegisterRegion(region);
  EXPECT_TRUE(registered.ok()) << registered;
  EXPECT_TRUE(ring_->RegisterRegion(region).ok()) << "the second time is the same region";
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 0, region));
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 77, std::span(region).subspan(4000, 100'000)));
  // Reads into the region too.
  const Bytes other = RandomBytes(1 << 20, 3);
  ASSERT_TRUE(os::WriteAt(file_, 0, other).ok());
  ASSERT_TRUE(Read(file_, 0, std::span(region).subspan(99, other.size())).ok());
  EXPECT_TRUE(std::equal(other.begin(), other.end(), region.begin() + 99));
  // Half in, half out: the allocation is one, the registered part ends in its middle.
  ring_->UnregisterRegion(region);
  EXPECT_TRUE(ring_->RegisterRegion(std::span(region).first(1 << 20)).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 0, std::span(region).subspan((1 << 20) - 1000, 2000)));
  ring_->UnregisterRegion(std::span(region).first(1 << 20));
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 0, region));
}

TEST_P(RingTest, ATransferAcrossTheBorderOfTwoRegisteredBuffersIsWhole) {
  // One buffer of the kernel holds 1 GiB. Few of these pages are ever touched, but all are pinned.
  const uint64_t region_bytes = (uint64_t{1} << 30) + (1 << 20);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const mapped = ::mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::span<std::byte> region(static_cast<std::byte*>(mapped), region_bytes);
  Bytes source = RandomBytes(300'000, 4);
  std::copy(source.begin(), source.end(), region.begin() + (uint64_t{1} << 30) - 100'000);
  // A GiB of zero pages cannot be pinned without making them, so a refusal for want of memory is fine as well.
  const absl::Status registered = ring_->RegisterRegion(region);
  EXPECT_TRUE(registered.ok() || absl::IsResourceExhausted(registered)) << registered;
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 5, region.subspan((uint64_t{1} << 30) - 100'000, source.size())));
  ring_->UnregisterRegion(region);
  ::munmap(mapped, region_bytes);
}

TEST_P(RingTest, NeverHasMoreThanDepthOperationsInTheKernel) {
  for (const int depth : {1, 2, 5}) {
    ring_ = Create(depth);
    const Bytes source = RandomBytes(1 << 16, 5);
    int completed = 0;
    {
      Hooks hooks;
      for (int i = 0; i < 40; ++i) {
        ring_->Write(file_, i << 16, source, [&](absl::StatusOr<uint64_t> result) {
          EXPECT_TRUE(result.ok()) << result.status();
          ++completed;
        });
      }
      EXPECT_EQ(ring_->pending(), 40);
      while (ring_->pending() > 0) ring_->Poll(true);
      EXPECT_LE(hooks.in_kernel_max, depth);
      EXPECT_GE(hooks.in_kernel_max, 1);
    }
    EXPECT_EQ(completed, 40);
  }
}

TEST_P(RingTest, QueuedOperationsBeginInTheOrderOfSubmission) {
  ring_ = Create(1);
  const Bytes source(100);
  Hooks hooks;
  for (int i = 0; i < 20; ++i) ring_->Write(file_, 1000 * i, source, [](absl::StatusOr<uint64_t>) {});
  while (ring_->pending() > 0) ring_->Poll(true);
  ASSERT_EQ(hooks.calls.size(), 20u);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(hooks.calls[i].offset, 1000 * i);
}

TEST_P(RingTest, ACompletionMaySubmit) {
  const Bytes source = RandomBytes(5000, 6);
  int left = 50;
  std::function<void(absl::StatusOr<uint64_t>)> next = [&](absl::StatusOr<uint64_t> result) {
    ASSERT_TRUE(result.ok()) << result.status();
    if (--left > 0) ring_->Write(file_, 5000 * left, source, next);
  };
  ring_->Write(file_, 0, source, next);
  while (left > 0) ring_->Poll(true);
  EXPECT_EQ(ring_->pending(), 0);
}

TEST_P(RingTest, AReadThatMeetsTheEndGivesWhatIsThere) {
  ASSERT_TRUE(Write(file_, 0, RandomBytes(10'000, 7)).ok());
  Bytes target(20'000);
  EXPECT_EQ(Read(file_, 4'000, target).value(), 6'000u);
  EXPECT_EQ(Read(file_, 10'000, target).value(), 0u);
  EXPECT_EQ(Read(file_, 1'000'000, target).value(), 0u);
}

TEST_P(RingTest, OffsetsBeyondFourGiBAreExact) {
  const Bytes source = RandomBytes(70'000, 10);
  for (const uint64_t offset : {(uint64_t{2} << 30) - 100, (uint64_t{4} << 30) - 100, (uint64_t{9} << 30) + 1}) {
    ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, offset, source));
  }
}

TEST_P(RingTest, DirectFilesWork) {
  const os::File file = OpenFile("direct", O_RDWR | O_CREAT | O_DIRECT);
  const uint64_t bytes = 1 << 20;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, 2 * bytes));
  const std::span<std::byte> source(memory, bytes), target(memory + bytes, bytes);
  const Bytes content = RandomBytes(bytes, 11);
  std::copy(content.begin(), content.end(), source.begin());
  EXPECT_EQ(Write(file, 8192, source).value(), bytes);
  EXPECT_TRUE(Fdatasync(file).ok());
  EXPECT_EQ(Read(file, 8192, target).value(), bytes);
  EXPECT_TRUE(std::ranges::equal(target, content));
  {
    // Cut where a device can cut, and continued.
    Hooks hooks;
    hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.shorten_to = 100'000}; };
    EXPECT_EQ(Write(file, 0, source).value(), bytes);
    std::ranges::fill(target, std::byte{0});
    EXPECT_EQ(Read(file, 0, target).value(), bytes);
    EXPECT_TRUE(std::ranges::equal(target, content));
    EXPECT_GT(hooks.calls.size(), 20u);
  }
  // The end of the file lies off alignment: what is there comes back.
  ASSERT_TRUE(os::Ftruncate(file, 100'001).ok());
  EXPECT_EQ(Read(file, 4096, target).value(), 100'001u - 4096);
  std::free(memory);
}

TEST_P(RingTest, WakeBeforePollEndsTheNextPoll) {
  ring_->Wake();
  ring_->Wake();
  EXPECT_EQ(ring_->Poll(true), 0);
  EXPECT_EQ(ring_->Poll(false), 0);
}

TEST_P(RingTest, WakeFromAnotherThreadEndsAPoll) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> said = false;
    std::thread other([&] {
      said = true;
      ring_->Wake();
    });
    while (!said) ring_->Poll(true);
    other.join();
    ring_->Poll(false);
  }
}

TEST_P(RingTest, WakesAreNotLostBesideOperations) {
  const Bytes source = RandomBytes(4096, 12);
  std::atomic<int> messages = 0;
  std::thread other([&] {
    for (int i = 0; i < 2000; ++i) {
      ++messages;
      ring_->Wake();
    }
  });
  int completed = 0, submitted = 0;
  // Ends only if the Wake after the last message is seen.
  while (messages < 2000 || completed < submitted) {
    if (submitted < 500) {
      ++submitted;
      ring_->Write(file_, 0, source, [&](absl::StatusOr<uint64_t>) { ++completed; });
    }
    ring_->Poll(true);
  }
  other.join();
  EXPECT_EQ(completed, submitted);
}

TEST_P(RingTest, PollWithoutWaitingReturnsAtOnce) { EXPECT_EQ(ring_->Poll(false), 0); }

TEST_P(RingTest, TheOwnerMayBeAnotherThreadThanTheCreator) {
  const Bytes source = RandomBytes(4096, 13);
  std::thread owner([&] {
    EXPECT_TRUE(Write(file_, 0, source).ok());
    ring_.reset();
  });
  owner.join();
}

TEST_P(RingTest, TheDestructorWaitsForWhatIsInFlightAndClosesWhatIsQueued) {
  for (int polls = 0; polls < 3; ++polls) {
    ring_ = Create(2);
    const Bytes source = RandomBytes(1 << 20, 14);
    int ok = 0, closed = 0;
    for (int i = 0; i < 12; ++i) {
      ring_->Write(file_, i << 20, source, [&](absl::StatusOr<uint64_t> result) {
        result.ok() ? ++ok : absl::IsFailedPrecondition(result.status()) ? ++closed : 0;
      });
    }
    for (int i = 0; i < polls; ++i) ring_->Poll(false);
    ring_.reset();
    EXPECT_EQ(ok + closed, 12);
  }
}

TEST_P(RingTest, ASubmissionFromTheDestructorIsClosed) {
  absl::Status late;
  Ring* const ring = ring_.get();   // unique_ptr::reset clears the pointer before it destroys
  ring->Fdatasync(file_, [&, ring](absl::StatusOr<uint64_t>) {
    ring->Fdatasync(file_, [&](absl::StatusOr<uint64_t> result) { late = result.status(); });
  });
  ring_.reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
}

TEST_P(RingTest, AForkedChildMayDestroyItsCopyAndCannotUseIt) {
  const Bytes source = RandomBytes(1 << 20, 15);
  std::vector<Outcome> outcomes(6);
  for (int i = 0; i < 6; ++i) ring_->Write(file_, i << 20, source, Into(outcomes[i]));
  ring_->Poll(false);
  EXPECT_EQ(InChild([this] {
    ring_.reset();
    return 0;
  }), 0);
  EXPECT_EQ(InChild([this] {
    Outcome outcome;
    ring_->Write(file_, 0, {}, Into(outcome));
    ring_->Wake();
    while (!outcome.has_value()) ring_->Poll(true);
    ring_.reset();
    return absl::IsFailedPrecondition(outcome->status()) ? 0 : 1;
  }), 0);
  // The parent's goes on.
  for (Outcome& outcome : outcomes) EXPECT_TRUE(Await(outcome).ok());
}

INSTANTIATE_TEST_SUITE_P(Engines, RingTest, ::testing::ValuesIn(Engines()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace neve::ring
