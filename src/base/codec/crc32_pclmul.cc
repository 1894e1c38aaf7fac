// The CRC's loop in carry-less multiplications (PCLMULQDQ), compiled by a target attribute.
//
// Four registers hold the last 64 bytes. Each step moves them up by 512 bits: the halves of a register are multiplied by
// x^(512 +- 32) modulo the polynomial, which gives 128 bits of the same remainder, and the next 64 bytes are added. The
// four then become one in the same way. Nothing is reduced here: 16 bytes more in a table do that.
#include "base/codec/crc32_kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define NEVE_PCLMUL __attribute__((target("pclmul,sse4.1")))
#define NEVE_PCLMUL_INLINE __attribute__((target("pclmul,sse4.1"), always_inline)) inline

namespace neve::codec::internal {
namespace {

constexpr uint64_t kPrefetchBytes = 1024;

// A product of reflected words comes out one bit low, which the factor makes up for.
constexpr long long Factor(uint64_t bits) { return static_cast<long long>(static_cast<uint64_t>(CrcPowerOfX(bits)) << 1); }

// Low half: the earlier 64 bits, so the higher powers.
NEVE_PCLMUL_INLINE __m128i FactorsFor(long long low, long long high) { return _mm_set_epi64x(high, low); }

NEVE_PCLMUL_INLINE __m128i MoveUp(__m128i value, __m128i factors) {
  return _mm_xor_si128(_mm_clmulepi64_si128(value, factors, 0x00), _mm_clmulepi64_si128(value, factors, 0x11));
}

NEVE_PCLMUL_INLINE __m128i Load(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
NEVE_PCLMUL_INLINE void Store(std::byte* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }

template <bool kCopies>
NEVE_PCLMUL_INLINE void FoldAll(uint32_t state, const std::byte* source, std::byte* target, uint64_t bytes, std::byte* folded) {
  const __m128i by_four = FactorsFor(Factor(4 * 128 + 32), Factor(4 * 128 - 32));
  const __m128i by_one = FactorsFor(Factor(128 + 32), Factor(128 - 32));
  __m128i lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i] = Load(source + 16 * i);
  if constexpr (kCopies) {
    for (int i = 0; i < 4; ++i) Store(target + 16 * i, lanes[i]);
  }
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (uint64_t at = kCrcFoldBytes; at < bytes; at += kCrcFoldBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(source + at + kPrefetchBytes), _MM_HINT_T0);
    for (int i = 0; i < 4; ++i) {
      const __m128i next = Load(source + at + 16 * i);
      if constexpr (kCopies) Store(target + at + 16 * i, next);
      lanes[i] = _mm_xor_si128(MoveUp(lanes[i], by_four), next);
    }
  }
  __m128i all = lanes[0];
  for (int i = 1; i < 4; ++i) all = _mm_xor_si128(MoveUp(all, by_one), lanes[i]);
  Store(folded, all);
}

NEVE_PCLMUL void Fold(uint32_t state, const std::byte* source, std::byte* target, uint64_t bytes, std::byte* folded) {
  if (target == nullptr) {
    FoldAll<false>(state, source, nullptr, bytes, folded);
  } else {
    FoldAll<true>(state, source, target, bytes, folded);
  }
}

}  // namespace

CrcFold PclmulCrcFold() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1") ? Fold : nullptr; }

}  // namespace neve::codec::internal

#else

namespace neve::codec::internal {
CrcFold PclmulCrcFold() { return nullptr; }
}  // namespace neve::codec::internal

#endif
