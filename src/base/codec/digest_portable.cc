// The digest loop in the library's own code, for every CPU: SSE2 on any x86-64, NEON on aarch64, else scalar. The only
// users of XXH3's internals besides digest.cc; XXH_INLINE_ALL makes them ours, whatever library is there at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "base/codec/digest_kernel.h"

namespace neve::codec::internal {
namespace {

static_assert(kStripeBytes == XXH_STRIPE_LEN);
static_assert(kSecretBytes == XXH_SECRET_DEFAULT_SIZE);
static_assert(kSecretStep == XXH_SECRET_CONSUME_RATE);
static_assert(kBlockStripes == (kSecretBytes - kStripeBytes) / kSecretStep);
static_assert(kShortBytesMax == XXH3_MIDSIZE_MAX);

void Fold(uint64_t* accumulators, const std::byte* source, std::byte* target, uint64_t first, uint64_t stripes, Store) {
  alignas(64) std::byte stripe[kStripeBytes];
  for (uint64_t i = first; i < first + stripes; ++i) {
    const std::byte* data = source;
    if (target != nullptr) {
      // Through a buffer, so that what is stored is what was mixed.
      std::memcpy(stripe, source, kStripeBytes);
      std::memcpy(target, stripe, kStripeBytes);
      target += kStripeBytes;
      data = stripe;
    }
    XXH3_accumulate_512(accumulators, data, XXH3_kSecret + i % kBlockStripes * kSecretStep);
    if (i % kBlockStripes == kBlockStripes - 1) {
      XXH3_scrambleAcc(accumulators, XXH3_kSecret + kSecretBytes - kStripeBytes);
    }
    source += kStripeBytes;
  }
}

void Copy(std::byte* target, const std::byte* source, uint64_t bytes) { std::memcpy(target, source, bytes); }
void NoFence() {}

constexpr Kernel kPortable = {"portable", Fold, Copy, NoFence};

}  // namespace

const uint8_t* Secret() { return XXH3_kSecret; }
const Kernel& PortableKernel() { return kPortable; }

}  // namespace neve::codec::internal
