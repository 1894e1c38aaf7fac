#include "format/verified_contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/contents_fixture.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kChunk = 64u << 10;

// An image of several chunks, and its record.
struct Saved {
  std::vector<uint8_t> memory = std::vector<uint8_t>(300'000, 7);
  std::string image;
  CommitRecord record;

  Saved() {
    image = ImageOf(State().Add("w", DType::kU8, {300'000}, {}, reinterpret_cast<uint64_t>(memory.data())));
    record.image_bytes = image.size();
    record.chunk_bytes = kChunk;
    for (uint64_t chunk = 0; chunk < record.chunk_count(); ++chunk) {
      record.digests.push_back(
          codec::DigestOf(std::as_bytes(std::span(image)).subspan(chunk * kChunk, record.ChunkBytesAt(chunk))));
    }
  }
  absl::StatusOr<std::unique_ptr<Contents>> Open() const {
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Contents> contents, OpenText(image));
    return Verified(std::move(contents), record);
  }
};

TEST(VerifiedContentsTest, GoodBytesAreDelivered) {
  const Saved saved;
  const auto contents = saved.Open();
  ASSERT_TRUE(contents.ok()) << contents.status();
  for (const uint64_t begin : {uint64_t{0}, uint64_t{5}, kChunk - 1, kChunk, 3 * kChunk + 17}) {
    std::string target(saved.image.size() - begin, '\0');
    ASSERT_TRUE((*contents)->Read(begin, std::as_writable_bytes(std::span(target))).ok());
    EXPECT_EQ(target, saved.image.substr(begin));
  }
}

TEST(VerifiedContentsTest, AFlippedBitIsDataLossWhereItIsTouchedOnly) {
  Saved saved;
  saved.image[2 * kChunk + 100] ^= 1;
  const auto contents = saved.Open();
  ASSERT_TRUE(contents.ok()) << contents.status();
  std::byte one[1];
  EXPECT_TRUE((*contents)->Read(kChunk + 1, one).ok());
  const absl::Status status = (*contents)->Read(2 * kChunk, one);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), HasSubstr("chunk 2 (offset 131072)"));
  std::vector<ContentsProblem> problems;
  ASSERT_TRUE((*contents)->Check({}, &problems).ok());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].offset, 2 * kChunk);
  EXPECT_FALSE(problems[0].structural);
}

TEST(VerifiedContentsTest, AHeaderThatDiffersIsFoundAtOnce) {
  Saved saved;
  saved.record.digests[0].low ^= 1;
  EXPECT_EQ(saved.Open().status().code(), absl::StatusCode::kDataLoss);
}

TEST(VerifiedContentsTest, ARecordOfAnotherSizeIsDamage) {
  Saved saved;
  saved.record.image_bytes += 1;
  EXPECT_TRUE(IsDamaged(saved.Open().status()));
}

}  // namespace
}  // namespace neve::format
