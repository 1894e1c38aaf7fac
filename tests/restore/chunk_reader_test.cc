// Reads against a naive copy, and what happens to bytes that differ from their digest.
#include "restore/chunk_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <set>

#include "base/obs/log.h"
#include "restore/memory_source.h"

namespace neve::restore {
namespace {

using ::neve::testing::DigestsOf;
using ::neve::testing::MemoryReader;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kChunk = 1024;

class ChunkReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    obs::SetSink([this](obs::Level, const std::string& line) { log_.push_back(line); });
    seed_ = std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
    crew_ = sync::Crew::Create(2);
    image_ = RandomBytes(10 * kChunk + 300);
    digests_ = DigestsOf(image_, kChunk);
  }
  void TearDown() override {
    obs::SetSink(nullptr);
    if (HasFailure()) std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }

  std::vector<std::byte> RandomBytes(uint64_t count) {
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  std::shared_ptr<MemoryReader> Reader(bool mapped) { return std::make_shared<MemoryReader>(image_, kChunk, mapped); }
  static Source From(const std::string& name, std::shared_ptr<MemoryReader> reader, bool heals = false) {
    Source source;
    source.name = name;
    source.place = name + ":/place";
    source.reader = reader;
    source.queue_depth = 3;
    if (heals) {
      source.heal = [reader](uint64_t offset, std::span<const std::byte> bytes) {
        std::copy(bytes.begin(), bytes.end(), reader->image.begin() + static_cast<std::ptrdiff_t>(offset));
        return absl::OkStatus();
      };
    }
    return source;
  }
  // Reads the whole image into target_.
  absl::Status ReadAll(const std::vector<Source>& sources) {
    target_.assign(image_.size(), std::byte{0});
    const std::vector<Range> ranges = {{.offset = 0, .bytes = image_.size(), .target = target_.data()}};
    const auto plan = ReadPlan::Build(ranges, image_.size(), kChunk);
    if (!plan.ok()) return plan.status();
    return ReadChunks(*plan, sources, digests_, *crew_, {}, {}, &result_);
  }

  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<sync::Crew> crew_;
  std::vector<std::byte> image_, target_;
  std::vector<codec::Digest> digests_;
  ReadResult result_;
  std::vector<std::string> log_;
};

class ChunkReaderSourceTest : public ChunkReaderTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Sources, ChunkReaderSourceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? std::string("Mapped") : std::string("Read"); });

TEST_P(ChunkReaderSourceTest, TheWholeImageIsDelivered) {
  EXPECT_EQ(ReadAll({From("file", Reader(GetParam()))}), absl::OkStatus());
  EXPECT_EQ(target_, image_);
  EXPECT_EQ(result_.bytes, (std::map<std::string, uint64_t>{{"file", image_.size()}}));
  EXPECT_EQ(result_.chunks_failed, 0u);
  EXPECT_THAT(log_, IsEmpty());
}

