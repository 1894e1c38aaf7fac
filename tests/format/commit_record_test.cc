#include "format/commit_record.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/codec/digest.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;

CommitRecord Sample() {
  CommitRecord record;
  record.job = "gpt \"large\"";
  EXPECT_TRUE(Uid::FromHex("00112233445566778899aabbccddeeff", &record.uid));
  record.key = {.save = {3, 17}, .step = 1000, .rank = 3, .world = 8};
  record.time = 1'718'000'000;
  record.tags = {{"epoch", int64_t{4}}, {"loss", 2.0}, {"best", true}, {"note", std::string("snow \u2744")}};
  record.layout_id = 0x0123456789abcdef;
  record.chunk_bytes = 64u << 10;
  record.image_bytes = 3 * record.chunk_bytes + 5;
  record.header_bytes = 4096;
  for (uint64_t i = 0; i < 4; ++i) record.digests.push_back({i, ~i});
  record.provenance = {{"neve", "0.1.0"}, {"host", "n1"}};
  return record;
}

// A record with one part of its text replaced, sealed again: for what the seal does not catch.
std::string Resealed(const std::string& from, const std::string& to) {
  std::string text = EncodeRecord(Sample());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  text.resize(text.rfind(",\"digest\""));
  const std::string digest = codec::DigestOf(std::as_bytes(std::span(std::string_view(text)))).ToHex();
  return text + ",\"digest\":\"" + digest + "\"}";
}

std::string Damage(const std::string& from, const std::string& to) {
  const auto record = DecodeRecord(Resealed(from, to));
  EXPECT_FALSE(record.ok()) << from << " -> " << to;
  if (record.ok()) return "";
  EXPECT_TRUE(IsDamaged(record.status())) << record.status();
  return std::string(record.status().message());
}

TEST(CommitRecordTest, ComesBackAsItWas) {
  const CommitRecord sample = Sample();
  auto record = DecodeRecord(EncodeRecord(sample));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->job, sample.job);
  EXPECT_EQ(record->uid, sample.uid);
  EXPECT_EQ(record->key, sample.key);
  EXPECT_EQ(record->time, sample.time);
  EXPECT_EQ(record->tags, sample.tags);
  EXPECT_EQ(record->layout_id, sample.layout_id);
  EXPECT_EQ(record->image_bytes, sample.image_bytes);
  EXPECT_EQ(record->header_bytes, sample.header_bytes);
  EXPECT_EQ(record->chunk_bytes, sample.chunk_bytes);
  EXPECT_EQ(record->digests, sample.digests);
  EXPECT_EQ(record->provenance, sample.provenance);
}

TEST(CommitRecordTest, TagsKeepTheirTypesAndNumbersThatJsonLacks) {
  CommitRecord sample = Sample();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  sample.tags = {{"int", int64_t{2}}, {"min", std::numeric_limits<int64_t>::min()}, {"double", 2.0}, {"tiny", 5e-324},
                 {"third", 1.0 / 3}, {"inf", kInfinity}, {"-inf", -kInfinity}, {"nan", std::nan("")}, {"text", std::string("2")}};
  auto record = DecodeRecord(EncodeRecord(sample));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_TRUE(std::isnan(std::get<double>(record->tags["nan"])));
  record->tags.erase("nan");
  sample.tags.erase("nan");
  EXPECT_EQ(record->tags, sample.tags);
}

TEST(CommitRecordTest, TextThatIsNotUtf8StillMakesAReadableRecord) {
  CommitRecord sample = Sample();
  sample.provenance["host"] = "n\xff";
  auto record = DecodeRecord(EncodeRecord(sample));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->provenance["host"], "n\ufffd");
}

TEST(CommitRecordTest, AnEmptyImageHasNoDigests) {
  CommitRecord sample = Sample();
  sample.image_bytes = sample.header_bytes = 0;
  sample.digests.clear();
  EXPECT_TRUE(DecodeRecord(EncodeRecord(sample)).ok());
}

TEST(CommitRecordTest, EveryFlippedBitIsRefused) {
  const std::string good = EncodeRecord(Sample());
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const auto record = DecodeRecord(bad);
      ASSERT_FALSE(record.ok()) << "byte " << i << " bit " << bit;
      ASSERT_TRUE(IsDamaged(record.status()) || record.status().code() == absl::StatusCode::kDataLoss) << record.status();
    }
  }
}

