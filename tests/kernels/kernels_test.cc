// The bodies that a device runs, run here lane by lane against plain references.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/codec/digest.h"
#include "base/codec/digest_kernel.h"
#include "kernels/digest.h"
#include "kernels/fatbin.h"
#include "kernels/gather.h"
#include "kernels/planes.h"
#include "kernels/strided.h"
#include "tensor/view.h"

namespace neve::kernels {
namespace {

std::vector<uint8_t> RandomBytes(size_t count, std::mt19937_64& random) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(CopyShare, CopiesEveryLengthAndAlignmentAndNothingElse) {
  std::mt19937_64 random(1);
  const std::vector<uint8_t> source = RandomBytes(256, random);
  for (uint32_t to = 0; to < 16; ++to) {
    for (uint32_t from = 0; from < 16; ++from) {
      for (uint32_t bytes : {0u, 1u, 3u, 7u, 15u, 16u, 17u, 31u, 64u, 100u}) {
        std::vector<uint8_t> target(160, 0xee), wanted = target;
        std::memcpy(wanted.data() + to, source.data() + from, bytes);
        for (uint32_t lane = 0; lane < 32; ++lane) CopyShare(target.data() + to, source.data() + from, bytes, lane, 32);
        ASSERT_EQ(target, wanted) << "to " << to << " from " << from << " bytes " << bytes;
      }
    }
  }
}

TEST(Gather, PacksItemsAndScatterBringsThemBack) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<uint8_t> memory = RandomBytes(1 << 16, random);
    const std::vector<uint8_t> before = memory;
    std::vector<GatherItem> items;
    std::vector<uint8_t> wanted(1 << 16, 0x11);
    uint32_t offset = 0;
    uint64_t at = 0;
    while (true) {
      const uint32_t bytes = static_cast<uint32_t>(random() % (random() % 4 == 0 ? 3000 : 40));
      at += random() % 9;
      if (at + bytes > memory.size() || offset + bytes + 8 > wanted.size()) break;
      items.push_back({reinterpret_cast<uint64_t>(memory.data() + at), bytes, offset});
      std::memcpy(wanted.data() + offset, memory.data() + at, bytes);
      at += bytes;
      offset += bytes + static_cast<uint32_t>(random() % 8);
    }
    std::vector<uint8_t> packed(wanted.size(), 0x11);
    for (const GatherItem& item : items) {
      for (uint32_t lane = 0; lane < 32; ++lane) GatherShare(item, packed.data(), lane, 32);
    }
    ASSERT_EQ(packed, wanted);
    for (const GatherItem& item : items) std::memset(reinterpret_cast<void*>(item.address), 0, item.bytes);
    for (const GatherItem& item : items) {
      for (uint32_t lane = 0; lane < 32; ++lane) ScatterShare(item, packed.data(), lane, 32);
    }
    ASSERT_EQ(memory, before);
  }
}

TEST(GatherStrided, EqualsTheCaptureOfTheHost) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint32_t item = 1u << random() % 5;
    const tensor::Dims shape = {static_cast<int64_t>(1 + random() % 9), static_cast<int64_t>(1 + random() % 9),
                                static_cast<int64_t>(1 + random() % 9)};
    const tensor::Dims strides = {1, shape[0] + 1, (shape[0] + 1) * shape[1] + 2};
    const std::vector<uint8_t> memory = RandomBytes(tensor::SpanBytes(shape, strides, item), random);
    StridedView view{reinterpret_cast<uint64_t>(memory.data()), 3, item, {}, {}};
    for (int d = 0; d < 3; ++d) {
      view.extents[d] = shape[d];
      view.strides[d] = strides[d] * item;
    }
    const tensor::StridedCopy copy(shape, strides, item);
    const uint64_t elements = copy.logical_bytes() / item, first = random() % elements;
    std::vector<uint8_t> wanted((elements - first) * item), made(wanted.size());
    copy.Gather(reinterpret_cast<const std::byte*>(memory.data()), first * item, elements * item,
                reinterpret_cast<std::byte*>(wanted.data()));
    for (uint64_t lane = 0; lane < 64; ++lane) GatherStridedShare(view, first, elements - first, made.data(), lane, 64);
    ASSERT_EQ(made, wanted);
  }
}

