#include "tensor/view.h"

#include <limits>

#include <gtest/gtest.h>

namespace neve::tensor {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

Density ClassOf(const Dims& shape, const Dims& strides) {
  const absl::StatusOr<Density> density = Classify(shape, strides);
  EXPECT_TRUE(density.ok()) << density.status();
  return density.value_or(Density::kOverlapping);
}

TEST(ViewTest, ElementCountOfAScalarIsOne) { EXPECT_EQ(*ElementCount({}), 1u); }

TEST(ViewTest, ElementCountWithAZeroIsZeroWhateverTheRest) {
  EXPECT_EQ(*ElementCount(Dims{kHuge, kHuge, 0}), 0u);
}

TEST(ViewTest, ElementCountRefusesOverflowAndNegativeExtents) {
  EXPECT_EQ(ElementCount(Dims{kHuge, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ElementCount(Dims{int64_t{1} << 31, int64_t{1} << 31, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ElementCount(Dims{3, -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ElementCount(Dims{0, -1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ViewTest, ContiguousStridesAreRowMajor) {
  EXPECT_EQ(ContiguousStrides(Dims{2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(ContiguousStrides(Dims{2, 0, 4}), (Dims{4, 4, 1}));
  EXPECT_EQ(ContiguousStrides(Dims{}), Dims{});
}

TEST(ViewTest, ClassifiesContiguous) {
  EXPECT_EQ(ClassOf({}, {}), Density::kContiguous);
  EXPECT_EQ(ClassOf({2, 3}, {3, 1}), Density::kContiguous);
}

TEST(ViewTest, ExtentsOfOneAndEmptyViewsNeverMatter) {
  EXPECT_EQ(ClassOf({1, 3}, {77, 1}), Density::kContiguous);
  EXPECT_EQ(ClassOf({1}, {-5}), Density::kContiguous);
  EXPECT_EQ(ClassOf({2, 0, 5}, {0, 9, 0}), Density::kContiguous);
}

TEST(ViewTest, PT_25_ClassifiesChannelsLastAndTransposedAsPermuted) {
  EXPECT_EQ(ClassOf({4, 3, 3, 3}, {27, 1, 9, 3}), Density::kPermuted);
  EXPECT_EQ(ClassOf({5, 7}, {1, 5}), Density::kPermuted);
}

TEST(ViewTest, PT_25_ClassifiesExpandedWithDenseOrGappedRest) {
  EXPECT_EQ(ClassOf({1000, 1000}, {0, 0}), Density::kExpanded);
  EXPECT_EQ(ClassOf({4, 3}, {0, 1}), Density::kExpanded);
  EXPECT_EQ(ClassOf({4, 3}, {0, 5}), Density::kExpanded);
}

TEST(ViewTest, ClassifiesGapped) {
  EXPECT_EQ(ClassOf({4}, {2}), Density::kGapped);
  EXPECT_EQ(ClassOf({3, 4}, {10, 1}), Density::kGapped);
  EXPECT_EQ(ClassOf({4, 3}, {1, 10}), Density::kGapped);
}

TEST(ViewTest, ClassifiesOverlapping) {
  EXPECT_EQ(ClassOf({3, 3}, {1, 1}), Density::kOverlapping);          // a sliding window
  EXPECT_EQ(ClassOf({5, 3, 3}, {0, 1, 1}), Density::kOverlapping);    // expanded as well
  EXPECT_EQ(ClassOf({2, 4}, {2, 1}), Density::kOverlapping);
}

TEST(ViewTest, ClassifyRefusesNegativeStridesRanksThatDifferAndReachesThatOverflow) {
  EXPECT_EQ(Classify(Dims{2}, Dims{-1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Classify(Dims{2, 2}, Dims{1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Classify(Dims{3, 3}, Dims{kHuge, 1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Classify(Dims{3, 3, 4}, Dims{kHuge / 2, kHuge / 2, 1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ViewTest, SpanBytesReachesFromTheFirstToPastTheLastElement) {
  EXPECT_EQ(SpanBytes(Dims{}, Dims{}, 8), 8u);
  EXPECT_EQ(SpanBytes(Dims{3, 4}, Dims{10, 1}, 4), (2u * 10 + 3 + 1) * 4);
  EXPECT_EQ(SpanBytes(Dims{1000, 1000}, Dims{0, 0}, 4), 4u);
  EXPECT_EQ(SpanBytes(Dims{3, 0}, Dims{10, 1}, 4), 0u);
}

}  // namespace
}  // namespace neve::tensor
