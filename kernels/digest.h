// The digest of a chunk, made where the bytes are: XXH3-128 (seed 0) of image bytes that still lie scattered in a device's
// tensors. The value is the one that base/codec makes, so that bytes are checked from the device's memory on.
//
// XXH3 adds up eight sums over 16 stripes of 64 bytes (a block of 1024), then scrambles them. What a block adds does not depend
// on the sums before it. So it is two launches: every block's eight additions, all at once (BlockSum); then, chunk by chunk, the
// additions and scrambles in order and the end (FinishDigest).
//
// Defined for chunks of more than 240 bytes; shorter ones (only a last chunk can be) have another definition and are the CPU's.
#ifndef NEVE_KERNELS_DIGEST_H_
#define NEVE_KERNELS_DIGEST_H_

#include "kernels/portable.h"

namespace neve::kernels {

inline constexpr uint64_t kDigestBytesMin = 241;
inline constexpr uint64_t kStripe = 64, kBlock = 1024;
inline constexpr uint32_t kSums = 8, kSecret = 192;
inline constexpr uint32_t kLastStripeKey = kSecret - 64 - 7, kMergeKey = 11;

// XXH3's default secret, passed by value.
struct DigestSecret {
  uint8_t bytes[kSecret];
};

// Image bytes [offset, offset + bytes) lie at `address`. A list is sorted by offset and has no holes within the chunk.
struct DigestPiece {
  uint64_t address, offset, bytes;
};

struct DigestValue {
  uint64_t low, high;
};

NEVE_ANYWHERE uint64_t LoadWord(const uint8_t* at) {
  if (reinterpret_cast<uint64_t>(at) % 8 == 0) return *reinterpret_cast<const uint64_t*>(at);
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | at[i];
  return word;
}

// The piece that holds image byte `position`.
NEVE_ANYWHERE uint32_t FindPiece(const DigestPiece* pieces, uint32_t count, uint64_t position) {
  uint32_t low = 0, high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (pieces[middle].offset <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Eight image bytes from `position` on; `cursor` is a piece at or before it, and is moved on.
NEVE_ANYWHERE uint64_t WordAt(const DigestPiece* pieces, uint64_t position, uint32_t* cursor) {
  while (position >= pieces[*cursor].offset + pieces[*cursor].bytes) ++*cursor;
  const DigestPiece& piece = pieces[*cursor];
  const uint64_t from = position - piece.offset;
  if (from + 8 <= piece.bytes) return LoadWord(reinterpret_cast<const uint8_t*>(piece.address) + from);
  uint64_t word = 0;
  uint32_t at = *cursor;
  for (uint64_t i = 0; i < 8; ++i) {
    while (position + i >= pieces[at].offset + pieces[at].bytes) ++at;
    word |= static_cast<uint64_t>(reinterpret_cast<const uint8_t*>(pieces[at].address)[position + i - pieces[at].offset])
            << (8 * i);
  }
  return word;
}

// Blocks of a chunk that end in a scramble, and one more for what is left.
NEVE_ANYWHERE uint64_t DigestBlocks(uint64_t chunk_bytes) { return (chunk_bytes - 1) / kBlock + 1; }

// What stripe [position, position + 64) adds to sum `sum` under the key at `key`.
NEVE_ANYWHERE uint64_t StripeSum(const DigestPiece* pieces, uint64_t position, uint32_t sum, const uint8_t* key,
                                 uint32_t* cursor) {
  uint32_t other = *cursor;
  const uint64_t word = WordAt(pieces, position + 8 * sum, cursor);
  const uint64_t keyed = word ^ LoadWord(key + 8 * sum);
  return (keyed & 0xffffffffu) * (keyed >> 32) + WordAt(pieces, position + 8 * (sum ^ 1), &other);
}

// What block `block` of the chunk [begin, begin + bytes) adds to sum `sum`: one lane of one launch.
NEVE_ANYWHERE uint64_t BlockSum(const DigestPiece* pieces, uint32_t count, uint64_t begin, uint64_t bytes, uint64_t block,
                                uint32_t sum, const DigestSecret& secret) {
  const uint64_t scrambled = (bytes - 1) / kBlock;
  const uint64_t first = begin + block * kBlock;
  const uint64_t stripes = block < scrambled ? kBlock / kStripe : (bytes - 1 - scrambled * kBlock) / kStripe;
  uint32_t cursor = FindPiece(pieces, count, first);
  uint64_t total = 0;
  for (uint64_t s = 0; s < stripes; ++s) {
    // A stripe's second word may lie before its first: each stripe begins to look at the same piece.
    uint32_t at = cursor;
    total += StripeSum(pieces, first + s * kStripe, sum, secret.bytes + 8 * s, &at);
    while (first + (s + 1) * kStripe >= pieces[cursor].offset + pieces[cursor].bytes && cursor + 1 < count) ++cursor;
  }
  if (block == scrambled) {
    uint32_t at = FindPiece(pieces, count, begin + bytes - kStripe);
    total += StripeSum(pieces, begin + bytes - kStripe, sum, secret.bytes + kLastStripeKey, &at);
  }
  return total;
}

NEVE_ANYWHERE uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffffu, a_high = a >> 32, b_low = b & 0xffffffffu, b_high = b >> 32;
  const uint64_t low = a_low * b_low, cross = a_high * b_low, other = a_low * b_high, high = a_high * b_high;
  const uint64_t carry = (low >> 32) + (cross & 0xffffffffu) + other;
  return ((cross >> 32) + (carry >> 32) + high) ^ (carry << 32 | (low & 0xffffffffu));
}

NEVE_ANYWHERE uint64_t MergeSums(const uint64_t* sums, const uint8_t* key, uint64_t start) {
  uint64_t result = start;
  for (int i = 0; i < 4; ++i) {
    result += FoldedProduct(sums[2 * i] ^ LoadWord(key + 16 * i), sums[2 * i + 1] ^ LoadWord(key + 16 * i + 8));
  }
  result ^= result >> 37;
  result *= 0x165667919E3779F9u;
  return result ^ (result >> 32);
}

// The digest of a chunk from its blocks' sums, DigestBlocks(bytes) x 8 of them: one lane a chunk.
NEVE_ANYWHERE DigestValue FinishDigest(const uint64_t* block_sums, uint64_t bytes, const DigestSecret& secret) {
  constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu;
  uint64_t sums[kSums] = {0xC2B2AE3Du,         kPrime1,    kPrime2, 0x165667B19E3779F9u, 0x85EBCA77C2B2AE63u, 0x85EBCA77u,
                          0x27D4EB2F165667C5u, 0x9E3779B1u};
  const uint64_t blocks = DigestBlocks(bytes);
  for (uint64_t block = 0; block < blocks; ++block) {
    for (uint32_t i = 0; i < kSums; ++i) {
      sums[i] += block_sums[block * kSums + i];
      if (block + 1 == blocks) continue;
      sums[i] ^= sums[i] >> 47;
      sums[i] ^= LoadWord(secret.bytes + kSecret - 64 + 8 * i);
      sums[i] *= 0x9E3779B1u;
    }
  }
  return {MergeSums(sums, secret.bytes + kMergeKey, bytes * kPrime1),
          MergeSums(sums, secret.bytes + kSecret - 64 - kMergeKey, ~(bytes * kPrime2))};
}

}  // namespace neve::kernels

#endif  // NEVE_KERNELS_DIGEST_H_
