// The digest kernels over 4 GiB of device memory: whether their digests are XXH3's, and how fast they are beside a copy on the device.
// Built by nvcc alone: nvcc -std=c++20 -O3 -I. -Ithird_party/usr/include -o digest_rate tests/gpu/digest_rate.cu
// The last line is one JSON object; exit 0: the digests are right.
#define XXH_INLINE_ALL
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/launch.cu"

namespace {

constexpr unsigned long long kImage = 4ull << 30, kChunk = 4ull << 20, kChunks = kImage / kChunk;
constexpr int kRounds = 5;

void Must(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::printf("{\"error\": \"%s: %s\"}\n", what, cudaGetErrorString(result));
  std::exit(result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver ? 3 : 1);
}

__global__ void Number(unsigned char* memory, unsigned long long bytes) {
  for (unsigned long long i = Thread(); i < bytes; i += Threads()) memory[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
}

}  // namespace

int main() {
  unsigned char *image = nullptr, *other = nullptr;
  DigestPiece* pieces = nullptr;
  unsigned long long* sums = nullptr;
  DigestValue* digests = nullptr;
  Must(cudaMalloc(&image, kImage), "cudaMalloc");
  Must(cudaMalloc(&other, kImage), "cudaMalloc");
  Must(cudaMalloc(&pieces, sizeof(DigestPiece)), "cudaMalloc");
  Must(cudaMalloc(&sums, kChunks * neve::kernels::DigestBlocks(kChunk) * neve::kernels::kSums * 8), "cudaMalloc");
  Must(cudaMalloc(&digests, kChunks * sizeof(DigestValue)), "cudaMalloc");
  const DigestPiece piece{reinterpret_cast<unsigned long long>(image), 0, kImage};
  Must(cudaMemcpy(pieces, &piece, sizeof piece, cudaMemcpyHostToDevice), "cudaMemcpy");
  DigestSecret secret;
  std::memcpy(secret.bytes, XXH3_kSecret, sizeof secret.bytes);
  cudaDeviceProp facts;
  Must(cudaGetDeviceProperties(&facts, 0), "cudaGetDeviceProperties");
  const unsigned grid = facts.multiProcessorCount * 16;
  Number<<<grid, 256>>>(image, kImage);
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "cudaEventCreate");
  Must(cudaEventCreate(&end), "cudaEventCreate");
  const auto seconds = [&](auto work) {
    std::vector<float> took;
    for (int round = 0; round < kRounds; ++round) {
      Must(cudaEventRecord(begin), "cudaEventRecord");
      work();
      Must(cudaEventRecord(end), "cudaEventRecord");
      Must(cudaEventSynchronize(end), "kernels");
      float ms = 0;
      Must(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      took.push_back(ms / 1000);
    }
    std::sort(took.begin(), took.end());
    return took[kRounds / 2];
  };
  const float digest_s = seconds([&] {
    neve_digest_blocks<<<grid, 256>>>(pieces, 1, kImage, kChunk, secret, sums);
    neve_digest_finish<<<grid, 256>>>(sums, kImage, kChunk, secret, digests);
  });
  const float copy_s = seconds([&] { Must(cudaMemcpyAsync(other, image, kImage, cudaMemcpyDeviceToDevice), "copy"); });
  std::vector<unsigned char> chunk(kChunk);
  bool right = true;
  for (unsigned long long c : {0ull, 1ull, kChunks / 2, kChunks - 1}) {
    DigestValue found;
    Must(cudaMemcpy(&found, digests + c, sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
    Must(cudaMemcpy(chunk.data(), image + c * kChunk, kChunk, cudaMemcpyDeviceToHost), "cudaMemcpy");
    const XXH128_hash_t wanted = XXH3_128bits(chunk.data(), kChunk);
    right &= found.low == wanted.low64 && found.high == wanted.high64;
  }
  std::printf("{\"right\": %s, \"digest_bytes_per_s\": %.4g, \"copy_read_bytes_per_s\": %.4g}\n", right ? "true" : "false",
              kImage / digest_s, kImage / copy_s);
  return right ? 0 : 1;
}
