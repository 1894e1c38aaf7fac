// The digest loop in AVX2. Compiled by a target attribute, so that the rest of the library needs no newer CPU.
//
// One stripe is two loads, two stores and eight cheap operations; from memory the loop is bound by bandwidth, so the
// copy costs what a streaming copy costs. Two things make that true: the accumulators live in registers for the whole
// run, and the source is prefetched a little ahead, because the hardware prefetcher loses its way at every 4 KiB
// page.
#include "base/codec/digest_kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define NEVE_AVX2 __attribute__((target("avx2")))
#define NEVE_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

namespace neve::codec::internal {
namespace {

constexpr uint64_t kVectorBytes = 32;
constexpr uint64_t kPrefetchBytes = 1024;
constexpr int kPrime32_1 = static_cast<int>(0x9E3779B1U);

// Where the loop puts what it loaded.
enum class Sink { kNone, kPlain, kStream };

NEVE_AVX2_INLINE __m256i Mix(__m256i accumulator, __m256i data, __m256i key) {
  const __m256i keyed = _mm256_xor_si256(data, key);
  const __m256i keyed_high = _mm256_srli_epi64(keyed, 32);
  const __m256i product = _mm256_mul_epu32(keyed, keyed_high);
  const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(_mm256_add_epi64(accumulator, swapped), product);
}

NEVE_AVX2_INLINE __m256i Scramble(__m256i accumulator, __m256i key) {
  const __m256i prime = _mm256_set1_epi32(kPrime32_1);
  const __m256i folded = _mm256_xor_si256(accumulator, _mm256_srli_epi64(accumulator, 47));
  const __m256i keyed = _mm256_xor_si256(folded, key);
  const __m256i low = _mm256_mul_epu32(keyed, prime);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
  return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}

NEVE_AVX2_INLINE __m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

template <Sink sink>
NEVE_AVX2_INLINE void Put(std::byte* to, __m256i data) {
  if constexpr (sink == Sink::kPlain) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), data);
  if constexpr (sink == Sink::kStream) _mm256_stream_si256(reinterpret_cast<__m256i*>(to), data);
}

template <Sink sink>
NEVE_AVX2 void Fold(uint64_t* accumulators, const std::byte* source, std::byte* target, uint64_t first,
                    uint64_t stripes) {
  const uint8_t* const secret = Secret();
  auto* const kept = reinterpret_cast<__m256i*>(accumulators);
  __m256i low = _mm256_load_si256(kept), high = _mm256_load_si256(kept + 1);
  uint64_t index = first % kBlockStripes;
  while (stripes > 0) {
    const uint64_t run = std::min(stripes, kBlockStripes - index);
    const uint8_t* key = secret + index * kSecretStep;
#pragma GCC unroll 4
    for (uint64_t i = 0; i < run; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(source + kPrefetchBytes), _MM_HINT_T0);
      const __m256i first_half = Load(source), second_half = Load(source + kVectorBytes);
      low = Mix(low, first_half, Load(key));
      high = Mix(high, second_half, Load(key + kVectorBytes));
      if constexpr (sink != Sink::kNone) {
        Put<sink>(target, first_half);
        Put<sink>(target + kVectorBytes, second_half);
        target += kStripeBytes;
      }
      source += kStripeBytes;
      key += kSecretStep;
    }
    stripes -= run;
    index += run;
    if (index == kBlockStripes) {
      const uint8_t* const last = secret + kSecretBytes - kStripeBytes;
      low = Scramble(low, Load(last));
      high = Scramble(high, Load(last + kVectorBytes));
      index = 0;
    }
  }
  _mm256_store_si256(kept, low);
  _mm256_store_si256(kept + 1, high);
}

uint64_t BytesToAlignment(const std::byte* address) { return -reinterpret_cast<uintptr_t>(address) % kVectorBytes; }

// Streams whole vectors from `source` to the aligned `target`, prefetching nothing: for sources in the first cache.
NEVE_AVX2 void StreamVectors(std::byte* target, const std::byte* source, uint64_t vectors) {
  for (uint64_t i = 0; i < vectors; ++i) Put<Sink::kStream>(target + i * kVectorBytes, Load(source + i * kVectorBytes));
}

// Stripes whose target is not aligned: each block is folded into a buffer that stays in the first cache and streamed on
// from there, shifted to the target's alignment. What does not fill a vector is carried over to the next block.
NEVE_AVX2 void FoldShifted(uint64_t* accumulators, const std::byte* source, std::byte* target, uint64_t first,
                           uint64_t stripes) {
  constexpr uint64_t kBlockBytes = kBlockStripes * kStripeBytes;
  alignas(64) std::byte buffer[kVectorBytes + kBlockBytes];   // the carry ends, and the block begins, at kVectorBytes
  std::byte* const block = buffer + kVectorBytes;
  uint64_t head = BytesToAlignment(target), carried = 0;
  while (stripes > 0) {
    const uint64_t run = std::min(stripes, kBlockStripes - first % kBlockStripes);
    Fold<Sink::kPlain>(accumulators, source, block, first, run);
    const std::byte* from = block - carried;
    uint64_t bytes = carried + run * kStripeBytes;
    if (head > 0) {
      std::memcpy(target, from, head);
      target += head, from += head, bytes -= head, head = 0;
    }
    const uint64_t vectors = bytes / kVectorBytes;
    StreamVectors(target, from, vectors);
    target += vectors * kVectorBytes;
    from += vectors * kVectorBytes;
    carried = bytes % kVectorBytes;
    std::memmove(block - carried, from, carried);
    source += run * kStripeBytes;
    first += run;
    stripes -= run;
  }
  std::memcpy(target, block - carried, carried);
}

void FoldAny(uint64_t* accumulators, const std::byte* source, std::byte* target, uint64_t first, uint64_t stripes,
             Store store) {
  // Below a block the detour through the buffer costs more than the plain stores.
  const bool aligned = BytesToAlignment(target) == 0;
  if (target == nullptr) {
    Fold<Sink::kNone>(accumulators, source, nullptr, first, stripes);
  } else if (store == Store::kCached || (!aligned && stripes < kBlockStripes)) {
    Fold<Sink::kPlain>(accumulators, source, target, first, stripes);
  } else if (aligned) {
    Fold<Sink::kStream>(accumulators, source, target, first, stripes);
  } else {
    FoldShifted(accumulators, source, target, first, stripes);
  }
}

NEVE_AVX2 void StreamCopyAny(std::byte* target, const std::byte* source, uint64_t bytes) {
  const uint64_t head = std::min(bytes, BytesToAlignment(target));
  std::memcpy(target, source, head);
  target += head, source += head, bytes -= head;
  for (; bytes >= kStripeBytes; bytes -= kStripeBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(source + kPrefetchBytes), _MM_HINT_T0);
    const __m256i first_half = Load(source), second_half = Load(source + kVectorBytes);
    Put<Sink::kStream>(target, first_half);
    Put<Sink::kStream>(target + kVectorBytes, second_half);
    target += kStripeBytes, source += kStripeBytes;
  }
  std::memcpy(target, source, bytes);
}

void Fence() { _mm_sfence(); }

constexpr Kernel kAvx2 = {"avx2", FoldAny, StreamCopyAny, Fence};

}  // namespace

const Kernel* Avx2Kernel() {
  static const bool supported = __builtin_cpu_supports("avx2");
  return supported ? &kAvx2 : nullptr;
}

}  // namespace neve::codec::internal

#else

namespace neve::codec::internal {
const Kernel* Avx2Kernel() { return nullptr; }
}  // namespace neve::codec::internal

#endif
