// Entry points of the embedded fatbin. Each is a loop over what it was given, whatever the size of the grid.
#include "kernels/digest.h"
#include "kernels/gather.h"
#include "kernels/planes.h"
#include "kernels/strided.h"

namespace {

using neve::kernels::DigestPiece;
using neve::kernels::DigestSecret;
using neve::kernels::DigestValue;
using neve::kernels::GatherItem;
using neve::kernels::StridedView;

constexpr unsigned kWarp = 32;

__device__ unsigned Warp() { return (blockIdx.x * blockDim.x + threadIdx.x) / kWarp; }
__device__ unsigned Warps() { return gridDim.x * blockDim.x / kWarp; }
__device__ unsigned long long Thread() { return static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ unsigned long long Threads() { return static_cast<unsigned long long>(gridDim.x) * blockDim.x; }

}  // namespace

// One warp an item.
extern "C" __global__ void neve_gather(const GatherItem* items, unsigned count, unsigned char* packed) {
  for (unsigned i = Warp(); i < count; i += Warps()) neve::kernels::GatherShare(items[i], packed, threadIdx.x % kWarp, kWarp);
}

extern "C" __global__ void neve_scatter(const GatherItem* items, unsigned count, const unsigned char* packed) {
  for (unsigned i = Warp(); i < count; i += Warps()) neve::kernels::ScatterShare(items[i], packed, threadIdx.x % kWarp, kWarp);
}

// One thread an element.
extern "C" __global__ void neve_gather_strided(StridedView view, unsigned long long first, unsigned long long count,
                                               unsigned char* target) {
  neve::kernels::GatherStridedShare(view, first, count, target, Thread(), Threads());
}

// Eight threads a block of a chunk; sums of chunk c begin at c * DigestBlocks(chunk_bytes) * 8.
extern "C" __global__ void neve_digest_blocks(const DigestPiece* pieces, unsigned count, unsigned long long image_bytes,
                                              unsigned long long chunk_bytes, DigestSecret secret, unsigned long long* sums) {
  const unsigned long long per_chunk = neve::kernels::DigestBlocks(chunk_bytes);
  const unsigned long long chunks = (image_bytes + chunk_bytes - 1) / chunk_bytes;
  for (unsigned long long i = Thread(); i < chunks * per_chunk * neve::kernels::kSums; i += Threads()) {
    const unsigned long long chunk = i / neve::kernels::kSums / per_chunk, block = i / neve::kernels::kSums % per_chunk;
    const unsigned long long begin = chunk * chunk_bytes;
    const unsigned long long bytes = begin + chunk_bytes <= image_bytes ? chunk_bytes : image_bytes - begin;
    if (bytes < neve::kernels::kDigestBytesMin || block >= neve::kernels::DigestBlocks(bytes)) continue;
    sums[i] = neve::kernels::BlockSum(pieces, count, begin, bytes, block, i % neve::kernels::kSums, secret);
  }
}

// One thread a chunk.
extern "C" __global__ void neve_digest_finish(const unsigned long long* sums, unsigned long long image_bytes,
                                              unsigned long long chunk_bytes, DigestSecret secret, DigestValue* digests) {
  const unsigned long long per_chunk = neve::kernels::DigestBlocks(chunk_bytes);
  const unsigned long long chunks = (image_bytes + chunk_bytes - 1) / chunk_bytes;
  for (unsigned long long chunk = Thread(); chunk < chunks; chunk += Threads()) {
    const unsigned long long begin = chunk * chunk_bytes;
    const unsigned long long bytes = begin + chunk_bytes <= image_bytes ? chunk_bytes : image_bytes - begin;
    if (bytes < neve::kernels::kDigestBytesMin) continue;
    digests[chunk] = neve::kernels::FinishDigest(reinterpret_cast<const uint64_t*>(sums) + chunk * per_chunk * neve::kernels::kSums,
                                                 bytes, secret);
  }
}

extern "C" __global__ void neve_split_planes(const unsigned char* bytes, unsigned long long items, unsigned width,
                                             unsigned char* planes) {
  neve::kernels::SplitPlanesShare(bytes, items, width, planes, Thread(), Threads());
}
