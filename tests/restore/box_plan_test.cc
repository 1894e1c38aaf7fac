#include "restore/box_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neve::restore {
namespace {

using ::testing::ElementsAre;

// [8, 4] int8, rows 0-3 on image 0 and 1, rows 4-7 on image 1 and 2.
format::GlobalEntry TwoHalves() {
  format::GlobalEntry entry;
  entry.cut = true;
  entry.dtype = DType::kI8;
  entry.shape = {8, 4};
  entry.boxes = tensor::BoxIndex(2);
  entry.boxes.Add(tensor::Dims{0, 0}, tensor::Dims{4, 4});
  entry.boxes.Add(tensor::Dims{4, 0}, tensor::Dims{4, 4});
  entry.boxes.Sort();
  entry.first_copy = {0, 2, 4};
  entry.copies = {{0, 100}, {1, 200}, {1, 300}, {2, 400}};
  return entry;
}

BoxWant Rows(std::byte* target, int64_t first, int64_t count) { return {0, {first, 0}, {count, 4}, target, {4, 1}}; }

std::vector<std::pair<uint32_t, uint64_t>> Sources(const std::vector<BoxPart>& parts) {
  std::vector<std::pair<uint32_t, uint64_t>> sources;
  for (const BoxPart& part : parts) sources.emplace_back(part.image, part.range.offset);
  return sources;
}

TEST(BoxPlanTest, EachPartComesFromTheNearestCopy) {
  const std::vector entries = {TwoHalves()};
  std::vector<std::byte> target(16);
  const std::vector wants = {Rows(target.data(), 2, 4)};
  const auto near_one = PlanBoxes(entries, wants, std::vector<uint32_t>{5, 0, 5});
  ASSERT_TRUE(near_one.ok()) << near_one.status();
  EXPECT_THAT(Sources(*near_one), ElementsAre(std::pair(1u, 208u), std::pair(1u, 300u)));
  EXPECT_EQ(near_one->at(0).range.bytes, 8u);
  EXPECT_EQ(near_one->at(0).range.box, nullptr) << "rows are contiguous on both sides";
  EXPECT_EQ(near_one->at(1).range.target, target.data() + 8);
  const auto far_one = PlanBoxes(entries, wants, std::vector<uint32_t>{5, 9, 5});
  EXPECT_THAT(Sources(*far_one), ElementsAre(std::pair(0u, 108u), std::pair(2u, 400u)));
}

TEST(BoxPlanTest, APartThatFailedComesFromAnotherCopyUntilNoneIsLeft) {
  const std::vector entries = {TwoHalves()};
  std::vector<std::byte> target(16);
  const std::vector wants = {Rows(target.data(), 4, 4)};
  std::vector<uint32_t> distances = {0, 0, 1};
  auto parts = PlanBoxes(entries, wants, distances);
  ASSERT_EQ(parts->at(0).image, 1u);
  distances[1] = kUnusable;
  ASSERT_TRUE(TakeOtherCopy(entries, wants, distances, &parts->at(0)).ok());
  EXPECT_EQ(parts->at(0).image, 2u);
  EXPECT_EQ(parts->at(0).range.offset, 400u);
  distances[2] = kUnusable;
  EXPECT_TRUE(absl::IsNotFound(TakeOtherCopy(entries, wants, distances, &parts->at(0))));
  EXPECT_TRUE(absl::IsNotFound(PlanBoxes(entries, wants, distances).status()));
}

TEST(BoxPlanTest, BytesWantedTwiceAreOneRangeAndABox) {
  const std::vector entries = {TwoHalves()};
  std::vector<std::byte> a(16), b(16);
  const std::vector wants = {Rows(a.data(), 0, 4), Rows(b.data(), 1, 2)};
  const auto parts = PlanBoxes(entries, wants, std::vector<uint32_t>{0, 1, 1});
  std::vector<const BoxPart*> all;
  for (const BoxPart& part : *parts) all.push_back(&part);
  const std::vector<Range> ranges = RangesOf(all);
  EXPECT_EQ(ranges[0].box, nullptr);
  ASSERT_NE(ranges[1].box, nullptr);
  EXPECT_TRUE(ReadPlan::Build(ranges, 1000, 256).ok());
}

TEST(BoxPlanTest, AWantedElementThatNoBoxHoldsIsOurOwnFault) {
  format::GlobalEntry entry = TwoHalves();
  entry.shape = {9, 4};
  std::vector<std::byte> target(36);
  EXPECT_TRUE(absl::IsInternal(
      PlanBoxes(std::vector{entry}, std::vector{Rows(target.data(), 0, 9)}, std::vector<uint32_t>{0, 0, 0}).status()));
}

}  // namespace
}  // namespace neve::restore
