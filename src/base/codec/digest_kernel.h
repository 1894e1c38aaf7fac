// The inner loop of the digest, once per instruction set. Internal to this folder.
//
// XXH3 over more than 240 bytes is a fold over 64-byte stripes: each stripe is mixed into eight 64-bit accumulators,
// and after every 16th stripe (one block of 1 KiB) the accumulators are scrambled. A kernel does a run of whole
// stripes; what surrounds it (the start values, the last stripe, the merge) lies in digest.cc.
#ifndef NEVE_BASE_CODEC_DIGEST_KERNEL_H_
#define NEVE_BASE_CODEC_DIGEST_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "base/codec/digest.h"

namespace neve::codec::internal {

inline constexpr uint64_t kStripeBytes = 64;
inline constexpr uint64_t kBlockStripes = 16;     // (secret - stripe) / 8, for the default secret
inline constexpr uint64_t kSecretBytes = 192;
inline constexpr uint64_t kSecretStep = 8;        // stripe i of a block is keyed by secret + 8 * i
inline constexpr uint64_t kShortBytesMax = 240;   // up to here XXH3 is another function, and no stripes exist

struct Kernel {
  const char* name;

  // Mixes `stripes` whole stripes at `source` into `accumulators` (8, aligned to 64). `first` is the chunk's index of
  // the first of them, which decides its part of the secret. With a `target` the same bytes are stored there: what
  // was mixed is what was stored, even when the source changes meanwhile.
  void (*fold)(uint64_t* accumulators, const std::byte* source, std::byte* target, uint64_t first, uint64_t stripes,
               Store store);

  // A copy that passes the caches by where alignment allows.
  void (*stream_copy)(std::byte* target, const std::byte* source, uint64_t bytes);

  // Orders the streamed stores before everything after.
  void (*fence)();
};

const uint8_t* Secret();          // the 192 bytes of the default secret
const Kernel& PortableKernel();
const Kernel* Avx2Kernel();       // null: not compiled in, or this CPU lacks AVX2

}  // namespace neve::codec::internal

#endif  // NEVE_BASE_CODEC_DIGEST_KERNEL_H_
