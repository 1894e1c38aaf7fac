#include "format/name_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace neve::format {
namespace {

std::vector<uint32_t> Expected(const std::vector<std::string_view>& names) {
  std::vector<uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return names[a] < names[b]; });
  return order;
}

void Check(const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  ASSERT_EQ(NameOrder(views), Expected(views));
}

TEST(NameOrderTest, RandomNamesOfFewLettersAreInOrder) {
  constexpr uint64_t kSeed = 8;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> names(random() % 500);
    for (std::string& name : names) {
      for (uint64_t n = random() % 30; n > 0; --n) name += std::string_view("\0ab\xff", 4)[random() % (1 + round % 4)];
    }
    Check(names);
  }
}

TEST(NameOrderTest, LongCommonBeginningsNeitherRecurseForeverNorMixUp) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back(std::string(20'000, 'x') + std::to_string(i * 7 % 100));
  Check(names);
}

TEST(NameOrderTest, EqualNamesKeepTheirOrder) {
  Check(std::vector<std::string>(100, "the same long name for all of them"));
}

TEST(NameOrderTest, NoNamesAreInOrder) { Check({}); }

}  // namespace
}  // namespace neve::format