// A chunk cut into pieces of random lengths that lie anywhere.
codec::Digest DigestOfPieces(const std::vector<uint8_t>& chunk, uint64_t begin, std::mt19937_64& random) {
  DigestSecret secret;
  std::memcpy(secret.bytes, codec::internal::Secret(), sizeof secret.bytes);
  std::vector<std::vector<uint8_t>> parts;
  std::vector<DigestPiece> pieces;
  for (uint64_t at = 0; at < chunk.size();) {
    const uint64_t most = random() % 3 == 0 ? 5 : 5000;
    const uint64_t bytes = std::min<uint64_t>(1 + random() % most, chunk.size() - at), shift = random() % 16;
    std::vector<uint8_t> part(shift + bytes);
    std::memcpy(part.data() + shift, chunk.data() + at, bytes);
    parts.push_back(std::move(part));
    pieces.push_back({reinterpret_cast<uint64_t>(parts.back().data() + shift), begin + at, bytes});
    at += bytes;
  }
  const uint64_t blocks = DigestBlocks(chunk.size());
  std::vector<uint64_t> sums(blocks * kSums);
  for (uint64_t i = 0; i < sums.size(); ++i) {
    sums[i] = BlockSum(pieces.data(), static_cast<uint32_t>(pieces.size()), begin, chunk.size(), i / kSums, i % kSums, secret);
  }
  const DigestValue value = FinishDigest(sums.data(), chunk.size(), secret);
  return {value.low, value.high};
}

TEST(Digest, OfScatteredPiecesEqualsTheDigestOfTheHost) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> lengths = {241, 255, 256, 320, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 65536, 100'000};
  for (int i = 0; i < 40; ++i) lengths.push_back(241 + random() % 9000);
  for (uint64_t length : lengths) {
    const std::vector<uint8_t> chunk = RandomBytes(length, random);
    const codec::Digest wanted = codec::DigestOf(std::as_bytes(std::span(chunk)));
    ASSERT_EQ(DigestOfPieces(chunk, random() % (uint64_t{1} << 40), random), wanted) << length;
  }
}

TEST(Digest, TellsEveryFlippedBit) {
  std::mt19937_64 random(8);
  std::vector<uint8_t> chunk = RandomBytes(1500, random);
  const codec::Digest whole = DigestOfPieces(chunk, 0, random);
  for (int i = 0; i < 200; ++i) {
    const size_t at = random() % chunk.size();
    chunk[at] ^= static_cast<uint8_t>(1u << random() % 8);
    const codec::Digest changed = DigestOfPieces(chunk, 0, random);
    EXPECT_NE(changed, whole) << at;
    EXPECT_EQ(changed, codec::DigestOf(std::as_bytes(std::span(chunk))));
  }
}

TEST(Planes, AreSplitAndJoined) {
  std::mt19937_64 random(9);
  for (uint32_t width : {1u, 2u, 4u, 8u}) {
    const uint64_t items = 1000;
    const std::vector<uint8_t> bytes = RandomBytes(items * width, random);
    std::vector<uint8_t> planes(bytes.size()), back(bytes.size());
    for (uint64_t lane = 0; lane < 33; ++lane) SplitPlanesShare(bytes.data(), items, width, planes.data(), lane, 33);
    for (uint64_t i = 0; i < items; ++i) {
      for (uint32_t p = 0; p < width; ++p) ASSERT_EQ(planes[p * items + i], bytes[i * width + p]);
    }
    for (uint64_t lane = 0; lane < 33; ++lane) JoinPlanesShare(planes.data(), items, width, back.data(), lane, 33);
    EXPECT_EQ(back, bytes);
  }
}

TEST(Fatbin, IsOneWhereTheBuildHadNvcc) {
  const std::span<const std::byte> fatbin = Fatbin();
  if (fatbin.empty()) GTEST_SKIP() << "this build had no nvcc";
  uint32_t magic;
  std::memcpy(&magic, fatbin.data(), sizeof magic);
  EXPECT_EQ(magic, 0xba55ed50u);
  // Linked in once for each architecture, and as PTX that a driver can read for those to come.
  const std::string_view text(reinterpret_cast<const char*>(fatbin.data()), fatbin.size());
  for (const char* name :
       {"neve_gather", "neve_gather_strided", "neve_digest_blocks", "neve_digest_finish", "neve_split_planes"}) {
    EXPECT_NE(text.find(name), text.npos) << name;
  }
}

}  // namespace
}  // namespace neve::kernels
