#include "format/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/json_text.h"

namespace neve::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The failure of reading `text` as any one value; "" when it is good.
std::string Failure(std::string_view text, int depth_max = 64) {
  JsonReader in(text, depth_max);
  in.Skip();
  const absl::Status status = in.Finish();
  EXPECT_TRUE(status.ok() || IsDamaged(status)) << status;
  return std::string(status.message());
}

TEST(JsonReaderTest, AcceptsWhatJsonIs) {
  for (const char* text : {"null", " true ", "false", "0", "-0", "-12.5e+3", "1E5", "\"\"", "[]", "{}", "[1,[2],{\"a\":3}]",
                           "\t[\n1 ,\r2 ]\n", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\""}) {
    EXPECT_EQ(Failure(text), "") << text;
  }
}

TEST(JsonReaderTest, RefusesWhatJsonIsNot) {
  for (const char* text : {"",           " ",         "nul",         "True",  "tru",  "+1",       "01",  "-",       "1.",
                           ".5",         "1e",        "1e+",         "0x1",   "NaN",  "Infinity", "'a'", "\"a",     "\"\n\"",
                           "\"\\x\"",    "\"\\u12\"", "\"\\u12g4\"", "[1,]",  "[,1]", "[1 2]",    "[",   "{\"a\"}", "{\"a\":}",
                           "{\"a\":1,}", "{a:1}",     "{1:2}",       "{} {}", "[1]]", "// x\n1"}) {
    EXPECT_NE(Failure(text), "") << text;
  }
}

TEST(JsonReaderTest, RefusesTextThatIsNotUtf8) {
  for (const char* text : {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\""}) {
    EXPECT_THAT(Failure(text), HasSubstr("UTF-8"));
  }
}

TEST(JsonReaderTest, DecodesEscapesToUtf8) {
  JsonReader in(R"("\u0041\u00e9\u96ea\ud83d\ude00\u0000")");
  std::string text;
  ASSERT_TRUE(in.String(&text));
  EXPECT_EQ(text, std::string("A\u00e9\u96ea\U0001f600\0", 11));
}

TEST(JsonReaderTest, IntegersAreExactOrRefused) {
  const auto as_unsigned = [](std::string_view text, uint64_t* value) { return JsonReader(text).Unsigned(value); };
  const auto as_signed = [](std::string_view text, int64_t* value) { return JsonReader(text).Integer(value); };
  uint64_t u = 0;
  int64_t i = 0;
  EXPECT_TRUE(as_unsigned("18446744073709551615", &u));
  EXPECT_EQ(u, UINT64_MAX);
  EXPECT_FALSE(as_unsigned("18446744073709551616", &u));
  EXPECT_FALSE(as_unsigned("-1", &u));
  EXPECT_FALSE(as_unsigned("-0", &u));
  EXPECT_FALSE(as_unsigned("1.0", &u));
  EXPECT_FALSE(as_unsigned("\"1\"", &u));
  EXPECT_TRUE(as_signed("-9223372036854775808", &i));
  EXPECT_EQ(i, INT64_MIN);
  EXPECT_FALSE(as_signed("9223372036854775808", &i));
  EXPECT_FALSE(as_signed("1e3", &i));
}

TEST(JsonReaderTest, DoublesOutOfRangeAreRefused) {
  double value = 0;
  EXPECT_TRUE(JsonReader("1.5e3").Double(&value));
  EXPECT_EQ(value, 1500.0);
  EXPECT_FALSE(JsonReader("1e999").Double(&value));
}

TEST(JsonReaderTest, RepeatedNamesAreRefusedAtAnyLevelAndAnyCount) {
  EXPECT_THAT(Failure(R"([{"x":{"a":1,"b":2,"a":3}}])"), AllOf(HasSubstr("\"a\" stands twice"), HasSubstr("bytes 7 and 19")));
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_EQ(Failure(many + "\"z\":0}"), "");
  EXPECT_THAT(Failure(many + "\"\\u006b42\":0}"), HasSubstr("\"k42\" stands twice"));
  EXPECT_EQ(Failure(R"([{"a":1},{"a":{"a":2}}])"), "");
}

TEST(JsonReaderTest, DepthIsBounded) {
  EXPECT_EQ(Failure(std::string(5, '[') + std::string(5, ']'), 5), "");
  EXPECT_THAT(Failure(std::string(6, '[') + std::string(6, ']'), 5), HasSubstr("more than 5 deep"));
}

TEST(JsonReaderTest, TheFirstFailureSticks) {
  JsonReader in("[1,x,\"a\"]");
  uint64_t value = 0;
  std::string text;
  ASSERT_TRUE(in.EnterArray());
  ASSERT_TRUE(in.NextElement());
  ASSERT_TRUE(in.Unsigned(&value));
  ASSERT_TRUE(in.NextElement());
  EXPECT_FALSE(in.Unsigned(&value));
  const std::string first(in.status().message());
  EXPECT_FALSE(in.NextElement());
  EXPECT_FALSE(in.String(&text));
  EXPECT_EQ(in.Finish().message(), first);
  EXPECT_THAT(first, HasSubstr("byte 3"));
}

TEST(JsonReaderTest, MessagesCountFromTheOrigin) {
  JsonReader in("x", 4, 8);
  in.Skip();
  EXPECT_THAT(std::string(in.status().message()), HasSubstr("byte 8"));
}

TEST(JsonReaderTest, RawGivesTheTextOfAValue) {
  JsonReader in(R"({"a": [1, {"b":2}] })");
  std::string_view key, raw;
  ASSERT_TRUE(in.EnterObject());
  ASSERT_TRUE(in.NextKey(&key));
  ASSERT_TRUE(in.Raw(&raw));
  EXPECT_EQ(raw, R"([1, {"b":2}])");
  EXPECT_FALSE(in.NextKey(&key));
  EXPECT_TRUE(in.Finish().ok());
}

TEST(JsonTextTest, StringsComeBackThroughTheReader) {
  const std::string text = std::string("a\0b\x1f\"\\\n\t", 8) + "\u00e9\U0001f600\x7f";
  std::string json, back;
  AppendJsonString(text, &json);
  JsonReader in(json);
  ASSERT_TRUE(in.String(&back)) << in.status();
  EXPECT_EQ(back, text);
}

TEST(JsonTextTest, QuotedNamesAreCutAndNeverBroken) {
  EXPECT_EQ(Quoted("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(Quoted("a\xff"), "\"a\\xff\"");
  EXPECT_EQ(Quoted(std::string(1000, 'x')), "\"" + std::string(200, 'x') + "\"...");
  const std::string cut = Quoted(std::string(199, 'x') + "\u00e9" + "tail");   // the 200th byte is within a character
  EXPECT_EQ(cut, "\"" + std::string(199, 'x') + "\"...");
}

TEST(JsonReaderTest, NumbersOfThousandsOfDigitsAreRefused) {
  const std::string long_number(4096, '9'), longer_number(4097, '9');
  JsonReader fits(long_number), longer(longer_number);
  EXPECT_TRUE(fits.Skip());
  EXPECT_FALSE(longer.Skip());
  EXPECT_TRUE(IsDamaged(longer.Finish()));
}

}  // namespace
}  // namespace neve::format
