#include "base/codec/crc32.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace neve::codec {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

// Bit by bit, from the definition.
uint32_t Reference(std::span<const std::byte> bytes) {
  uint32_t state = ~0U;
  for (const std::byte byte : bytes) {
    state ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = state & 1 ? state >> 1 ^ 0xEDB88320U : state >> 1;
  }
  return ~state;
}

class Crc32Test : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { ForcePortableCrc32(GetParam()); }
  void TearDown() override { ForcePortableCrc32(false); }
};

TEST_P(Crc32Test, KnownValuesAreThoseOfTheZipPolynomial) {
  EXPECT_EQ(Crc32(0, {}), 0U);
  EXPECT_EQ(Crc32(0, BytesOf("123456789")), 0xCBF43926U);
  EXPECT_EQ(Crc32(0, BytesOf("The quick brown fox jumps over the lazy dog")), 0x414FA339U);
}

TEST_P(Crc32Test, EveryLengthAndAlignmentGivesTheDefinitionsValue) {
  const std::vector<std::byte> data = RandomBytes(700, 1);
  for (size_t begin = 0; begin < 17; ++begin) {
    for (size_t bytes = 0; begin + bytes <= data.size(); bytes += bytes < 300 ? 1 : 37) {
      const std::span<const std::byte> part(data.data() + begin, bytes);
      ASSERT_EQ(Crc32(0, part), Reference(part)) << begin << " " << bytes;
    }
  }
}

TEST_P(Crc32Test, PiecesOfAnySizeGiveTheValueOfTheWhole) {
  const std::vector<std::byte> data = RandomBytes(100'000, 2);
  std::mt19937_64 random(3);
  uint32_t crc = 0;
  for (size_t at = 0; at < data.size();) {
    const size_t step = std::min<size_t>(random() % 5000, data.size() - at);
    crc = Crc32(crc, {data.data() + at, step});
    at += step;
  }
  EXPECT_EQ(crc, Crc32(0, data));
  EXPECT_EQ(crc, Reference(data));
}

TEST_P(Crc32Test, PartsSummedApartCombineToTheWhole) {
  const std::vector<std::byte> data = RandomBytes(10'000, 4);
  for (const size_t cut : {0UL, 1UL, 63UL, 64UL, 5000UL, 9999UL, 10'000UL}) {
    const std::span<const std::byte> all(data);
    EXPECT_EQ(Crc32Combine(Crc32(0, all.first(cut)), Crc32(0, all.subspan(cut)), data.size() - cut), Crc32(0, data)) << cut;
  }
}

TEST_P(Crc32Test, ALengthOverFourGibibytesCombines) {
  // Zeros: squaring the step must give what appending twice gives.
  const std::vector<std::byte> zeros(1 << 20);
  uint32_t one = Crc32(0, zeros);
  uint64_t bytes = zeros.size();
  for (; bytes < 8ULL << 30; bytes *= 2) one = Crc32Combine(one, one, bytes);
  const uint32_t prefix = Crc32(0, BytesOf("head"));
  EXPECT_EQ(Crc32Combine(prefix, Crc32Combine(one, one, bytes), 2 * bytes),
            Crc32Combine(Crc32Combine(prefix, one, bytes), one, bytes));
}

TEST_P(Crc32Test, ACopyIsTheSameBytesAndTheSameValue) {
  const std::vector<std::byte> data = RandomBytes(9001, 5);
  for (const size_t bytes : {0UL, 1UL, 63UL, 64UL, 65UL, 8999UL}) {
    std::vector<std::byte> target(bytes + 1, std::byte{0x5A});
    EXPECT_EQ(Crc32Copy(7, target.data(), {data.data() + 2, bytes}), Crc32(7, {data.data() + 2, bytes}));
    EXPECT_EQ(std::memcmp(target.data(), data.data() + 2, bytes), 0);
    EXPECT_EQ(target[bytes], std::byte{0x5A});
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, Crc32Test, ::testing::Values(false, true),
                         [](const auto& code) { return code.param ? "Portable" : "Fastest"; });

}  // namespace
}  // namespace neve::codec
