#include "format/image_header.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/format_fixtures.h"

namespace neve::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Damaged, and the message.
std::string Refused(std::string_view json, uint64_t data_bytes, const HeaderOptions& options = {}) {
  const auto header = ParseJson(json, data_bytes, options);
  EXPECT_FALSE(header.ok()) << json;
  if (header.ok()) return "";
  EXPECT_TRUE(IsDamaged(header.status())) << header.status();
  return Message(header.status());
}

std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}";
}
std::string One(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "{" + Entry("t", dtype, shape, offsets) + "}";
}

absl::StatusOr<ImageHeader> ParseFile(std::string_view file) { return ParseImageHeader(file, file.size()); }

TEST(ImageHeaderTest, AForeignHeaderIsReadInItsOrder) {
  const auto header = ParseJson("{" + Entry("b", "F32", "[2,3]", "[8,32]") + "," + Entry("a", "F64", "[1]", "[0,8]") + "}  ", 32);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "b");
  EXPECT_EQ(header->tensors[0].offset, header->header_bytes + 8);
  EXPECT_EQ(header->tensors[0].shape, (tensor::Dims{2, 3}));
  EXPECT_EQ(header->Find("a")->bytes, 8u);
  EXPECT_EQ(header->Find("c"), nullptr);
  const auto logical = LogicalTensors(*header);
  ASSERT_TRUE(logical.ok());
  EXPECT_EQ((*logical)[0].strides, (tensor::Dims{3, 1}));
}

TEST(ImageHeaderTest, UnknownFieldsOfATensorAreSkipped) {
  EXPECT_TRUE(ParseJson(R"({"t":{"dtype":"U8","x":{"y":[1,null]},"shape":[1],"data_offsets":[0,1]}})", 1).ok());
}

TEST(ImageHeaderTest, ST_13_AnyHeaderLengthIsReadable) {
  std::string json = "{" + Entry("t", "F32", "[1]", "[0,4]") + "}";
  json.resize(42853, ' ');
  EXPECT_EQ(ParseJson(json, 4)->tensors[0].offset % 2, 1u);
}

TEST(ImageHeaderTest, ST_08_NoTensorsAndEmptyOrNullMetadataAreFine) {
  for (const char* json : {"{}      ", R"({"__metadata__":{}})", R"({"__metadata__":null})", R"({"__metadata__":{"k":"v"}})"}) {
    const auto header = ParseJson(json, 0);
    ASSERT_TRUE(header.ok()) << json << header.status();
    EXPECT_THAT(header->tensors, IsEmpty());
  }
}

TEST(ImageHeaderTest, ST_09_NamesWithNulAreOtherNames) {
  const auto header = ParseJson("{" + Entry("a", "U8", "[1]", "[0,1]") + "," + Entry("a\\u0000b", "U8", "[1]", "[1,2]") + "}", 2);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[1].name, std::string("a\0b", 3));
}

TEST(ImageHeaderTest, ST_10_EmptyAndScalarTensorsAreAccepted) {
  EXPECT_TRUE(ParseJson("{" + Entry("a", "F32", "[1]", "[0,4]") + "," + Entry("b", "F32", "[1]", "[4,8]") + "," +
                            Entry("e", "F32", "[0]", "[4,4]") + "," + Entry("f", "F32", "[2,0]", "[8,8]") + "," +
                            Entry("s", "F32", "[]", "[8,12]") + "}",
                        12)
                  .ok());
}

// ---- the file is something else ----

TEST(ImageHeaderTest, ST_03_ALargeFilePointerIsNamedWithItsObject) {
  const std::string file =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
      "size 12345\n";
  const absl::Status status = ParseFile(file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("Git LFS pointer"), HasSubstr("sha256:4d7a2146"), HasSubstr("12345 bytes")));
  EXPECT_THAT(Message(HeaderBytesNeeded("version ", 130).status()), HasSubstr("Git LFS pointer"));
}

