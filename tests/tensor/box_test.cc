#include "tensor/box.h"

#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neve::tensor {
namespace {

using ::testing::ElementsAre;

TEST(BoxIndexTest, MeetingBoxesAreThoseThatShareAnElement) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  for (int round = 0; round < 400; ++round) {
    const size_t rank = random() % 4;
    const auto draw = [&](Dims* offset, Dims* extent) {
      for (size_t i = 0; i < rank; ++i) {
        offset->push_back(below(12));
        extent->push_back(below(6));
      }
    };
    BoxIndex index(rank);
    std::vector<std::pair<Dims, Dims>> boxes(random() % 30);
    for (auto& [offset, extent] : boxes) {
      draw(&offset, &extent);
      index.Add(offset, extent);
    }
    index.Sort();
    ASSERT_EQ(index.size(), boxes.size());
    for (int query = 0; query < 10; ++query) {
      Dims offset, extent, common, size;
      draw(&offset, &extent);
      std::set<size_t> expected, found;
      for (size_t i = 0; i < boxes.size(); ++i) {
        if (Intersect(offset, extent, boxes[i].first, boxes[i].second, &common, &size)) expected.insert(i);
      }
      index.ForEachMeeting(offset, extent, [&](size_t box) { return found.insert(box).second; });
      ASSERT_EQ(found, expected) << "rank " << rank;
    }
  }
}

TEST(BoxIndexTest, ASearchEndsWhenItIsTold) {
  BoxIndex index(1);
  for (int64_t i = 0; i < 10; ++i) index.Add(Dims{i}, Dims{5});
  index.Sort();
  int seen = 0;
  index.ForEachMeeting(Dims{0}, Dims{100}, [&](size_t) { return ++seen < 3; });
  EXPECT_EQ(seen, 3);
}

TEST(BoxTest, WhatTwoBoxesShareIsABox) {
  Dims offset, extent;
  ASSERT_TRUE(Intersect(Dims{2, 0}, Dims{4, 3}, Dims{0, 1}, Dims{3, 9}, &offset, &extent));
  EXPECT_THAT(offset, ElementsAre(2, 1));
  EXPECT_THAT(extent, ElementsAre(1, 2));
  EXPECT_FALSE(Intersect(Dims{2, 0}, Dims{4, 3}, Dims{6, 0}, Dims{1, 3}, &offset, &extent));
  EXPECT_TRUE(Intersect(Dims{}, Dims{}, Dims{}, Dims{}, &offset, &extent));
}