TEST(CommitRecordTest, EveryTruncationIsDamaged) {
  const std::string good = EncodeRecord(Sample());
  for (size_t length = 0; length < good.size(); ++length) {
    const auto record = DecodeRecord(std::string_view(good).substr(0, length));
    ASSERT_FALSE(record.ok()) << length;
    ASSERT_TRUE(IsDamaged(record.status())) << record.status();
  }
  EXPECT_FALSE(DecodeRecord(good + "\n").ok());
}

TEST(CommitRecordTest, ChangedTextIsDataLossWithBothDigests) {
  std::string bad = EncodeRecord(Sample());
  bad.replace(bad.find("\"step\":1000"), 11, "\"step\":1001");
  const absl::Status status = DecodeRecord(bad).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its own digest differs"));
}

TEST(CommitRecordTest, AnotherFormatIsUnsupported) {
  EXPECT_EQ(DecodeRecord(Resealed("\"format\":1", "\"format\":2")).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(DecodeRecord(R"({"format":2,"anything":"else"})").status().code(), absl::StatusCode::kUnimplemented);
}

TEST(CommitRecordTest, UnknownFieldsAreSkipped) {
  EXPECT_TRUE(DecodeRecord(Resealed("\"time\":", "\"later\":[{\"x\":1}],\"time\":")).ok());
}

TEST(CommitRecordTest, EveryFieldIsNeeded) {
  for (const char* name : {"job", "uid", "step", "incarnation", "sequence", "rank", "world", "time", "tags", "layout", "image",
                           "digests", "provenance"}) {
    const std::string field = "\"" + std::string(name) + "\":";
    EXPECT_THAT(Damage("," + field, ",\"x" + field.substr(1)), HasSubstr("the field " + std::string(name) + " is missing"));
  }
}

TEST(CommitRecordTest, FieldsOfTheWrongTypeOrRangeAreDamaged) {
  EXPECT_THAT(Damage("\"step\":1000", "\"step\":\"1000\""), HasSubstr("expected a number"));
  EXPECT_THAT(Damage("\"step\":1000", "\"step\":-1"), HasSubstr("negative"));
  EXPECT_THAT(Damage("\"step\":1000", "\"step\":1000000000000"), HasSubstr("not below"));
  EXPECT_THAT(Damage("\"incarnation\":3", "\"incarnation\":4294967296"), HasSubstr("over 32 bits"));
  EXPECT_THAT(Damage("\"rank\":3", "\"rank\":8"), HasSubstr("rank 8 of world 8"));
  EXPECT_THAT(Damage("\"world\":8", "\"world\":0"), HasSubstr("world 0"));
  EXPECT_THAT(Damage("\"uid\":\"0011", "\"uid\":\"001"), HasSubstr("uid"));
  EXPECT_THAT(Damage("\"layout\":\"0123", "\"layout\":\"-123"), HasSubstr("layout"));
  EXPECT_THAT(Damage("shard-00003-of-00008", "shard-00004-of-00008"), HasSubstr("its rank's is"));
  EXPECT_THAT(Damage("\"chunk_bytes\":65536", "\"chunk_bytes\":65535"), HasSubstr("chunk_bytes is 65535"));
  EXPECT_THAT(Damage("\"header_bytes\":4096", "\"header_bytes\":4096000"), HasSubstr("a header of"));
  EXPECT_THAT(Damage("\"bytes\":196613", "\"bytes\":196608"), HasSubstr("4 digests"));
  EXPECT_THAT(Damage("\"bytes\":196613,", ""), HasSubstr("image lacks"));
  EXPECT_THAT(Damage("\"epoch\":4", "\"epoch\":null"), HasSubstr("a tag that is not"));
  EXPECT_THAT(Damage("\"epoch\":4", "\"epoch\":{\"f\":\"many\"}"), HasSubstr("neither nan"));
  EXPECT_THAT(Damage("\"epoch\":4", "\"epoch\":9223372036854775808"), HasSubstr("out of the range"));
  EXPECT_THAT(Damage("\"host\":\"n1\"", "\"host\":1"), HasSubstr("expected a string"));
  EXPECT_THAT(Damage("\"job\":", "\"format\":1,\"job\":"), HasSubstr("twice"));
}

}  // namespace
}  // namespace neve::format
