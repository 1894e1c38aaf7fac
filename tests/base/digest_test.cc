// The digest against xxhash's own one-call function: both codes, every short length, random pieces, all alignments.
#include "base/codec/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace neve::codec {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr std::byte kGuard{0xA5};

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Digest Wanted(const std::byte* data, uint64_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

// A buffer whose `data` begins at a chosen offset from a 64-byte line, with guard bytes on both sides.
class Guarded {
 public:
  Guarded(uint64_t bytes, uint64_t offset) : bytes_(bytes), storage_(bytes + offset + 192, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + 64;
    data_ = storage_.data() + 64 + (-address % 64) + offset;
  }
  std::byte* data() { return data_; }
  bool GuardsWhole() const {
    const std::byte* const end = storage_.data() + storage_.size();
    const std::byte* const data = data_;
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    return std::all_of(storage_.data(), data, is_guard) && std::all_of(data + bytes_, end, is_guard);
  }

 private:
  uint64_t bytes_;
  Bytes storage_;
  std::byte* data_;
};

enum class Pieces { kOne, kTiny, kMixed, kLarge };

uint64_t NextPiece(Pieces pieces, uint64_t left, std::mt19937_64& random) {
  switch (pieces) {
    case Pieces::kOne: return left;
    case Pieces::kTiny: return std::min<uint64_t>(left, random() % 100);
    case Pieces::kMixed: return std::min<uint64_t>(left, random() % 3 == 0 ? random() % 70 : random() % 5000);
    case Pieces::kLarge: return std::min<uint64_t>(left, 1 + random() % 700'000);
  }
  return left;
}

struct Code {
  bool portable;
  Store store;
};

class DigestTest : public ::testing::TestWithParam<Code> {
 protected:
  void SetUp() override {
    ForcePortableDigest(GetParam().portable);
    RecordProperty("seed", static_cast<int>(kSeed));
    printf("seed %llu, code %s\n", static_cast<unsigned long long>(kSeed), std::string(DigestCode()).c_str());
  }
  void TearDown() override { ForcePortableDigest(false); }
  Store store() const { return GetParam().store; }

  void ExpectCapture(const std::byte* source, uint64_t bytes, uint64_t offset, Pieces pieces, uint64_t seed) {
    std::mt19937_64 random(seed);
    Guarded target(bytes, offset);
    CaptureHasher hasher(target.data(), bytes, store());
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t piece = NextPiece(pieces, bytes - at, random);
      if (pieces != Pieces::kOne && random() % 8 == 0) {
        std::memcpy(target.data() + at, source + at, piece);
        hasher.Wrote(piece);
      } else {
        hasher.Copy(source + at, piece);
      }
      at += piece;
    }
    ASSERT_EQ(hasher.Finish(), Wanted(source, bytes))
        << bytes << " bytes, target offset " << offset << ", seed " << seed;
    ASSERT_EQ(std::memcmp(target.data(), source, bytes), 0) << bytes << " bytes, target offset " << offset;
    ASSERT_TRUE(target.GuardsWhole()) << bytes << " bytes, target offset " << offset;
  }

  // Pieces go to targets of their own, at random alignment or all at `offset`; some are skipped.
  void ExpectRestore(const std::byte* source, uint64_t bytes, uint64_t offset, Pieces pieces, uint64_t seed) {
    std::mt19937_64 random(seed);
    RestoreHasher hasher(source, bytes, store());
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t piece = NextPiece(pieces, bytes - at, random);
      if (pieces != Pieces::kOne && random() % 8 == 0) {
        hasher.Skip(piece);
      } else {
        Guarded target(piece, pieces == Pieces::kOne ? offset : random() % 64);
        hasher.CopyTo(target.data(), piece);
        ASSERT_EQ(std::memcmp(target.data(), source + at, piece), 0) << piece << " bytes at " << at << ", " << seed;
        ASSERT_TRUE(target.GuardsWhole()) << piece << " bytes at " << at << ", seed " << seed;
      }
      at += piece;
      if (pieces != Pieces::kOne && random() % 64 == 0) break;  // the rest is hashed by Finish
    }
    ASSERT_EQ(hasher.Finish(), Wanted(source, bytes))
        << bytes << " bytes, target offset " << offset << ", seed " << seed;
  }
};