TEST_P(ChunkReaderSourceTest, BoxesThatMeetAreDeliveredAndChunksWithoutThemNotRead) {
  for (int round = 0; round < 100; ++round) {
    // Boxes of rows x columns items out of rows of `pitch` bytes, beside ordinary ranges.
    struct Wanted {
      std::vector<std::byte> target, expected;
    };
    std::vector<Wanted> wanted;
    std::vector<Range> ranges;
    std::set<uint64_t> chunks;
    uint64_t needed = 0;
    for (int count = 1 + static_cast<int>(random_() % 6); count > 0; --count) {
      const uint64_t item = uint64_t{1} << (random_() % 5), columns = 1 + random_() % 30, pitch = (columns + random_() % 300) * item;
      const uint64_t at = random_() % 4000, rows = 1 + random_() % 12;
      const tensor::Dims extents = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
      const tensor::Dims from = {static_cast<int64_t>(pitch), static_cast<int64_t>(item)};
      const tensor::Dims to = {static_cast<int64_t>(item), static_cast<int64_t>(rows * item)};   // transposed
      auto box = std::make_shared<const tensor::BoxCopy>(extents, from, to, item);
      if (at + box->span_bytes() > image_.size()) continue;
      Wanted& here = wanted.emplace_back();
      here.target.resize(rows * columns * item);
      here.expected = here.target;
      for (uint64_t row = 0; row < rows; ++row) {
        for (uint64_t column = 0; column < columns; ++column) {
          const uint64_t byte = at + row * pitch + column * item;
          std::memcpy(here.expected.data() + (column * rows + row) * item, image_.data() + byte, item);
          chunks.insert(byte / kChunk);
          chunks.insert((byte + item - 1) / kChunk);
        }
      }
      needed += rows * columns * item;
      ranges.push_back({.offset = at, .bytes = box->span_bytes(), .box = box});
    }
    if (random_() % 2 == 0) {
      Wanted& here = wanted.emplace_back();
      here.target.resize(1500);
      here.expected.assign(image_.begin() + 700, image_.begin() + 2200);
      for (uint64_t chunk = 700 / kChunk; chunk <= 2199 / kChunk; ++chunk) chunks.insert(chunk);
      needed += 1500;
      ranges.push_back({.offset = 700, .bytes = 1500});
    }
    for (size_t i = 0; i < ranges.size(); ++i) ranges[i].target = wanted[i].target.data();
    std::shuffle(ranges.begin(), ranges.end(), random_);
    const auto plan = ReadPlan::Build(ranges, image_.size(), kChunk);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto reader = Reader(GetParam());
    std::vector<uint8_t> written(ranges.size());
    ReadResult result;
    ASSERT_EQ(ReadChunks(*plan, std::vector{From("near", reader)}, digests_, *crew_, {}, written, &result), absl::OkStatus());
    for (const Wanted& here : wanted) ASSERT_EQ(here.target, here.expected);
    ASSERT_EQ(plan->chunks().size(), chunks.size());
    if (!GetParam()) {
      ASSERT_EQ(static_cast<size_t>(reader->reads.load()), chunks.size());
    }
    ASSERT_EQ(result.bytes["near"], needed);
    ASSERT_THAT(written, Each(1));
  }
}

TEST_P(ChunkReaderSourceTest, ABoxOfABadChunkIsTakenFromTheNextSource) {
  const tensor::Dims extents = {4, 8}, from = {400, 1}, to = {8, 1};
  auto box = std::make_shared<const tensor::BoxCopy>(extents, from, to, 1);
  std::vector<std::byte> target(32), expected(32);
  for (size_t row = 0; row < 4; ++row) std::memcpy(expected.data() + row * 8, image_.data() + 1000 + row * 400, 8);
  const std::vector<Range> ranges = {{.offset = 1000, .bytes = box->span_bytes(), .target = target.data(), .box = box}};
  const auto plan = ReadPlan::Build(ranges, image_.size(), kChunk);
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto bad = Reader(GetParam());
  bad->image[1800] ^= std::byte{1};
  ASSERT_EQ(ReadChunks(*plan, std::vector{From("near", bad, true), From("far", Reader(false))}, digests_, *crew_, {}, {}, &result_),
            absl::OkStatus());
  EXPECT_EQ(target, expected);
  EXPECT_EQ(result_.chunks_failed, 1u);
  EXPECT_EQ(bad->image, image_) << "healed";
  bad->image[1800] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(ReadChunks(*plan, std::vector{From("near", bad)}, digests_, *crew_, {}, {}, &result_)));
}

