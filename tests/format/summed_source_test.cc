#include "format/summed_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/codec/crc32.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBegin = 100, kBytes = 10'000;

// A source of 12,000 bytes, of which [100, 10,100) have a checksum; `flipped`: a byte that differs from it.
struct Summed {
  explicit Summed(uint64_t flipped = 0, uint64_t used_offset = kBegin, uint64_t used_bytes = kBytes) : text(12'000, '\0') {
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
    const uint32_t crc = codec::Crc32(0, std::as_bytes(std::span(text)).subspan(kBegin, kBytes));
    if (flipped != 0) text[flipped] ^= 1;
    source = std::make_unique<SummedSource>(MakeMemorySource(text, "file"),
                                            std::vector<SummedRange>{{kBegin, kBytes, crc, used_offset, used_bytes, "w"}});
  }
  absl::Status Read(uint64_t offset, uint64_t bytes) const {
    std::string target(bytes, '\0');
    const absl::Status status = source->Read(offset, std::as_writable_bytes(std::span(target)));
    if (status.ok()) {
      EXPECT_EQ(target, text.substr(offset, bytes));
    }
    return status;
  }
  std::string text;
  std::unique_ptr<SummedSource> source;
};

TEST(SummedSourceTest, AWholeReadIsCompared) {
  EXPECT_TRUE(Summed().Read(0, 12'000).ok());
  const absl::Status status = Summed(5'000).Read(0, 12'000);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("file: the bytes of tensor \"w\" differ from their checksum"));
}

TEST(SummedSourceTest, WhatLiesOutsideHasNoChecksum) {
  const Summed summed(11'000);
  EXPECT_TRUE(summed.Read(0, 12'000).ok());
}

// Overlapping parts in any order: the one that completes the range compares, none before does.
TEST(SummedSourceTest, PartsInAnyOrderAreComparedWhenTheLastIsRead) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const bool damaged = round % 2 == 1;
    const Summed summed(damaged ? kBegin + random() % kBytes : 0);
    std::vector<bool> read(12'000);
    uint64_t left = kBytes;
    absl::Status status;
    while (left > 0) {
      ASSERT_TRUE(status.ok());
      const uint64_t offset = random() % 11'000, bytes = std::min<uint64_t>(random() % 3'000, 12'000 - offset);
      for (uint64_t i = offset; i < offset + bytes; ++i) {
        if (i >= kBegin && i < kBegin + kBytes && !read[i]) --left;
        read[i] = true;
      }
      status = summed.Read(offset, bytes);
    }
    EXPECT_EQ(absl::IsDataLoss(status), damaged) << status.ToString();
    EXPECT_EQ(summed.Read(kBegin, 1).ok(), !damaged);
    EXPECT_EQ(summed.source->CheckRead().ok(), !damaged);
  }
}

TEST(SummedSourceTest, TheRestOfARangeIsSummedWhenAllThatIsUsedWasRead) {
  EXPECT_TRUE(Summed(0, 2'000, 1'000).Read(2'000, 1'000).ok());
  EXPECT_TRUE(absl::IsDataLoss(Summed(9'000, 2'000, 1'000).Read(2'000, 1'000)));
}

TEST(SummedSourceTest, CheckReadComparesWhatWasReadInPart) {
  const Summed unread(5'000);
  EXPECT_TRUE(unread.source->CheckRead().ok());
  const Summed summed(5'000);
  ASSERT_TRUE(summed.Read(1'000, 10).ok());
  EXPECT_TRUE(absl::IsDataLoss(summed.source->CheckRead()));
  EXPECT_TRUE(absl::IsDataLoss(summed.Read(1'000, 10)));
}

TEST(SummedSourceTest, AnErrorOfTheSourceIsPassedOn) { EXPECT_TRUE(IsDamaged(Summed().Read(11'999, 2))); }

}  // namespace
}  // namespace neve::format