// Boxes of every kind, cut into stretches of bytes anywhere, against a copy element by element.
TEST(BoxCopyTest, ABoxComesOutOfItsBytesWhereverTheyAreCut) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr uint64_t kItems[] = {1, 2, 4, 8, 16};
  for (int round = 0; round < 2000; ++round) {
    const size_t rank = random() % 5;
    const uint64_t item = kItems[random() % 5];
    Dims whole, offset, extents, source_strides(rank), target_strides(rank);
    for (size_t i = 0; i < rank; ++i) {
      whole.push_back(static_cast<int64_t>(1 + random() % 5));
      offset.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(whole[i])));
      extents.push_back(static_cast<int64_t>(1 + random() % static_cast<uint64_t>(whole[i] - offset[i])));
    }
    // The source is row-major, but for dimensions that it holds once.
    std::vector<bool> expanded(rank);
    int64_t stride = static_cast<int64_t>(item), start = 0;
    for (size_t i = rank; i-- > 0;) {
      expanded[i] = random() % 6 == 0;
      source_strides[i] = expanded[i] ? 0 : stride;
      start += offset[i] * source_strides[i];
      if (!expanded[i]) stride *= whole[i];
    }
    // The target is in any order, with a gap now and then.
    std::vector<size_t> order(rank);
    for (size_t i = 0; i < rank; ++i) order[i] = i;
    if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    int64_t step = static_cast<int64_t>(item);
    for (size_t i = rank; i-- > 0;) {
      target_strides[order[i]] = step;
      step *= extents[order[i]] + static_cast<int64_t>(random() % 3 == 0);
    }
    std::vector<std::byte> source(static_cast<size_t>(stride));
    for (std::byte& byte : source) byte = static_cast<std::byte>(random());
    const auto size = static_cast<size_t>(step);
    std::vector<std::byte> expected(size, std::byte{0xee}), target(size, std::byte{0xee});
    std::set<size_t> touched;
    Dims at(rank, 0);
    for (bool more = true; more;) {
      int64_t from = start, to = 0;
      for (size_t i = 0; i < rank; ++i) {
        from += at[i] * source_strides[i];
        to += at[i] * target_strides[i];
      }
      for (uint64_t b = 0; b < item; ++b) {
        expected[static_cast<size_t>(to) + b] = source[static_cast<size_t>(from) + b];
        touched.insert(static_cast<size_t>(from - start) + b);
      }
      more = false;
      for (size_t i = rank; i-- > 0 && !more;) {
        more = ++at[i] < extents[i];
        if (!more) at[i] = 0;
      }
    }
    const BoxCopy copy(extents, source_strides, target_strides, item);
    ASSERT_EQ(copy.span_bytes(), *touched.rbegin() + 1);
    uint64_t position = 0, counted = 0;
    while (position < copy.span_bytes()) {
      const uint64_t end = std::min(copy.span_bytes(), position + 1 + random() % 40);
      // From memory of its own, so that a read beyond the stretch is seen by the sanitizers.
      const std::vector<std::byte> stretch(source.begin() + start + static_cast<int64_t>(position),
                                           source.begin() + start + static_cast<int64_t>(end));
      copy.Scatter(target.data(), position, end, stretch.data());
      const uint64_t here = copy.BytesIn(position, end);
      ASSERT_EQ(here, static_cast<uint64_t>(std::distance(touched.lower_bound(position), touched.lower_bound(end))));
      counted += here;
      position = end;
    }
    ASSERT_EQ(counted, touched.size());
    ASSERT_EQ(target, expected) << "rank " << rank;
  }
}

TEST(LinearBoxesTest, TheyAreTheElementsInTheirOrder) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    Dims shape;
    for (uint64_t rank = random() % 5; rank > 0; --rank) shape.push_back(static_cast<int64_t>(1 + random() % 4));
    const uint64_t all = *ElementCount(shape), first = random() % all, count = random() % (all - first + 1);
    const Dims strides = ContiguousStrides(shape);
    uint64_t next = first;
    for (const LinearBox& box : LinearBoxes(shape, first, count)) {
      uint64_t begin = 0;
      for (size_t i = 0; i < shape.size(); ++i) {
        begin += static_cast<uint64_t>(box.offset[i] * strides[i]);
        ASSERT_LE(box.offset[i] + box.extent[i], shape[i]);
      }
      ASSERT_EQ(begin, next);
      ASSERT_EQ(box.first, next);
      ASSERT_NE(*Classify(box.extent, strides), Density::kOverlapping);
      ASSERT_EQ(SpanBytes(box.extent, strides, 1), *ElementCount(box.extent)) << "a box in the middle has holes";
      next += *ElementCount(box.extent);
    }
    ASSERT_EQ(next, first + count);
  }
  EXPECT_TRUE(LinearBoxes(Dims{0, 4}, 0, 0).empty());
}

TEST(BoxCopyTest, RunsAreAsLongAsBothSidesAllow) {
  EXPECT_TRUE(BoxCopy(Dims{2, 3, 4}, Dims{48, 16, 4}, Dims{48, 16, 4}, 4).contiguous());
  EXPECT_TRUE(BoxCopy(Dims{1, 3, 4}, Dims{480, 16, 4}, Dims{0, 16, 4}, 4).contiguous());
  EXPECT_FALSE(BoxCopy(Dims{2, 3, 4}, Dims{96, 16, 4}, Dims{48, 16, 4}, 4).contiguous());
  EXPECT_TRUE(BoxCopy(Dims{}, Dims{}, Dims{}, 8).contiguous());
}

}  // namespace
}  // namespace neve::tensor
