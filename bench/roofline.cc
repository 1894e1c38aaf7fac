// The fastest plain copy of the same bytes that we know how to write, and one plain hash pass: what neve is measured against.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

constexpr uint64_t kPieceBytes = 1u << 20;
constexpr uint64_t kChunkBytes = 4u << 20;

struct Piece {
  char* target;
  const char* source;
  uint64_t bytes;
};

void CopyStreaming(char* target, const char* source, uint64_t bytes) {
#if defined(__AVX2__)
  const uint64_t head = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(target) & 31);
  std::memcpy(target, source, head);
  uint64_t at = head;
  for (; at + 128 <= bytes; at += 128) {
    _mm_prefetch(source + at + 1024, _MM_HINT_T0);
    _mm_prefetch(source + at + 1088, _MM_HINT_T0);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 96), d);
  }
  std::memcpy(target + at, source + at, bytes - at);
  _mm_sfence();
#else
  std::memcpy(target, source, bytes);
#endif
}

}  // namespace

extern "C" {

// Whether this processor runs what the library was compiled for, and streaming stores are among it.
int roofline_streams() {
#if defined(__AVX2__)
  return __builtin_cpu_supports("avx2") ? 1 : 0;
#else
  return 0;
#endif
}

// Copies `count` blocks with `threads` threads, the caller among them. streaming: non-temporal stores, else memcpy.
void roofline_copy(char* const* targets, const char* const* sources, const uint64_t* bytes, uint64_t count, int threads, int streaming) {
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < count; ++i) {
    for (uint64_t at = 0; at < bytes[i]; at += kPieceBytes) {
      pieces.push_back({targets[i] + at, sources[i] + at, std::min(kPieceBytes, bytes[i] - at)});
    }
  }
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const Piece& piece = pieces[i];
      if (streaming) {
        CopyStreaming(piece.target, piece.source, piece.bytes);
      } else {
        std::memcpy(piece.target, piece.source, piece.bytes);
      }
    }
  };
  std::vector<std::thread> crew;
  for (int i = 1; i < threads; ++i) crew.emplace_back(work);
  work();
  for (std::thread& thread : crew) thread.join();
}

// One XXH3-128 pass by chunks of 4 MiB on the caller's thread. The result keeps the compiler from dropping it.
uint64_t roofline_hash(const char* source, uint64_t bytes) {
  uint64_t sum = 0;
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) sum ^= XXH3_128bits(source + at, std::min(kChunkBytes, bytes - at)).low64;
  return sum;
}

}  // extern "C"
