#include "format/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neve::format {
namespace {

using ::testing::HasSubstr;

TEST(NamesTest, SaveNamesArePaddedAndComeBack) {
  const SaveName name = {1000, {3, 17}};
  EXPECT_EQ(FormatSaveName(name), "step-000000001000.i0003.s000017");
  EXPECT_EQ(ParseSaveName("step-000000001000.i0003.s000017"), name);
}

TEST(NamesTest, NumbersGrowBeyondTheirWidths) {
  const SaveName name = {999'999'999'999, {UINT32_MAX, UINT64_MAX}};
  EXPECT_EQ(FormatSaveName(name), "step-999999999999.i4294967295.s18446744073709551615");
  EXPECT_EQ(ParseSaveName(FormatSaveName(name)), name);
}

TEST(NamesTest, SaveNamesThatFormatDoesNotGiveAreNone) {
  for (const char* name :
       {"", "step-1000.i0003.s000017", "step-000000001000.i3.s000017", "step-000000001000.i0003.s000017/",
        "step-000000001000.i0003.s000017 ", "step-0000000001000.i0003.s000017", "step--00000001000.i0003.s000017",
        "step-+00000001000.i0003.s000017", "Step-000000001000.i0003.s000017", "step-1000000000000.i0003.s000017",
        "step-000000001000.i4294967296.s000017", "step-000000001000.i0003", ".tmp-step-000000001000.i0003.s000017"}) {
    EXPECT_EQ(ParseSaveName(name), std::nullopt) << name;
  }
}

TEST(NamesTest, ShardNamesTellRankWorldAndKind) {
  EXPECT_EQ(FormatImageName(3, 8), "shard-00003-of-00008.safetensors");
  EXPECT_EQ(FormatRecordName(3, 8), "shard-00003-of-00008.commit.json");
  EXPECT_EQ(ParseShardName("shard-00003-of-00008.safetensors"), (ShardName{3, 8, false}));
  EXPECT_EQ(ParseShardName("shard-00003-of-00008.commit.json"), (ShardName{3, 8, true}));
  EXPECT_EQ(ParseShardName(FormatImageName(123'456, 200'000)), (ShardName{123'456, 200'000, false}));
}

TEST(NamesTest, ShardNamesThatFormatDoesNotGiveAreNone) {
  for (const char* name : {"shard-00008-of-00008.safetensors", "shard-00000-of-00000.safetensors", "shard-3-of-8.safetensors",
                           "shard-00003-of-00008.safetensors.zst", "shard-00003-of-00008", "shard-00003.safetensors",
                           "shard-00003-of-00008.commit.json.tmp", "../shard-00003-of-00008.safetensors"}) {
    EXPECT_EQ(ParseShardName(name), std::nullopt) << name;
  }
}

TEST(NamesTest, LifeNamesComeBack) {
  EXPECT_EQ(FormatLifeName(3), "life-0003.json");
  EXPECT_EQ(ParseLifeName("life-0003.json"), 3u);
  EXPECT_EQ(ParseLifeName(FormatLifeName(123'456)), 123'456u);
  for (const char* name : {"life-3.json", "life-00003.json", "life-0003", "life-.json", "life-0003.json~"}) {
    EXPECT_EQ(ParseLifeName(name), std::nullopt) << name;
  }
}

TEST(NamesTest, JobIdentityComesBack) {
  JobIdentity job = {"runs/\"gpt\"\n", UidFromName("x")};
  const auto read = DecodeJobIdentity(EncodeJobIdentity(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->name, job.name);
  EXPECT_EQ(read->uid, job.uid);
}

TEST(NamesTest, BrokenJobIdentitiesAreDamaged) {
  const std::string good = EncodeJobIdentity({"gpt", UidFromName("x")});
  for (size_t length = 0; length + 1 < good.size(); ++length) {
    EXPECT_TRUE(IsDamaged(DecodeJobIdentity(std::string_view(good).substr(0, length)).status())) << length;
  }
  for (const char* text : {"{}", R"({"format":1,"name":"x"})", R"({"format":1,"name":"x","uid":"12"})",
                           R"({"format":1,"name":"x","uid":"00000000000000000000000000000000"})"}) {
    EXPECT_TRUE(IsDamaged(DecodeJobIdentity(text).status())) << text;
  }
}

TEST(NamesTest, AJobIdentityOfAnotherFormatIsUnsupported) {
  EXPECT_EQ(DecodeJobIdentity(R"({"format":2,"name":"x","uid":"00112233445566778899aabbccddeeff"})").status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(NamesTest, LifeClaimsComeBack) {
  const LifeClaim claim = {"n0nce", "host-1", "boot", 1234, 5678, 16};
  const auto read = DecodeLifeClaim(EncodeLifeClaim(claim));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->nonce, claim.nonce);
  EXPECT_EQ(read->host, claim.host);
  EXPECT_EQ(read->boot_id, claim.boot_id);
  EXPECT_EQ(read->pid, claim.pid);
  EXPECT_EQ(read->start_time, claim.start_time);
  EXPECT_EQ(read->world, claim.world);
}

TEST(NamesTest, BrokenLifeClaimsAreDamaged) {
  const std::string good = EncodeLifeClaim({"n", "h", "b", 1, 2, 3});
  for (size_t length = 0; length + 1 < good.size(); ++length) {
    EXPECT_TRUE(IsDamaged(DecodeLifeClaim(std::string_view(good).substr(0, length)).status())) << length;
  }
  EXPECT_TRUE(IsDamaged(DecodeLifeClaim("{}").status()));
  std::string bad = good;
  bad.replace(bad.find("\"world\":3"), 9, "\"world\":0");
  EXPECT_TRUE(IsDamaged(DecodeLifeClaim(bad).status()));
}

TEST(NamesTest, AUidFromANameIsAlwaysTheSameAndKnown) {
  EXPECT_EQ(UidFromName("gpt"), UidFromName("gpt"));
  EXPECT_NE(UidFromName("gpt"), UidFromName("gpu"));
  EXPECT_TRUE(UidFromName("").known());
}

}  // namespace
}  // namespace neve::format
