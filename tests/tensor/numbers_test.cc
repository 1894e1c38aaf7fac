#include "tensor/numbers.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace neve::tensor {
namespace {

template <typename T>
std::span<const std::byte> BytesOf(const std::vector<T>& items) {
  return std::as_bytes(std::span(items));
}
template <typename T>
NumberSummary Summary(DType dtype, const std::vector<T>& items) {
  NumberSummary summary;
  summary.Add(dtype, BytesOf(items));
  return summary;
}
template <typename T>
NumberDifference Differences(DType dtype, const std::vector<T>& a, const std::vector<T>& b) {
  NumberDifference difference;
  difference.Add(dtype, 0, BytesOf(a), BytesOf(b));
  return difference;
}

TEST(NumberSummaryTest, FiniteNumbersAreMeasuredTheOthersCounted) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const NumberSummary summary = Summary<float>(DType::kF32, {1, -3, nan, inf, -inf, 0, -0.0f});
  EXPECT_EQ(summary.count(), 7u);
  EXPECT_EQ(summary.nan(), 1u);
  EXPECT_EQ(summary.inf(), 2u);
  EXPECT_EQ(summary.zeros(), 2u);
  EXPECT_EQ(summary.min(), -3);
  EXPECT_EQ(summary.max(), 1);
  EXPECT_EQ(summary.mean(), -0.5L);
  EXPECT_NEAR(static_cast<double>(summary.Deviation()), std::sqrt(9.0 / 4), 1e-15);
}

TEST(NumberSummaryTest, NothingAtAll) {
  EXPECT_EQ(Summary<float>(DType::kF32, {}).count(), 0u);
  EXPECT_EQ(Summary<float>(DType::kF32, {}).Deviation(), 0);
}

TEST(NumberSummaryTest, PartsMergeToTheWhole) {
  std::vector<double> items(10'007);
  for (size_t i = 0; i < items.size(); ++i) items[i] = 1e6 + std::sin(static_cast<double>(i));
  const NumberSummary whole = Summary(DType::kF64, items);
  NumberSummary merged;
  for (size_t begin = 0; begin < items.size(); begin += 3001) {
    NumberSummary part;
    part.Add(DType::kF64, BytesOf(items).subspan(8 * begin, 8 * std::min<size_t>(3001, items.size() - begin)));
    merged.Merge(part);
  }
  EXPECT_EQ(merged.count(), whole.count());
  EXPECT_EQ(merged.min(), whole.min());
  EXPECT_NEAR(static_cast<double>(merged.mean() - whole.mean()), 0, 1e-9);
  EXPECT_NEAR(static_cast<double>(merged.Deviation() / whole.Deviation()), 1, 1e-12);
}

TEST(NumberSummaryTest, WholeNumbersOf64BitsAreExact) {
  const NumberSummary summary = Summary<uint64_t>(DType::kU64, {~uint64_t{0}, ~uint64_t{0} - 1});
  EXPECT_EQ(static_cast<uint64_t>(summary.max()), ~uint64_t{0});
  EXPECT_EQ(static_cast<uint64_t>(summary.min()), ~uint64_t{0} - 1);
  EXPECT_EQ(Summary<int64_t>(DType::kI64, {INT64_MIN}).min(), static_cast<long double>(INT64_MIN));
}

TEST(NumberSummaryTest, TheGreatestDoublesDoNotOverflow) {
  const double most = std::numeric_limits<double>::max();
  const NumberSummary summary = Summary<double>(DType::kF64, {most, most, -most, -most});
  EXPECT_EQ(summary.mean(), 0);
  EXPECT_EQ(static_cast<double>(summary.Deviation()), most);
}

TEST(NumberSummaryTest, ScalesHaveNoZeroAndOneNaN) {
  const NumberSummary summary = Summary<uint8_t>(DType::kF8E8M0, {0, 127, 254, 255});
  EXPECT_EQ(summary.nan(), 1u);
  EXPECT_EQ(summary.zeros(), 0u);
  EXPECT_EQ(static_cast<double>(summary.min()), std::ldexp(1.0, -127));
  EXPECT_EQ(static_cast<double>(summary.max()), std::ldexp(1.0, 127));
}

TEST(NumberSummaryTest, APackedPairIsTwoValues) {
  const NumberSummary summary = Summary<uint8_t>(DType::kF4E2M1x2, {0x70, 0xF2});
  EXPECT_EQ(summary.count(), 4u);
  EXPECT_EQ(summary.zeros(), 1u);
  EXPECT_EQ(summary.min(), -6);
  EXPECT_EQ(summary.max(), 6);
  EXPECT_EQ(summary.mean(), 0.25L);   // 0, 6, 1, -6
}

TEST(NumberSummaryTest, ComplexNumbersCountByTheirMagnitude) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const NumberSummary summary = Summary<float>(DType::kC64, {3, 4, 0, 0, nan, inf, inf, 1});
  EXPECT_EQ(summary.max(), 5);
  EXPECT_EQ(summary.zeros(), 1u);
  EXPECT_EQ(summary.nan(), 1u);
  EXPECT_EQ(summary.inf(), 1u);
}

TEST(NumberDifferenceTest, EqualBitsAreEqualWhateverTheyMean) {
  const float nan = std::bit_cast<float>(0x7fc00001u);
  EXPECT_EQ(Differences<float>(DType::kF32, {nan, 1}, {nan, 1}).count(), 0u);
  EXPECT_EQ(Differences<float>(DType::kF32, {0.0f}, {-0.0f}).count(), 1u);
}

TEST(NumberDifferenceTest, TheFirstTheCountAndTheGreatest) {
  std::vector<float> a(5000, 1), b = a;
  b[1500] = 3;
  b[4999] = -9;
  b[2000] = std::numeric_limits<float>::infinity();
  const NumberDifference difference = Differences(DType::kF32, a, b);
  EXPECT_EQ(difference.count(), 3u);
  EXPECT_EQ(difference.first(), 1500u);
  EXPECT_EQ(difference.max_abs(), 10);
  EXPECT_EQ(difference.not_finite(), 1u);
}

TEST(NumberDifferenceTest, OneValueOfAPackedPair) {
  const NumberDifference difference = Differences<uint8_t>(DType::kF4E2M1x2, {0x11, 0x22}, {0x11, 0x72});
  EXPECT_EQ(difference.count(), 1u);
  EXPECT_EQ(difference.first(), 3u);
  EXPECT_EQ(difference.max_abs(), 5);
}

TEST(NumberDifferenceTest, PartsMergeToTheWhole) {
  const std::vector<int32_t> a = {1, 2, 3, 4}, b = {1, 5, 3, -4};
  NumberDifference first, second;
  first.Add(DType::kI32, 0, BytesOf(a).first(8), BytesOf(b).first(8));
  second.Add(DType::kI32, 2, BytesOf(a).subspan(8), BytesOf(b).subspan(8));
  second.Merge(first);
  EXPECT_EQ(second.count(), 2u);
  EXPECT_EQ(second.first(), 1u);
  EXPECT_EQ(second.max_abs(), 8);
}

}  // namespace
}  // namespace neve::tensor