TEST_P(DigestTest, EqualsXxhashAtEveryShortLength) {
  const Bytes source = RandomBytes(3000, kSeed);
  for (uint64_t bytes = 0; bytes <= 3000; ++bytes) {
    ASSERT_EQ(DigestOf({source.data(), bytes}), Wanted(source.data(), bytes)) << bytes << " bytes";
    for (const Pieces pieces : {Pieces::kOne, Pieces::kTiny, Pieces::kMixed}) {
      ASSERT_NO_FATAL_FAILURE(ExpectCapture(source.data(), bytes, 0, pieces, kSeed + bytes));
      ASSERT_NO_FATAL_FAILURE(ExpectRestore(source.data(), bytes, 0, pieces, kSeed + bytes));
    }
  }
}

TEST_P(DigestTest, EqualsXxhashAtRandomLengthsAndPieces) {
  std::mt19937_64 random(kSeed);
  const Bytes source = RandomBytes(5 << 20, kSeed);
  for (int round = 0; round < 24; ++round) {
    // Lengths around a block's border are as likely as any other.
    uint64_t bytes = random() % (5 << 20);
    if (round % 3 == 0) bytes = bytes / 1024 * 1024 + random() % 3 - 1;
    bytes = std::min<uint64_t>(bytes, 5 << 20);
    const Pieces pieces = std::array{Pieces::kOne, Pieces::kTiny, Pieces::kMixed, Pieces::kLarge}[round % 4];
    ASSERT_EQ(DigestOf({source.data(), bytes}), Wanted(source.data(), bytes)) << bytes << " bytes";
    ASSERT_NO_FATAL_FAILURE(ExpectCapture(source.data(), bytes, 0, pieces, random()));
    ASSERT_NO_FATAL_FAILURE(ExpectRestore(source.data(), bytes, random() % 64, pieces, random()));
  }
}