TEST(ImageHeaderTest, ST_03_OtherFilesAreNamedByTheirKind) {
  const auto message = [](std::string_view file) {
    const absl::Status status = ParseFile(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    return Message(status);
  };
  EXPECT_THAT(message("\n<!DOCTYPE html><html></html>"), HasSubstr("HTML"));
  EXPECT_THAT(message(std::string("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00", 12)), HasSubstr("zip archive"));
  EXPECT_THAT(message(std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", 10)), HasSubstr("gzip"));
  EXPECT_THAT(message(std::string("\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00", 9)), HasSubstr("zstd"));
  EXPECT_THAT(message(std::string("\x80\x02}q\x00.xxxxxxxx", 14)), HasSubstr("pickle"));
  EXPECT_THAT(message(std::string(64, '\0')), HasSubstr("all zeros"));
  EXPECT_THAT(message("{\"weight_map\": {}}\n"), HasSubstr("text"));
  EXPECT_THAT(message(""), HasSubstr("empty"));
  EXPECT_TRUE(IsDamaged(ParseFile(std::string(8, '\xff') + "{}").status()));   // no kind of anything: a header gone bad
}

TEST(ImageHeaderTest, ST_03_SevenBytesAreRefused) {
  EXPECT_EQ(ParseFile("1234567").status().code(), absl::StatusCode::kUnimplemented);   // nothing says that it ever was one
  EXPECT_THAT(Message(ParseFile("1234567").status()), HasSubstr("not a safetensors file but 7 bytes"));
}

TEST(ImageHeaderTest, ST_16_LengthsOverTheLimitAreRefusedByNumber) {
  const auto with_length = [](uint64_t length) {
    std::string file(9, '{');
    for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
    return file;
  };
  EXPECT_THAT(Message(ParseFile(with_length(100'000'001)).status()), HasSubstr("100000001, over the limit"));
  EXPECT_TRUE(IsDamaged(ParseFile(with_length(uint64_t{1} << 63)).status()));
  EXPECT_EQ(*HeaderBytesNeeded(with_length(100'000'000), 200'000'000), 100'000'008u);
  EXPECT_THAT(Message(ParseFile(with_length(100'000'000)).status()), HasSubstr("cut short"));
}

// ---- JSON ----

TEST(ImageHeaderTest, ST_05_NulPaddingIsRefusedWithItsPlace) {
  std::string json = "{" + Entry("t", "U8", "[1]", "[0,1]") + "}";
  const uint64_t end = 8 + json.size();
  EXPECT_THAT(Refused(json + std::string(3, '\0'), 1), HasSubstr("NUL from byte " + std::to_string(end)));
}

TEST(ImageHeaderTest, ST_05_NewlinePaddingAndALeadingSpaceAreRefused) {
  const std::string json = "{" + Entry("t", "U8", "[1]", "[0,1]") + "}";
  EXPECT_THAT(Refused(json + " \n", 1), HasSubstr("0x0a"));
  EXPECT_THAT(Refused(" " + json, 1), HasSubstr("brace"));
  EXPECT_THAT(Refused(json + "{}", 1), HasSubstr("0x7b"));
}

TEST(ImageHeaderTest, ST_06_DuplicateNamesAreRefusedWithBothPositions) {
  const std::string first = Entry("a", "U8", "[4]", "[0,4]");
  EXPECT_THAT(Refused("{" + first + "," + Entry("a", "U8", "[4]", "[4,8]") + "}", 8),
              AllOf(HasSubstr("\"a\" stands twice"), HasSubstr("bytes 9 and " + std::to_string(10 + first.size()))));
  EXPECT_THAT(Refused("{" + first + "," + Entry("\\u0061", "U8", "[4]", "[4,8]") + "}", 8), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(Refused(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("__metadata__"));
  EXPECT_THAT(Refused(R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("\"dtype\" stands twice"));
  EXPECT_THAT(Refused(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("\"k\" stands twice"));
}

TEST(ImageHeaderTest, ST_06_DuplicatesAmongManyNamesAreFound) {
  std::string json = "{";
  for (int i = 0; i < 1000; ++i) json += Entry(i == 777 ? "n5" : "n" + std::to_string(i), "U8", "[0]", "[0,0]") + ",";
  json.back() = '}';
  EXPECT_THAT(Refused(json, 0), HasSubstr("\"n5\" stands twice"));
}

TEST(ImageHeaderTest, ST_07_MetadataThatIsNotAStringIsRefusedByKey) {
  for (const char* value : {"100", "null", R"({"b":"c"})", "true", "[]"}) {
    EXPECT_THAT(Refused(std::string(R"({"__metadata__":{"step":)") + value + "}}", 0), HasSubstr("key \"step\" is not a string"));
  }
  EXPECT_THAT(Refused(R"({"__metadata__":[]})", 0), HasSubstr("expected an object"));
}

TEST(ImageHeaderTest, ST_07_LenientReadingShowsMetadataAsText) {
  std::vector<std::string> notes;
  const auto header = ParseJson(R"({"__metadata__":{"step":100}})", 0, {.lenient = true, .notes = &notes});
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(*header->FindMetadata("step"), "100");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("step"));
}

TEST(ImageHeaderTest, ST_09_LoneSurrogatesAreRefused) {
  for (const char* name : {"\\ud800", "\\udc00", "\\ud800x", "\\ud800\\u0041"}) {
    EXPECT_THAT(Refused("{" + Entry(name, "U8", "[1]", "[0,1]") + "}", 1), HasSubstr("surrogate")) << name;
  }
}

TEST(ImageHeaderTest, HeadersThatAreNotUtf8AreRefused) {
  EXPECT_THAT(Refused("{" + Entry("a\xc3", "U8", "[1]", "[0,1]") + "}", 1), HasSubstr("UTF-8"));
}

TEST(ImageHeaderTest, BrokenJsonIsRefused) {
  for (const char* json : {"{", "{\"a\"", "{\"a\":", "{,}", "{\"a\":{},}", "{\"__metadata__\":{\"a\":\"b}", "{a:1}"}) {
    EXPECT_FALSE(Refused(json, 0).empty()) << json;
  }
}

TEST(ImageHeaderTest, DeepNestingIsRefusedNotFollowed) {
  EXPECT_THAT(Refused("{\"t\":{\"x\":" + std::string(100'000, '[') + "}}", 0), HasSubstr("nested"));
}

// ---- a header that contradicts itself ----

TEST(ImageHeaderTest, ST_11_ShapeAndBytesThatDisagreeAreRefused) {
  EXPECT_THAT(Refused(One("F32", "[1000,1000]", "[0,4]"), 4),
              AllOf(HasSubstr("\"t\""), HasSubstr("4000000"), HasSubstr("span 4")));
  EXPECT_THAT(Refused(One("F64", "[4]", "[0,16]"), 16), HasSubstr("take 32 bytes"));
  EXPECT_THAT(Refused(One("U8", "[1]", "[0,0]"), 0), HasSubstr("take 1 bytes"));
}

TEST(ImageHeaderTest, ST_11_BeginAfterEndIsRefused) {
  EXPECT_THAT(Refused(One("U8", "[4]", "[8,4]"), 8), AllOf(HasSubstr("\"t\""), HasSubstr("after its end")));
}

TEST(ImageHeaderTest, ST_11_AnEndPastTheFileIsRefused) {
  EXPECT_THAT(Refused(One("U8", "[8]", "[0,8]"), 4), AllOf(HasSubstr("\"t\""), HasSubstr("cut short")));
}

TEST(ImageHeaderTest, ST_11_AHoleIsRefused) {
  EXPECT_THAT(Refused("{" + Entry("a", "U8", "[4]", "[0,4]") + "," + Entry("b", "U8", "[4]", "[8,12]") + "}", 12),
              AllOf(HasSubstr("hole of 4 bytes"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
}

TEST(ImageHeaderTest, ST_11_AnOverlapIsRefused) {
  EXPECT_THAT(Refused("{" + Entry("a", "U8", "[4]", "[0,4]") + "," + Entry("b", "U8", "[4]", "[2,6]") + "}", 6),
              AllOf(HasSubstr("\"b\" begins at 2"), HasSubstr("\"a\"")));
}

TEST(ImageHeaderTest, ST_11_AFirstTensorThatIsNotAtZeroIsRefused) {
  EXPECT_THAT(Refused(One("U8", "[4]", "[4,8]"), 8), HasSubstr("not at 0"));
}

TEST(ImageHeaderTest, ST_11_MissingFieldsAreRefused) {
  EXPECT_THAT(Refused(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1), AllOf(HasSubstr("\"t\""), HasSubstr("no dtype")));
  EXPECT_THAT(Refused(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), HasSubstr("no shape"));
  EXPECT_THAT(Refused(R"({"t":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("no data_offsets"));
}

TEST(ImageHeaderTest, ST_11_UnknownDTypesAreRefused) {
  EXPECT_THAT(Refused(One("F33", "[1]", "[0,4]"), 4), AllOf(HasSubstr("\"t\""), HasSubstr("\"F33\"")));
  EXPECT_THAT(Refused(One("C128", "[1]", "[0,16]"), 16), HasSubstr("C128"));   // ours, not safetensors'
}

TEST(ImageHeaderTest, ST_11_NumbersThatAreNotCountsAreRefused) {
  EXPECT_THAT(Refused(One("U8", "[-1]", "[0,1]"), 1), AllOf(HasSubstr("\"t\""), HasSubstr("negative")));
  EXPECT_THAT(Refused(One("U8", "[1.0]", "[0,1]"), 1), HasSubstr("whole number"));
  EXPECT_THAT(Refused(One("U8", "[1e0]", "[0,1]"), 1), HasSubstr("whole number"));
  EXPECT_THAT(Refused(One("U8", "[01]", "[0,1]"), 1), HasSubstr("leading zero"));
  EXPECT_THAT(Refused(One("U8", "\"x\"", "[0,1]"), 1), HasSubstr("expected a list"));
  EXPECT_THAT(Refused(One("U8", "[1]", "[0]"), 1), HasSubstr("fewer than two"));
  EXPECT_THAT(Refused(One("U8", "[1]", "[0,1,2]"), 1), HasSubstr("more than two"));
}

TEST(ImageHeaderTest, ST_11_OverflowsAreRefused) {
  EXPECT_THAT(Refused(One("U8", "[18446744073709551616]", "[0,1]"), 1), HasSubstr("overflows"));
  EXPECT_THAT(Refused(One("U8", "[9223372036854775808]", "[0,1]"), 1), HasSubstr("overflows"));
  EXPECT_THAT(Refused(One("U8", "[4294967296,4294967296]", "[0,0]"), 1), HasSubstr("overflows"));
  EXPECT_THAT(Refused(One("F64", "[4611686018427387904]", "[0,0]"), 1), HasSubstr("overflows"));
}

TEST(ImageHeaderTest, ST_12_AnOddLastExtentOfF4IsRefused) {
  EXPECT_TRUE(ParseJson(One("F4", "[2,8]", "[0,8]"), 8).ok());
  EXPECT_THAT(Refused(One("F4", "[3]", "[0,2]"), 2), HasSubstr("even"));
  EXPECT_THAT(Refused(One("F4", "[2,3]", "[0,3]"), 3), HasSubstr("even"));
  EXPECT_THAT(Refused(One("F4", "[]", "[0,1]"), 1), HasSubstr("even"));
}

TEST(ImageHeaderTest, ST_04_AShorterFileNamesTheFirstTensorAffected) {
  const std::string json = "{" + Entry("a", "U8", "[4096]", "[0,4096]") + "," + Entry("b", "U8", "[4096]", "[4096,8192]") + "}";
  const std::string whole = std::to_string(8 + json.size() + 8192);
  for (const auto& [bytes, name] :
       std::vector<std::pair<uint64_t, std::string>>{{8092, "b"}, {4096, "b"}, {1000, "a"}, {0, "a"}}) {
    EXPECT_THAT(Refused(json, bytes),
                AllOf(HasSubstr(whole + " bytes expected"), HasSubstr(std::to_string(8 + json.size() + bytes) + " found"),
                      HasSubstr("is \"" + name + "\"")));
  }
}

TEST(ImageHeaderTest, TrailingBytesAreRefusedAndAllowedWhenLenient) {
  EXPECT_THAT(Refused(One("U8", "[4]", "[0,4]"), 5), HasSubstr("1 bytes follow the last tensor"));
  std::vector<std::string> notes;
  EXPECT_TRUE(ParseJson(One("U8", "[4]", "[0,4]"), 5, {.lenient = true, .notes = &notes}).ok());
  EXPECT_EQ(notes.size(), 1u);
}

TEST(ImageHeaderTest, AHeadThatIsTooShortIsTheCallersFault) {
  EXPECT_EQ(ParseImageHeader(HeadOf("{}").substr(0, 9), 10).status().code(), absl::StatusCode::kInternal);
}

TEST(ImageHeaderTest, NoDamagedByteMakesTheReaderFall) {
  constexpr uint64_t kSeed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  const auto layout = State()
                          .Add("a", DType::kF32, {3, 2}, {1, 3}, 0x1000)
                          .Add("b", DType::kF32, {3}, {}, 0x1004)
                          .Add("c", DType::kC128, {2}, {}, 0x2000)
                          .Build();
  const std::string good = HeaderOf(*layout);
  const size_t end = good.find_last_of('}') + 2;
  for (int i = 0; i < 20'000; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) bad[random() % end] = static_cast<char>(random());
    const auto header = ParseImageHeader(bad, layout->image_bytes());
    if (header.ok()) (void)LogicalTensors(*header).ok();   // either answer is right; the sanitizers watch
  }
}

// ---- the tree ----

std::string WithTree(std::string_view tree, std::string_view entries, std::string_view format = "1") {
  std::string escaped;
  for (const char c : tree) escaped += c == '"' ? std::string("\\\"") : std::string(1, c);
  return "{\"__metadata__\":{\"neve.format\":\"" + std::string(format) + "\",\"neve.tree\":\"" + escaped + "\"}," +
         std::string(entries) + "}";
}

absl::Status TreeRefusal(std::string_view tree, std::string_view entries, uint64_t data_bytes) {
  const auto header = ParseJson(WithTree(tree, entries), data_bytes);
  EXPECT_TRUE(header.ok()) << header.status();
  return LogicalTensors(*header).status();
}

TEST(LogicalTensorsTest, TreesThatContradictTheHeaderAreDamaged) {
  const std::string a = Entry("a", "U8", "[4]", "[0,4]");
  const auto damaged = [&](std::string_view tensors) {
    const absl::Status status = TreeRefusal("{\"v\":1,\"tensors\":" + std::string(tensors) + "}", a, 4);
    EXPECT_TRUE(IsDamaged(status)) << status << tensors;
    return Message(status);
  };
  EXPECT_THAT(damaged(R"({"strided":{"b":[[4],[1]]}})"), HasSubstr("\"b\", which the header lacks"));
  EXPECT_THAT(damaged(R"({"strided":{"a":[[5],[1]]}})"), HasSubstr("do not fit"));
  EXPECT_THAT(damaged(R"({"strided":{"a":[[4]]}})"), HasSubstr("not [shape, strides]"));
  EXPECT_THAT(damaged(R"({"strided":{"a":[[2,2],[1,1]]}})"), HasSubstr("do not fit"));
  EXPECT_THAT(damaged(R"({"dtype":{"a":"C128"}})"), HasSubstr("does not fit"));
  EXPECT_THAT(damaged(R"({"dtype":{"a":"F32"}})"), HasSubstr("does not fit"));
  EXPECT_THAT(damaged(R"({"dtype":{"a":"F33"}})"), HasSubstr("unknown dtype"));
  EXPECT_THAT(damaged(R"({"dtype":{"b":"C128"}})"), HasSubstr("lacks"));
  EXPECT_THAT(damaged(R"({"alias":[[1,"x","b",0,"U8",[1],[1]]]})"), HasSubstr("not in the header"));
  EXPECT_THAT(damaged(R"({"alias":[[1,"x","a",1,"F32",[1],[1]]]})"), HasSubstr("reach past"));
  EXPECT_THAT(damaged(R"({"alias":[[1,"x","a",5,"U8",[0],[1]]]})"), HasSubstr("reach past"));
  EXPECT_THAT(damaged(R"({"alias":[[1,"x","a",0,"U8",[2],[-1]]]})"), HasSubstr("negative"));
  EXPECT_THAT(damaged(R"({"alias":[[2,"x","a",0,"U8",[1],[1]]]})"), HasSubstr("position 2"));
  EXPECT_THAT(damaged(R"({"alias":[[1,"a","a",0,"U8",[1],[1]]]})"), HasSubstr("two tensors"));
  EXPECT_THAT(damaged(R"({"alias":[[1,"x","a",0,"U8",[1]]]})"), HasSubstr("an alias is not"));
  EXPECT_THAT(damaged(R"([])"), HasSubstr("expected an object"));
  EXPECT_THAT(damaged(R"({"piece":{"b":[[4],[0]]}})"), HasSubstr("\"b\", which is no tensor"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[3],[0]]}})"), HasSubstr("does not lie in its global shape"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[5]]}})"), HasSubstr("[5:9] does not lie"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[9223372036854775807]]}})"), HasSubstr("does not lie"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[-1]]}})"), HasSubstr("negative"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8,1],[0,0]]}})"), HasSubstr("1 dimensions"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[9223372036854775807],[0]]}})"), HasSubstr("overflow"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8]]}})"), HasSubstr("not [global shape"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[0],""]}})"), HasSubstr("not [global shape"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[0],"neve.base.3"]}})"), HasSubstr("reserved"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[0],"x",1]}})"), HasSubstr("not [global shape"));
  EXPECT_THAT(damaged(R"({"piece":{"a":[[8],[0]]},"alias":[[1,"x","a",0,"U8",[1],[1]]]})"), HasSubstr("is a piece"));
  EXPECT_THAT(damaged(R"({"piece":{"x":[[8],[0]]},"alias":[[1,"x","a",0,"U8",[1],[1]]]})"), HasSubstr("no tensor of the header"));
}