// Contiguous and strided targets of all item sizes, at all alignments; chunk borders cut elements in every second
// round.
TEST_P(ChunkReaderSourceTest, RandomRangesEqualANaiveCopy) {
  for (int round = 0; round < 150; ++round) {
    struct Piece {
      std::vector<std::byte> target, wanted;
    };
    std::vector<Piece> pieces;
    std::vector<Range> ranges;
    const uint64_t chunk_bytes = round % 2 == 0 ? kChunk : 256 + random_() % 2000;
    for (uint64_t at = random_() % 300; at < image_.size(); at += random_() % 700) {
      const uint64_t room = image_.size() - at;
      Range range{.offset = at};
      Piece piece;
      if (random_() % 2 == 0) {
        range.bytes = std::min<uint64_t>(random_() % 3000, room);
        piece.wanted.assign(image_.begin() + static_cast<std::ptrdiff_t>(at),
                            image_.begin() + static_cast<std::ptrdiff_t>(at + range.bytes));
        piece.target.resize(range.bytes);
      } else {
        const uint64_t item = uint64_t{1} << (random_() % 5);
        if (round % 2 == 0) range.offset = at = (at + item - 1) / item * item;
        if (at >= image_.size()) break;
        const int64_t rows = 1 + static_cast<int64_t>(random_() % 20),
                      columns = 1 + static_cast<int64_t>(random_() % 40);
        const int64_t gap = static_cast<int64_t>(random_() % 3);
        range.bytes = static_cast<uint64_t>(rows * columns) * item;
        if (range.bytes > image_.size() - at) break;
        range.item_bytes = item;
        const std::vector<int64_t> shape = {rows, columns}, strides = {1, rows + gap};
        range.strided = std::make_shared<tensor::StridedCopy>(shape, strides, item);
        piece.target.resize(static_cast<uint64_t>((rows + gap) * columns) * item);
        piece.wanted = piece.target;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t column = 0; column < columns; ++column) {
            std::memcpy(piece.wanted.data() + static_cast<uint64_t>(row + column * (rows + gap)) * item,
                        image_.data() + at + static_cast<uint64_t>(row * columns + column) * item, item);
          }
        }
      }
      at += range.bytes;
      pieces.push_back(std::move(piece));
      ranges.push_back(range);
    }
    for (size_t i = 0; i < ranges.size(); ++i) ranges[i].target = pieces[i].target.data();
    const auto plan = ReadPlan::Build(ranges, image_.size(), chunk_bytes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<uint8_t> written(ranges.size());
    const bool with_digests = random_() % 4 != 0;
    const auto digests = with_digests ? DigestsOf(image_, chunk_bytes) : std::vector<codec::Digest>{};
    const auto reader = std::make_shared<MemoryReader>(image_, chunk_bytes, GetParam());
    ReadOptions options;
    options.staging_chunks = 1 + static_cast<int>(random_() % 10);
    options.plain_bytes = 1 + random_() % 2000;
    ReadResult result;
    ASSERT_EQ(ReadChunks(*plan, std::vector{From("ram", reader)}, digests, *crew_, options, written, &result),
              absl::OkStatus());
    uint64_t bytes = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      ASSERT_EQ(pieces[i].target, pieces[i].wanted) << "round " << round << ", range " << i;
      ASSERT_EQ(written[i], ranges[i].bytes == 0 ? 0 : 1);
      bytes += ranges[i].bytes;
    }
    EXPECT_EQ(bytes == 0 ? 0 : result.bytes["ram"], bytes);
  }
}

