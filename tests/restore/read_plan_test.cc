// Plans are checked against what they promise: every byte of every range in exactly one segment, none beyond its chunk.
#include "restore/read_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace neve::restore {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Range Contiguous(uint64_t offset, uint64_t bytes, std::byte* target = nullptr) {
  return {.offset = offset, .bytes = bytes, .target = target};
}

absl::StatusOr<ReadPlan> Build(const std::vector<Range>& ranges, uint64_t image_bytes, uint64_t chunk_bytes) {
  return ReadPlan::Build(ranges, image_bytes, chunk_bytes);
}

void ExpectCovers(const ReadPlan& plan, const std::vector<Range>& ranges) {
  std::vector<std::vector<int>> seen(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) seen[i].resize(ranges[i].bytes);
  int64_t previous = -1;
  for (const ChunkPlan& chunk : plan.chunks()) {
    ASSERT_GT(static_cast<int64_t>(chunk.chunk), previous);
    previous = static_cast<int64_t>(chunk.chunk);
    ASSERT_GT(chunk.count, 0u);
    uint64_t end = chunk.chunk * plan.chunk_bytes();
    for (const Segment& segment : plan.SegmentsOf(chunk)) {
      ASSERT_GT(segment.bytes, 0u);
      ASSERT_GE(segment.offset, end);
      end = segment.offset + segment.bytes;
      ASSERT_EQ(segment.offset, ranges[segment.range].offset + segment.range_offset);
      for (uint64_t i = 0; i < segment.bytes; ++i) ++seen[segment.range][segment.range_offset + i];
    }
    ASSERT_LE(end, chunk.chunk * plan.chunk_bytes() + plan.ChunkSize(chunk.chunk));
  }
  for (const auto& counts : seen)
    ASSERT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
}

TEST(ReadPlanTest, NoRangesNeedNoChunks) {
  EXPECT_THAT(Build({}, 1000, 100)->chunks(), IsEmpty());
  EXPECT_THAT(Build({Contiguous(5, 0), Contiguous(5000, 0)}, 1000, 100)->chunks(), IsEmpty());
}

TEST(ReadPlanTest, ARangeIsCutAtChunkBorders) {
  const std::vector<Range> ranges = {Contiguous(150, 200)};
  const auto plan = Build(ranges, 1000, 100);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->chunks().size(), 3u);
  EXPECT_EQ(plan->chunks()[0].chunk, 1u);
  EXPECT_EQ(plan->SegmentsOf(plan->chunks()[1])[0].bytes, 100u);
  EXPECT_EQ(plan->SegmentsOf(plan->chunks()[2])[0].range_offset, 150u);
  ExpectCovers(*plan, ranges);
}

TEST(ReadPlanTest, RangesOfOneChunkShareIt) {
  const std::vector<Range> ranges = {Contiguous(60, 10), Contiguous(0, 10), Contiguous(10, 50)};
  const auto plan = Build(ranges, 1000, 100);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->chunks().size(), 1u);
  EXPECT_EQ(plan->chunks()[0].count, 3u);
  EXPECT_EQ(plan->SegmentsOf(plan->chunks()[0])[0].range, 1u);
  ExpectCovers(*plan, ranges);
}

TEST(ReadPlanTest, TheLastChunkIsAsShortAsTheImage) {
  const auto plan = Build({Contiguous(240, 10)}, 250, 100);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ChunkSize(0), 100u);
  EXPECT_EQ(plan->ChunkSize(2), 50u);
}

TEST(ReadPlanTest, ARangeThatLeavesTheImageIsDamaged) {
  for (const Range& range :
       {Contiguous(990, 11), Contiguous(1001, 1), Contiguous(~uint64_t{0}, 2), Contiguous(1, ~uint64_t{0})}) {
    const auto plan = Build({range}, 1000, 100);
    EXPECT_TRUE(IsDamaged(plan.status())) << plan.status();
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr("an image of 1000 bytes"));
  }
  EXPECT_TRUE(Build({Contiguous(990, 10)}, 1000, 100).ok());
}

TEST(ReadPlanTest, RangesThatOverlapAreInvalid) {
  const auto plan = Build({Contiguous(100, 50), Contiguous(20, 81)}, 1000, 100);
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("image byte 100"));
  EXPECT_TRUE(Build({Contiguous(100, 50), Contiguous(20, 80)}, 1000, 100).ok());
}

TEST(ReadPlanTest, AStridedTargetOfAnotherSizeIsInvalid) {
  Range range = Contiguous(0, 64);
  range.strided = std::make_shared<tensor::StridedCopy>(std::vector<int64_t>{2, 4}, std::vector<int64_t>{1, 2}, 4);
  range.item_bytes = 4;
  EXPECT_TRUE(absl::IsInvalidArgument(Build({range}, 1000, 100).status()));
}

TEST(ReadPlanTest, AChunkSizeOfZeroIsOurOwnFault) {
  EXPECT_EQ(Build({}, 1000, 0).status().code(), absl::StatusCode::kInternal);
}

TEST(ReadPlanTest, ElementsCutByChunkBordersAreStagedAndScatteredAtTheEnd) {
  // 3x5 floats, transposed in memory; at offset 2 every chunk border of 64 cuts an element.
  std::vector<float> target(15, -1);
  Range range = Contiguous(2, 60, reinterpret_cast<std::byte*>(target.data()));
  range.strided = std::make_shared<tensor::StridedCopy>(std::vector<int64_t>{3, 5}, std::vector<int64_t>{1, 3}, 4);
  range.item_bytes = 4;
  std::vector<float> logical(15);
  std::iota(logical.begin(), logical.end(), 0.0f);
  std::vector<std::byte> image(128);
  std::memcpy(image.data() + 2, logical.data(), 60);
  const auto plan = Build({range}, image.size(), 64);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->range(0).strided, nullptr);
  for (const ChunkPlan& chunk : plan->chunks()) {
    for (const Segment& segment : plan->SegmentsOf(chunk)) {
      std::memcpy(plan->range(0).target + segment.range_offset, image.data() + segment.offset, segment.bytes);
    }
  }
  EXPECT_EQ(target[0], -1);  // not touched before the end
  plan->FinishStaged();
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 5; ++column) EXPECT_EQ(target[row + 3 * column], logical[row * 5 + column]);
  }
}

TEST(ReadPlanTest, AlignedStridedRangesAreNotStaged) {
  std::vector<float> target(15);
  Range range = Contiguous(4, 60, reinterpret_cast<std::byte*>(target.data()));
  range.strided = std::make_shared<tensor::StridedCopy>(std::vector<int64_t>{3, 5}, std::vector<int64_t>{1, 3}, 4);
  range.item_bytes = 4;
  const auto plan = Build({range}, 128, 64);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->range(0).strided, range.strided);
  for (const ChunkPlan& chunk : plan->chunks()) {
    for (const Segment& segment : plan->SegmentsOf(chunk)) EXPECT_EQ(segment.range_offset % 4, 0u);
  }
}

TEST(ReadPlanTest, RandomRangesAreCoveredExactlyOnce) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const uint64_t image_bytes = random() % 3000, chunk_bytes = 1 + random() % 400;
    std::vector<Range> ranges;
    for (uint64_t at = random() % 50; at < image_bytes; at += random() % 200) {
      const uint64_t bytes = std::min<uint64_t>(random() % 500, image_bytes - at);
      ranges.push_back(Contiguous(at, bytes));
      at += bytes;
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    const auto plan = Build(ranges, image_bytes, chunk_bytes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_NO_FATAL_FAILURE(ExpectCovers(*plan, ranges));
  }
}

}  // namespace
}  // namespace neve::restore
