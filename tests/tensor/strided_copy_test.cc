#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "tensor/view.h"

namespace neve::tensor {
namespace {

struct View {
  Dims shape, strides;
  uint64_t item_bytes;
  uint64_t span() const { return SpanBytes(shape, strides, item_bytes); }
  uint64_t logical() const { return *ElementCount(shape) * item_bytes; }
};

std::vector<std::byte> RandomBytes(std::mt19937_64& random, uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Offsets in memory of the elements in logical order, in bytes: the definition, with nothing clever.
std::vector<uint64_t> Offsets(const View& view) {
  std::vector<uint64_t> offsets = {0};
  for (size_t d = 0; d < view.shape.size(); ++d) {
    std::vector<uint64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(view.shape[d]));
    for (const uint64_t offset : offsets) {
      for (int64_t i = 0; i < view.shape[d]; ++i)
        next.push_back(offset + static_cast<uint64_t>(i * view.strides[d]) * view.item_bytes);
    }
    offsets = std::move(next);
  }
  return offsets;
}

std::vector<std::byte> NaiveGather(const View& view, const std::vector<std::byte>& memory) {
  std::vector<std::byte> out;
  for (const uint64_t offset : Offsets(view)) {
    out.insert(out.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset),
               memory.begin() + static_cast<std::ptrdiff_t>(offset + view.item_bytes));
  }
  return out;
}

// Checks Gather and Scatter of one view over [begin, end); bytes around the targets must stay as they were.
void CheckRange(const View& view, uint64_t begin, uint64_t end, std::mt19937_64& random) {
  SCOPED_TRACE(testing::Message() << "range [" << begin << ", " << end << ")");
  constexpr uint64_t kGuard = 64;
  const StridedCopy copy(view.shape, view.strides, view.item_bytes);
  ASSERT_EQ(copy.logical_bytes(), view.logical());
  const std::vector<std::byte> memory = RandomBytes(random, view.span());
  const std::vector<std::byte> expected = NaiveGather(view, memory);

  std::vector<std::byte> target(end - begin + 2 * kGuard, std::byte{0x5a});
  copy.Gather(memory.data(), begin, end, target.data() + kGuard);
  ASSERT_TRUE(std::equal(target.begin() + kGuard, target.end() - kGuard, expected.begin() + static_cast<std::ptrdiff_t>(begin)));
  const auto untouched = [](std::byte b) { return b == std::byte{0x5a}; };
  ASSERT_TRUE(std::all_of(target.begin(), target.begin() + kGuard, untouched));
  ASSERT_TRUE(std::all_of(target.end() - kGuard, target.end(), untouched));

  const std::vector<std::byte> source = RandomBytes(random, end - begin);
  std::vector<std::byte> scattered = memory, wanted = memory;
  const std::vector<uint64_t> offsets = Offsets(view);
  for (uint64_t i = begin / view.item_bytes; i < end / view.item_bytes; ++i) {
    std::memcpy(wanted.data() + offsets[i], source.data() + i * view.item_bytes - begin, view.item_bytes);
  }
  copy.Scatter(scattered.data(), begin, end, source.data());
  ASSERT_EQ(scattered, wanted);
}

// A view without overlap: extents in random memory order, with gaps now and then; expanded where `expand`.
View RandomView(std::mt19937_64& random, bool expand) {
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  View view;
  view.item_bytes = uint64_t{1} << below(5);
  const size_t rank = static_cast<size_t>(below(6));
  int64_t elements = 1;
  for (size_t i = 0; i < rank; ++i) {
    int64_t extent = 1 + below(random() % 4 == 0 ? 90 : 7);
    if (elements * extent > 40'000) extent = 1;
    elements *= extent;
    view.shape.push_back(extent);
  }
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (random() % 4 != 0) std::shuffle(order.begin(), order.end(), random);
  view.strides.resize(rank);
  int64_t stride = random() % 4 == 0 ? 1 + below(3) : 1;
  for (size_t i = rank; i-- > 0;) {
    view.strides[order[i]] = stride;
    stride *= view.shape[order[i]];
    if (random() % 4 == 0) stride += below(5);
    if (expand && random() % 3 == 0) view.strides[order[i]] = 0;
  }
  return view;
}

void CheckRandomViews(uint64_t seed, int count, bool expand) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < count; ++i) {
    const View view = RandomView(random, expand);
    SCOPED_TRACE(testing::Message() << "view " << i << " shape " << testing::PrintToString(view.shape) << " strides "
                                    << testing::PrintToString(view.strides) << " item " << view.item_bytes);
    const uint64_t items = view.logical() / view.item_bytes;
    CheckRange(view, 0, view.logical(), random);
    for (int range = 0; range < 4; ++range) {
      uint64_t begin = random() % (items + 1), end = random() % (items + 1);
      if (begin > end) std::swap(begin, end);
      CheckRange(view, begin * view.item_bytes, end * view.item_bytes, random);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(StridedCopyTest, RandomViewsEqualTheNaiveReference) { CheckRandomViews(20240607, 400, false); }

TEST(StridedCopyTest, RandomExpandedViewsEqualTheNaiveReference) { CheckRandomViews(77, 150, true); }

TEST(StridedCopyTest, EveryRangeOfASmallTransposeIsRight) {
  std::mt19937_64 random(1);
  const View view = {{3, 5, 2}, {2, 6, 1}, 2};
  for (uint64_t begin = 0; begin <= 30; ++begin) {
    for (uint64_t end = begin; end <= 30; ++end) CheckRange(view, 2 * begin, 2 * end, random);
  }
}

TEST(StridedCopyTest, TransposesOfEveryItemSizeAndOddEdgesAreRight) {
  std::mt19937_64 random(2);
  for (const uint64_t item : {1, 2, 4, 8, 16}) {
    for (const int64_t rows : {1, 15, 16, 64, 67, 130}) {
      for (const int64_t columns : {1, 7, 64, 65, 133}) {
        SCOPED_TRACE(testing::Message() << item << " " << rows << "x" << columns);
        const View view = {{columns, rows}, {1, columns}, item};
        CheckRange(view, 0, view.logical(), random);
      }
    }
  }
}

TEST(StridedCopyTest, PT_25_ChannelsLastIsGatheredInLogicalOrder) {
  std::mt19937_64 random(3);
  const View view = {{4, 3, 3, 3}, {27, 1, 9, 3}, 4};
  CheckRange(view, 0, view.logical(), random);
}

TEST(StridedCopyTest, OddItemSizesAreCopiedToo) {
  std::mt19937_64 random(4);
  const View view = {{5, 4, 3}, {1, 15, 5}, 12};
  CheckRange(view, 0, view.logical(), random);
  CheckRange(view, 7 * 12, 44 * 12, random);
}

TEST(StridedCopyTest, EmptyViewsAndEmptyRangesCopyNothing) {
  const StridedCopy empty(Dims{2, 0}, Dims{1, 2}, 4);
  EXPECT_EQ(empty.logical_bytes(), 0u);
  empty.Gather(nullptr, 0, 0, nullptr);
  const StridedCopy full(Dims{2, 3}, Dims{1, 2}, 4);
  full.Gather(nullptr, 8, 8, nullptr);
}

TEST(StridedCopyTest, GathersARepeatedElement) {
  const float one = 1.5f;
  std::vector<float> out(12, 0.0f);
  StridedCopy(Dims{3, 4}, Dims{0, 0}, 4).Gather(reinterpret_cast<const std::byte*>(&one), 0, 48,
                                                 reinterpret_cast<std::byte*>(out.data()));
  EXPECT_EQ(out, std::vector<float>(12, 1.5f));
}

}  // namespace
}  // namespace neve::tensor