TEST_P(ChunkReaderSourceTest, PT_21_EverySingleFlippedBitIsFound) {
  for (int flip = 0; flip < 200; ++flip) {
    const auto reader = Reader(GetParam());
    const uint64_t bit = random_() % (image_.size() * 8);
    reader->image[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const absl::Status status = ReadAll({From("file", reader)});
    ASSERT_TRUE(absl::IsDataLoss(status)) << status;
    ASSERT_THAT(std::string(status.message()),
                HasSubstr("no good copy of chunk " + std::to_string(bit / 8 / kChunk) + " "));
  }
}

TEST_P(ChunkReaderSourceTest, ABadChunkIsTakenFromTheNextSourceAndHealed) {
  for (const bool second_mapped : {false, true}) {
    const auto near = Reader(GetParam()), far = Reader(second_mapped);
    near->image[3 * kChunk + 7] ^= std::byte{1};
    near->image.back() ^= std::byte{128};
    result_ = {};
    EXPECT_EQ(ReadAll({From("ram", near, true), From("file", far, true)}), absl::OkStatus());
    EXPECT_EQ(target_, image_);
    EXPECT_EQ(near->image, image_);
    EXPECT_EQ(result_.chunks_failed, 2u);
    EXPECT_EQ(result_.chunks_healed, 2u);
    EXPECT_EQ(result_.bytes["ram"], image_.size() - kChunk - 300);
    EXPECT_EQ(result_.bytes["file"], kChunk + 300);
    EXPECT_EQ(far->reads, 2);  // only what was bad
  }
  EXPECT_EQ(log_.size(), 2u);  // one line a read, however many chunks
  EXPECT_THAT(log_[0], HasSubstr("event=chunks_bad source=ram count=2 first_chunk=3"));
}

TEST_P(ChunkReaderSourceTest, ChunksMayBeGatheredFromThreeSources) {
  const auto a = Reader(GetParam()), b = Reader(true), c = Reader(false);
  a->image[0] ^= std::byte{1};
  a->image[kChunk] ^= std::byte{1};
  b->image[0] ^= std::byte{1};
  c->image[kChunk] ^= std::byte{1};
  EXPECT_EQ(ReadAll({From("ram", a, true), From("peer", b, true), From("file", c)}), absl::OkStatus());
  EXPECT_EQ(target_, image_);
  EXPECT_EQ(a->image, image_);
  EXPECT_EQ(b->image, image_);
  EXPECT_EQ(result_.chunks_healed, 3u);
}

TEST_P(ChunkReaderSourceTest, NoGoodCopyNamesTheChunkItsBytesAndTheSources) {
  const auto near = Reader(GetParam()), far = Reader(false);
  near->image[2 * kChunk] ^= std::byte{1};
  far->image[2 * kChunk + 1] ^= std::byte{1};
  const absl::Status status = ReadAll({From("ram", near), From("file", far)});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("no good copy of chunk 2 (image bytes [2048, 3072))"));
  EXPECT_THAT(text, HasSubstr("ram:/place: its bytes differ from their digest; file:/place: its bytes differ"));
}

TEST_P(ChunkReaderSourceTest, AHealThatFailsIsOnlyLogged) {
  const auto near = Reader(GetParam());
  near->image[0] ^= std::byte{1};
  Source source = From("ram", near);
  source.heal = [](uint64_t, std::span<const std::byte>) { return Unavailable("read-only file system"); };
  EXPECT_EQ(ReadAll({source, From("file", Reader(false))}), absl::OkStatus());
  EXPECT_EQ(target_, image_);
  EXPECT_EQ(result_.chunks_healed, 0u);
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_THAT(log_[1], HasSubstr("event=heal_failed source=ram chunk=0 error=\"read-only file system\""));
}

TEST_P(ChunkReaderSourceTest, APlanOfNoChunksReadsNothing) {
  const auto plan = ReadPlan::Build({}, image_.size(), kChunk);
  const auto reader = Reader(GetParam());
  EXPECT_EQ(ReadChunks(*plan, std::vector{From("file", reader)}, digests_, *crew_, {}, {}, &result_), absl::OkStatus());
  EXPECT_EQ(reader->reads, 0);
}