TEST_P(DigestTest, EveryAlignmentOfSourceAndTargetIsRight) {
  const Bytes source = RandomBytes(20'000, kSeed + 1);
  for (const uint64_t bytes : {1000, 5000, 9973}) {
    for (uint64_t source_offset = 0; source_offset < 64; ++source_offset) {
      Guarded aligned(bytes, source_offset);
      std::memcpy(aligned.data(), source.data(), bytes);
      for (uint64_t target_offset = 0; target_offset < 64; ++target_offset) {
        ASSERT_NO_FATAL_FAILURE(ExpectCapture(aligned.data(), bytes, target_offset, Pieces::kOne, kSeed));
        ASSERT_NO_FATAL_FAILURE(ExpectRestore(aligned.data(), bytes, target_offset, Pieces::kOne, kSeed));
      }
    }
  }
}

TEST_P(DigestTest, EverySplitInTwoIsRight) {
  const Bytes source = RandomBytes(2600, kSeed + 2);
  for (const uint64_t bytes : {240, 241, 1024, 1025, 2600}) {
    for (uint64_t cut = 0; cut <= bytes; ++cut) {
      Guarded target(bytes, 0);
      CaptureHasher capture(target.data(), bytes, store());
      capture.Copy(source.data(), cut);
      capture.Copy(source.data() + cut, bytes - cut);
      ASSERT_EQ(capture.Finish(), Wanted(source.data(), bytes)) << bytes << " cut at " << cut;
      ASSERT_EQ(std::memcmp(target.data(), source.data(), bytes), 0) << bytes << " cut at " << cut;
      Guarded restored(bytes, cut % 64);
      RestoreHasher restore(source.data(), bytes, store());
      restore.CopyTo(restored.data(), cut);
      restore.CopyTo(restored.data() + cut, bytes - cut);
      ASSERT_EQ(restore.Finish(), Wanted(source.data(), bytes)) << bytes << " cut at " << cut;
      ASSERT_EQ(std::memcmp(restored.data(), source.data(), bytes), 0) << bytes << " cut at " << cut;
    }
  }
}

TEST_P(DigestTest, AFlippedBitAnywhereChangesTheDigest) {
  for (const uint64_t bytes : {1, 16, 17, 128, 129, 240, 241, 1024, 3001}) {
    Bytes data = RandomBytes(bytes, kSeed + bytes);
    const Digest whole = DigestOf(data);
    for (uint64_t bit = 0; bit < bytes * 8; ++bit) {
      data[bit / 8] ^= std::byte{1} << (bit % 8);
      ASSERT_NE(DigestOf(data), whole) << "bit " << bit << " of " << bytes << " bytes";
      data[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    ASSERT_EQ(DigestOf(data), whole);
  }
}

TEST_P(DigestTest, AMatchingDigestVouchesForTheTargetThoughTheSourceChangedMeanwhile) {
  // The source is overwritten between two pieces that share a stripe: what was copied is what was hashed.
  const uint64_t bytes = 4096;
  for (uint64_t cut = 1; cut < bytes; cut += 61) {
    Bytes source = RandomBytes(bytes, kSeed + 3);
    Bytes target(bytes);
    RestoreHasher hasher(source.data(), bytes, store());
    hasher.CopyTo(target.data(), cut);
    for (uint64_t i = cut / 64 * 64; i < std::min(bytes - 64, cut / 64 * 64 + 64); ++i) source[i] ^= std::byte{0xFF};
    hasher.CopyTo(target.data() + cut, bytes - cut);
    const bool target_is_first_state = target == RandomBytes(bytes, kSeed + 3);
    const bool digest_is_first_state = hasher.Finish() == Wanted(RandomBytes(bytes, kSeed + 3).data(), bytes);
    ASSERT_EQ(target_is_first_state, digest_is_first_state) << "cut at " << cut;
  }
}

TEST_P(DigestTest, StreamCopyCopiesAtEveryAlignment) {
  const Bytes source = RandomBytes(5000, kSeed + 4);
  for (uint64_t source_offset = 0; source_offset < 64; source_offset += 3) {
    for (uint64_t target_offset = 0; target_offset < 64; ++target_offset) {
      for (const uint64_t bytes : {0, 1, 31, 64, 4000}) {
        Guarded target(bytes, target_offset);
        StreamCopy(target.data(), source.data() + source_offset, bytes);
        ASSERT_EQ(std::memcmp(target.data(), source.data() + source_offset, bytes), 0)
            << bytes << " at " << target_offset;
        ASSERT_TRUE(target.GuardsWhole()) << bytes << " at " << target_offset;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, DigestTest,
                         ::testing::Values(Code{false, Store::kStream}, Code{false, Store::kCached},
                                           Code{true, Store::kStream}),
                         [](const auto& info) {
                           return std::string(info.param.portable ? "Portable" : "Chosen") +
                                  (info.param.store == Store::kStream ? "Stream" : "Cached");
                         });

TEST(DigestText, IsBigEndianWithTheHighHalfFirst) {
  const Digest digest{.low = 0x0123456789abcdef, .high = 0xfedcba9876543210};
  EXPECT_EQ(digest.ToHex(), "fedcba98765432100123456789abcdef");
  // What `xxhsum -H2` prints for an empty file.
  EXPECT_EQ(DigestOf({}).ToHex(), "99aa06d3014798d86001c324468d497f");
  Digest back;
  ASSERT_TRUE(Digest::FromHex(digest.ToHex(), &back));
  EXPECT_EQ(back, digest);
}

TEST(DigestText, RefusesWhatIsNot32LowerCaseDigits) {
  Digest digest;
  EXPECT_FALSE(Digest::FromHex("", &digest));
  EXPECT_FALSE(Digest::FromHex("fedcba98765432100123456789abcde", &digest));
  EXPECT_FALSE(Digest::FromHex("fedcba98765432100123456789abcdef0", &digest));
  EXPECT_FALSE(Digest::FromHex("FEDCBA98765432100123456789ABCDEF", &digest));
  EXPECT_FALSE(Digest::FromHex("gedcba98765432100123456789abcdef", &digest));
}

TEST(DigestCode, CanBeForcedToThePortableOne) {
  ForcePortableDigest(true);
  EXPECT_EQ(DigestCode(), "portable");
  ForcePortableDigest(false);
  EXPECT_TRUE(DigestCode() == "avx2" || DigestCode() == "portable");
}

TEST(CaptureHasherDeathTest, MoreBytesThanTheChunkHasAreOurBug) {
  std::byte target[16], source[17] = {};
  EXPECT_DEATH(CaptureHasher(target, 16).Copy(source, 17), "");
  EXPECT_DEATH(CaptureHasher(target, 16).Finish(), "");
}

}  // namespace
}  // namespace neve::codec