TEST(LogicalTensorsTest, OtherVersionsAreUnsupported) {
  EXPECT_EQ(TreeRefusal("{\"v\":2}", Entry("a", "U8", "[4]", "[0,4]"), 4).code(), absl::StatusCode::kUnimplemented);
  const auto header = ParseJson(WithTree("{\"v\":1}", Entry("a", "U8", "[4]", "[0,4]"), "2"), 4);
  EXPECT_EQ(LogicalTensors(*header).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(LogicalTensorsTest, AMissingTreeIsDamaged) {
  const auto header = ParseJson(R"({"__metadata__":{"neve.format":"1"}})", 0);
  EXPECT_TRUE(IsDamaged(LogicalTensors(*header).status()));
}

TEST(LogicalTensorsTest, UnknownPartsOfTheTreeAreSkipped) {
  const auto header =
      ParseJson(WithTree(R"({"v":1,"root":{"?":[1]},"tensors":{"later":[1]}})", Entry("a", "U8", "[4]", "[0,4]")), 4);
  EXPECT_EQ(LogicalTensors(*header)->size(), 1u);
}

TEST(LogicalTensorsTest, NamesLikeOursInAForeignFileAreOrdinaryTensors) {
  const auto header = ParseJson("{" + Entry("neve.blob.0", "U8", "[4]", "[0,4]") + "}", 4);
  EXPECT_EQ(LogicalTensors(*header)->size(), 1u);
}

}  // namespace
}  // namespace neve::format