TEST_P(ChunkReaderSourceTest, AnImageShorterThanItsRecordIsDamaged) {
  const auto reader = Reader(GetParam());
  reader->image.resize(image_.size() - 1);
  const absl::Status status = ReadAll({From("file", reader)});
  EXPECT_TRUE(IsDamaged(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 10"));
}

TEST_P(ChunkReaderSourceTest, WithoutHelpersTheCallerDoesItAll) {
  crew_ = sync::Crew::Create(0);
  EXPECT_EQ(ReadAll({From("file", Reader(GetParam()))}), absl::OkStatus());
  EXPECT_EQ(target_, image_);
}

TEST_F(ChunkReaderTest, AChunkThatCannotBeReadIsTakenFromTheNextSource) {
  const auto near = Reader(false);
  near->errors[4] = ErrnoStatus(EIO, "pread of the shard");
  EXPECT_EQ(ReadAll({From("file", near, true), From("object", Reader(false))}), absl::OkStatus());
  EXPECT_EQ(target_, image_);
  EXPECT_EQ(result_.chunks_failed, 1u);
  EXPECT_EQ(result_.chunks_healed, 1u);
}

TEST_F(ChunkReaderTest, APlaceThatDoesNotAnswerMakesItUnavailableNotLost) {
  const auto near = Reader(true), far = Reader(false);
  near->image[0] ^= std::byte{1};
  far->errors[0] = ErrnoStatus(ESTALE, "pread of the shard");
  for (const auto& sources :
       {std::vector{From("ram", near), From("file", far)}, std::vector{From("file", far), From("ram", near)}}) {
    const absl::Status status = ReadAll(sources);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ErrnoOf(status), ESTALE);
    EXPECT_THAT(std::string(status.message()), HasSubstr("pread of the shard"));
  }
}

TEST_F(ChunkReaderTest, NoMoreReadsThanTheQueueDepthAndTheBuffersAllow) {
  // The reader answers inside the call, so what is in flight is what the stream has asked for at once.
  for (const int depth : {0, 1, 3}) {
    const auto reader = Reader(false);
    Source source = From("file", reader);
    source.queue_depth = depth;
    EXPECT_EQ(ReadAll({source}), absl::OkStatus());
    EXPECT_EQ(target_, image_);
    EXPECT_LE(reader->most_in_flight, std::max(1, depth));
    EXPECT_EQ(reader->reads, 11);
  }
}

// The owner of a slot may fill it anew while it is read. Here the "owner" is the read's own first target, which lies
// over the end of the image: bytes that change after they were hashed must not reach a strided target.
TEST_F(ChunkReaderTest, BytesThatChangeDuringTheReadAreNeverDelivered) {
  image_ = RandomBytes(kChunk);
  digests_ = DigestsOf(image_, kChunk);
  const auto reader = Reader(true);
  std::vector<std::byte> columns(64);
  Range over{.offset = 0, .bytes = 64, .target = reader->image.data() + kChunk - 64};
  Range strided{.offset = kChunk - 64, .bytes = 64, .target = columns.data(), .item_bytes = 4};
  const std::vector<int64_t> shape = {4, 4}, strides = {1, 4};
  strided.strided = std::make_shared<tensor::StridedCopy>(shape, strides, 4);
  const auto plan = ReadPlan::Build(std::vector{over, strided}, kChunk, kChunk);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status status = ReadChunks(*plan, std::vector{From("ram", reader)}, digests_, *crew_, {}, {}, &result_);
  std::vector<std::byte> wanted(64);
  strided.strided->Scatter(wanted.data(), 0, 64, image_.data() + kChunk - 64);
  EXPECT_TRUE(!status.ok() || columns == wanted);
}

TEST_F(ChunkReaderTest, WithoutDigestsBytesAreDeliveredAsTheyAre) {
  const auto reader = Reader(false);
  reader->image[5] ^= std::byte{1};
  digests_.clear();
  EXPECT_EQ(ReadAll({From("file", reader)}), absl::OkStatus());
  EXPECT_EQ(target_, reader->image);
}

TEST_F(ChunkReaderTest, WithoutDigestsAFailedReadIsTakenFromTheNextSourceToo) {
  digests_.clear();
  for (const uint64_t plain_bytes : {uint64_t{1}, ~uint64_t{0}}) {   // right into the targets, and by way of a buffer
    const auto near = Reader(false);
    near->errors[4] = DataLoss("the sum of its record differs");
    target_.assign(image_.size(), std::byte{0});
    const std::vector<Range> ranges = {{.offset = 0, .bytes = image_.size(), .target = target_.data()}};
    const auto plan = ReadPlan::Build(ranges, image_.size(), kChunk);
    ReadOptions options;
    options.plain_bytes = plain_bytes;
    EXPECT_EQ(ReadChunks(*plan, std::vector{From("file", near), From("object", Reader(false))}, digests_, *crew_, options, {},
                         &result_), absl::OkStatus());
    EXPECT_EQ(target_, image_);
    const absl::Status alone = ReadChunks(*plan, std::vector{From("file", near)}, digests_, *crew_, options, {}, &result_);
    EXPECT_TRUE(absl::IsDataLoss(alone)) << alone;
    EXPECT_THAT(std::string(alone.message()), HasSubstr("the sum of its record differs"));
  }
}

TEST_F(ChunkReaderTest, OnlyTouchedRangesAreMarkedWritten) {
  // The second of three chunks cannot be had: what lies only in it is marked all the same once bytes were copied.
  const auto reader = Reader(false);
  reader->errors[1] = Unavailable("no");
  target_.assign(image_.size(), std::byte{0});
  const std::vector<Range> ranges = {{.offset = 0, .bytes = 10, .target = target_.data()},
                                     {.offset = kChunk, .bytes = 10, .target = target_.data() + kChunk},
                                     {.offset = 2 * kChunk, .bytes = 10, .target = target_.data() + 2 * kChunk}};
  const auto plan = ReadPlan::Build(ranges, image_.size(), kChunk);
  std::vector<uint8_t> written(3);
  EXPECT_FALSE(ReadChunks(*plan, std::vector{From("file", reader)}, digests_, *crew_, {}, written, &result_).ok());
  EXPECT_THAT(written, ElementsAre(1, 0, 1));
  // Bytes that turn out to be bad were copied before that was known.
  reader->errors.clear();
  reader->image[kChunk] ^= std::byte{1};
  EXPECT_FALSE(ReadChunks(*plan, std::vector{From("file", reader)}, digests_, *crew_, {}, written, &result_).ok());
  EXPECT_THAT(written, Each(1));
}

TEST_F(ChunkReaderTest, FewerDigestsThanChunksIsDamaged) {
  digests_.pop_back();
  EXPECT_TRUE(IsDamaged(ReadAll({From("file", Reader(false))})));
}

TEST_F(ChunkReaderTest, AReadWithoutASourceIsOurOwnFault) {
  EXPECT_EQ(ReadAll({}).code(), absl::StatusCode::kInternal);
}

TEST_P(ChunkReaderSourceTest, VerifyFindsExactlyTheBadChunks) {
  const auto reader = Reader(GetParam());
  for (const uint64_t chunk : {10, 0, 5}) reader->image[chunk * kChunk + 3] ^= std::byte{4};
  std::vector<uint64_t> bad;
  EXPECT_EQ(VerifyChunks(From("file", reader), image_.size(), kChunk, digests_, *crew_, &bad), absl::OkStatus());
  EXPECT_THAT(bad, ElementsAre(0, 5, 10));
  bad.clear();
  EXPECT_EQ(VerifyChunks(From("file", Reader(GetParam())), image_.size(), kChunk, digests_, *crew_, &bad),
            absl::OkStatus());
  EXPECT_THAT(bad, IsEmpty());
}

TEST_F(ChunkReaderTest, VerifySaysWhyItCouldNotRead) {
  const auto reader = Reader(false);
  reader->errors[2] = ErrnoStatus(EIO, "pread of the shard");
  std::vector<uint64_t> bad;
  const absl::Status status = VerifyChunks(From("file", reader), image_.size(), kChunk, digests_, *crew_, &bad);
  EXPECT_EQ(ErrnoOf(status), EIO);
}

TEST_F(ChunkReaderTest, WhatOthersWantTooIsReadForThem) {
  std::vector<std::byte> target(image_.size());
  // Chunk 0 in part, 1 whole, 2 and 3 whole for many, 4 not at all.
  const std::vector<Range> ranges = {
      {.offset = 8, .bytes = 2 * kChunk - 8, .target = target.data()},
      {.offset = 2 * kChunk, .bytes = 2 * kChunk, .target = target.data() + 2 * kChunk, .shared = true},
  };
  const auto plan = ReadPlan::Build(ranges, image_.size(), kChunk);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto shared = [&](OtherReaders others) {
    const auto reader = Reader(false);
    ReadOptions options;
    options.others = others;
    EXPECT_EQ(ReadChunks(*plan, std::vector{From("file", reader)}, digests_, *crew_, options, {}, &result_), absl::OkStatus());
    EXPECT_EQ(reader->reads, 4);
    return reader->shared;
  };
  EXPECT_THAT(shared(OtherReaders::kNone), IsEmpty());
  EXPECT_THAT(shared(OtherReaders::kOfParts), ElementsAre(0, 2, 3));
  EXPECT_THAT(shared(OtherReaders::kOfAll), ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace neve::restore
