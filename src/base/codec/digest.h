// XXH3-128 by chunk, with the copy in the same loop: each 64-byte stripe is loaded once, accumulated, and stored to its
// target from the same registers, so a verified copy costs what the copy costs.
//
// The value equals XXH3_128bits() of the chunk's bytes (seed 0, https://github.com/Cyan4973/xxHash), so any xxhash
// library can check a chunk. The vector width is chosen at run time (AVX2, else the portable code of xxhash).
#ifndef NEVE_BASE_CODEC_DIGEST_H_
#define NEVE_BASE_CODEC_DIGEST_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace neve::codec {

struct Digest {
  uint64_t low = 0, high = 0;
  auto operator<=>(const Digest&) const = default;
  std::string ToHex() const;   // canonical: big endian, high first, as `xxhsum -H2` prints; 32 lower-case digits
  static bool FromHex(std::string_view hex, Digest* digest);
};

Digest DigestOf(std::span<const std::byte> bytes);

// How the target's lines are stored. kStream: non-temporal stores where alignment allows (targets that nobody reads
// soon).
enum class Store : uint8_t { kCached, kStream };

// Digest of one chunk of known size whose bytes come in pieces, in order, each copied on the way.
//
//   CaptureHasher h(slot_chunk_begin, chunk_bytes);     // target is contiguous: the chunk in the slot
//   h.Copy(source, n); h.Copy(...); h.Wrote(n);         // Wrote: n bytes were put at the position by somebody else
//   Digest d = h.Finish();                              // all chunk_bytes must have been given; does the sfence
//
// Invariant: after Copy/Wrote of k bytes in all, target[0, k) holds them. Allocates nothing. One thread.
class CaptureHasher {
 public:
  CaptureHasher(std::byte* target, uint64_t chunk_bytes, Store store = Store::kStream);
  void Copy(const std::byte* source, uint64_t bytes);
  void Wrote(uint64_t bytes);
  Digest Finish();

 private:
  void AccumulateFromTarget(uint64_t end);
  std::byte* target_;
  uint64_t chunk_bytes_;
  uint64_t position_ = 0;      // bytes in place
  uint64_t hashed_stripes_ = 0;
  Store store_;
  alignas(64) std::array<uint64_t, 8> accumulators_;
};

// Digest of one chunk that lies contiguous at `source`, its bytes copied to scattered targets on the way.
//
//   RestoreHasher h(chunk_begin, chunk_bytes);
//   h.CopyTo(target, n); h.Skip(m); ...                 // in order; Skip: hashed, not copied
//   if (h.Finish() != wanted) ...                       // the rest of the chunk is hashed without a copy
//
// The targets are written before the digest is known: on a mismatch the caller fills them again from another source.
// Every byte is read from the source once, so a digest that matches vouches for the targets even when somebody (the
// live owner of a slot) overwrote the source meanwhile. Allocates nothing. One thread.
class RestoreHasher {
 public:
  RestoreHasher(const std::byte* source, uint64_t chunk_bytes, Store store = Store::kStream);
  void CopyTo(std::byte* target, uint64_t bytes);
  void Skip(uint64_t bytes);
  Digest Finish();

 private:
  void Advance(std::byte* target, uint64_t bytes);
  const std::byte* source_;
  uint64_t chunk_bytes_;
  uint64_t position_ = 0;
  uint64_t hashed_stripes_ = 0;
  Store store_;
  alignas(64) std::array<uint64_t, 8> accumulators_;
  alignas(64) std::array<std::byte, 64> shared_;   // the stripe at position_, when pieces meet inside it
  std::array<std::byte, 256> last_;                // the last 64 bytes; all of a chunk of up to 240
};

// Copy without a digest, same stores as above; for benchmarks and for strided code paths.
void StreamCopy(std::byte* target, const std::byte* source, uint64_t bytes);

// "avx2" or "portable": which code runs. ForcePortable is for the tests that compare both.
std::string_view DigestCode();
void ForcePortableDigest(bool force);

}  // namespace neve::codec

#endif  // NEVE_BASE_CODEC_DIGEST_H_
