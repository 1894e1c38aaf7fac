#include "format/values.h"

#include <bit>
#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/codec/text.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;
using Kind = Value::Kind;

Value Read(std::string_view text) {
  ValuesReader reader(text);
  auto value = reader.Next();
  EXPECT_TRUE(value.ok()) << value.status();
  EXPECT_TRUE(reader.AtEnd()) << text;
  return value.value_or(Value{});
}

std::string Shown(std::string_view text) { return DescribeValue(Read(text)); }

std::string Refused(std::string_view text) {
  const auto value = ValuesReader(text).Next();
  EXPECT_FALSE(value.ok()) << text;
  if (value.ok()) return "";
  EXPECT_TRUE(IsDamaged(value.status()));
  return std::string(value.status().message());
}

TEST(ValuesTest, ReadsEveryKind) {
  EXPECT_EQ(Shown("n"), "None");
  EXPECT_EQ(Shown("t"), "True");
  EXPECT_EQ(Shown("f"), "False");
  EXPECT_EQ(Shown("i-17;"), "-17");
  EXPECT_EQ(Shown("i123456789012345678901234567890;"), "123456789012345678901234567890");
  EXPECT_EQ(Shown("d0x1.8000000000000p+1;"), "3.0");
  EXPECT_EQ(Shown("d-0x1.999999999999ap-4;"), "-0.1");
  EXPECT_EQ(Shown("d0x0.0p+0;"), "0.0");
  EXPECT_EQ(Shown("d-inf;"), "-inf");
  EXPECT_EQ(Shown("x7ff8000000000001;"), "nan");
  EXPECT_EQ(Shown("cd0x1.0000000000000p+0;d-0x1.0000000000000p+1;"), "complex(1.0, -2.0)");
  EXPECT_EQ(Shown("'plain text'"), "\"plain text\"");
  EXPECT_EQ(Shown("s" + codec::Base64UrlEncode("it's \u2744") + ";"), "\"it's \u2744\"");
  EXPECT_EQ(Shown("y" + codec::Base64UrlEncode(std::string("\0\1", 2)) + ";"), "bytes(2)");
  EXPECT_EQ(Shown("Y;"), "bytearray(0)");
  EXPECT_EQ(Shown("[i1;[]t]"), "[1, [], True]");
  EXPECT_EQ(Shown("(i1;)"), "(1,)");
  EXPECT_EQ(Shown("{'a'i1;'b'n}"), "{\"a\": 1, \"b\": None}");
  EXPECT_EQ(Shown("E{'a'i1;}"), "OrderedDict({\"a\": 1})");
  EXPECT_EQ(Shown("C{i30;i2;}"), "Counter({30: 2})");
  EXPECT_EQ(Shown("S(i1;i2;)"), "set(1, 2)");
  EXPECT_EQ(Shown("F()"), "frozenset()");
  EXPECT_EQ(Shown("Z(i2;i3;)"), "torch.Size([2, 3])");
  EXPECT_EQ(Shown("T'bfloat16'"), "torch.bfloat16");
  EXPECT_EQ(Shown("T'torch.bfloat16'"), "torch.bfloat16");
  EXPECT_EQ(Shown("D'cuda:0'"), "device(\"cuda:0\")");
  EXPECT_EQ(Shown("@'enum.Color'i2;"), "enum.Color(2)");
}

TEST(ValuesTest, NumpyScalarsShowTheirNumber) {
  const auto scalar = [](std::string_view dtype, std::string_view bytes) {
    return Shown("N'" + std::string(dtype) + "'y" + codec::Base64UrlEncode(bytes) + ";");
  };
  EXPECT_EQ(scalar("<i4", "\xfe\xff\xff\xff"), "numpy(\"<i4\", -2)");
  EXPECT_EQ(scalar("|u1", "\xfe"), "numpy(\"|u1\", 254)");
  EXPECT_EQ(scalar("<f4", std::string("\0\0\x80\x3f", 4)), "numpy(\"<f4\", 1.0)");
  EXPECT_EQ(scalar("|b1", "\1"), "numpy(\"|b1\", True)");
  EXPECT_EQ(scalar("<M8[ns]", std::string(8, '\0')), "numpy(\"<M8[ns]\", 8 bytes)");
}

TEST(ValuesTest, NaNsKeepTheirBits) {
  const double number = Read("x7ff8000000000123;").number;
  EXPECT_EQ(std::bit_cast<uint64_t>(number), 0x7ff8000000000123u);
}

TEST(ValuesTest, TextWithLoneSurrogatesIsShownByItsBytes) {
  EXPECT_EQ(Shown("s" + codec::Base64UrlEncode("a\xed\xa0\x80") + ";"), "\"a\\xed\\xa0\\x80\"");
}

TEST(ValuesTest, ValuesFollowEachOtherUpToThePadding) {
  ValuesReader reader("i1;'a'[n]t     ");
  for (int i = 0; i < 4; ++i) {
    ASSERT_FALSE(reader.AtEnd());
    ASSERT_TRUE(reader.Next().ok()) << i;
  }
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_TRUE(ValuesReader("   ").AtEnd());
}

TEST(ValuesTest, RefusesWhatTheGrammarLacks) {
  EXPECT_THAT(Refused(""), HasSubstr("missing"));
  EXPECT_THAT(Refused("q"), HasSubstr("unknown kind"));
  EXPECT_THAT(Refused("E["), HasSubstr("unknown kind"));
  EXPECT_THAT(Refused("i12"), HasSubstr("without an end"));
  EXPECT_THAT(Refused("i1x;"), HasSubstr("whole number"));
  EXPECT_THAT(Refused("i;"), HasSubstr("whole number"));
  EXPECT_THAT(Refused("d1.5;"), HasSubstr("float.hex"));
  EXPECT_THAT(Refused("d0x;"), HasSubstr("float.hex"));
  EXPECT_THAT(Refused("d0x-1p+1;"), HasSubstr("float.hex"));
  EXPECT_THAT(Refused("x12;"), HasSubstr("bits"));
  EXPECT_THAT(Refused("cd0x1p+0;"), HasSubstr("expected a number"));
  EXPECT_THAT(Refused("'open"), HasSubstr("without an end"));
  EXPECT_THAT(Refused("'a\"b'"), HasSubstr("may not stand"));
  EXPECT_THAT(Refused("s!!;"), HasSubstr("base64url"));
  EXPECT_THAT(Refused("[i1;"), HasSubstr("without an end"));
  EXPECT_THAT(Refused("{'a'}"), HasSubstr("no value"));
  EXPECT_THAT(Refused("N'<f4'i1;"), HasSubstr("without its bytes"));
  EXPECT_THAT(Refused("N'<f4'N'<f4'yAACAPw;"), HasSubstr("without its bytes"));
  EXPECT_THAT(Refused("Tx"), HasSubstr("in quotes"));
  EXPECT_THAT(Refused("@'a'"), HasSubstr("missing"));
}

TEST(ValuesTest, LongNumbersStandInHexadecimal) {
  EXPECT_EQ(Shown("h-ff;"), "-0xff");
  EXPECT_EQ(Read("h" + std::string(1'000'000, 'f') + ";").text.size(), 1'000'002u);
  EXPECT_EQ(Read("i" + std::string(kDecimalDigitsMax, '9') + ";").text.size(), kDecimalDigitsMax);
  EXPECT_THAT(Refused("i" + std::string(kDecimalDigitsMax + 1, '9') + ";"), HasSubstr("over the limit"));
  EXPECT_THAT(Refused("h;"), HasSubstr("whole number"));
  EXPECT_THAT(Refused("hFF;"), HasSubstr("whole number"));
}

TEST(ValuesTest, WhatPythonCannotMakeIsRefused) {
  for (const char* text : {"{[]n}", "{{}n}", "{S()n}", "{Y;n}", "{([])n}", "S([])", "F(([]))", "E{[]n}", "C{[]n}"}) {
    EXPECT_THAT(Refused(text), HasSubstr("cannot be a key")) << text;
  }
  for (const char* text : {"{F()n}", "S((i1;'a'))", "{@'a.B'{}n}", "F(F())", "Z()", "{Z(i1;)n}"}) {
    EXPECT_TRUE(ValuesReader(text).Next().ok()) << text;
  }
  EXPECT_THAT(Refused("Z('a')"), HasSubstr("torch.Size"));
  EXPECT_THAT(Refused("N'|O8'yAAAAAAAAAAA;"), HasSubstr("no dtype"));
  EXPECT_THAT(Refused("N'<i4'yAA;"), HasSubstr("bytes of its dtype"));
  EXPECT_THAT(Refused("N'|S999999999'y;"), HasSubstr("bytes of its dtype"));
  EXPECT_THAT(Refused("D'cuda:'"), HasSubstr("device"));
  EXPECT_THAT(Refused("s" + codec::Base64UrlEncode("a\xff") + ";"), HasSubstr("UTF-8"));
  EXPECT_THAT(Refused("xABCDEF0123456789;"), HasSubstr("bits"));
}

TEST(ValuesTest, SkippingChecksTheSameAndKeepsNothing) {
  const std::string many = "[" + std::string(3'000'000, 'n') + "]";
  ValuesReader reader(many);
  EXPECT_TRUE(reader.Skip().ok());
  EXPECT_TRUE(reader.AtEnd());
  for (const char* text : {"", "[i1;", "{[]n}", "N'<i4'yAA;", "q"}) EXPECT_TRUE(IsDamaged(ValuesReader(text).Skip())) << text;
}

TEST(ValuesTest, DepthIsBoundedForEveryWayToNest) {
  for (const char* open : {"[", "(", "{", "E{", "C{", "S(", "@'a'"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += open;
    EXPECT_THAT(Refused(text), HasSubstr("nested")) << open;
  }
}

TEST(ValuesTest, TheNumberOfValuesIsBounded) {
  EXPECT_THAT(Refused("[" + std::string(1'000'001, 'n') + "]"), HasSubstr("more values"));
}

TEST(ValuesTest, AFailureSticks) {
  ValuesReader reader("qn");
  EXPECT_FALSE(reader.Next().ok());
  EXPECT_FALSE(reader.Next().ok());
}

TEST(ValuesTest, LongDescriptionsAreCut) {
  const std::string shown = DescribeValue(Read("[" + std::string(1000, 'n') + "]"), 50);
  EXPECT_EQ(shown.size(), 53u);
  EXPECT_THAT(shown, testing::EndsWith("..."));
}

TEST(ValuesTest, SEC_01_BlobsAreNamedAndPicklesAreNotRun) {
  EXPECT_EQ(DescribeBlob(""), "an empty blob");
  EXPECT_EQ(DescribeBlob("yabc"), "bytes(3)");
  EXPECT_EQ(DescribeBlob("shello"), "\"hello\"");
  EXPECT_EQ(DescribeBlob("v[i1;i2;]"), "[1, 2]");
  EXPECT_THAT(DescribeBlob("v[i1;"), HasSubstr("without an end"));
  EXPECT_EQ(DescribeBlob("pcos\nsystem\n"), "a pickle of 11 bytes (not run)");
  EXPECT_THAT(DescribeBlob("?x"), HasSubstr("unknown kind"));
}

TEST(ValuesTest, NoRandomTextMakesTheReaderFall) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr std::string_view kAlphabet = "ntfidxcsyYESFNZTD@[](){}';,0123456789abcp+-.";
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (uint64_t n = random() % 24; n > 0; --n) text += kAlphabet[random() % kAlphabet.size()];
    const auto value = ValuesReader(text).Next();
    if (value.ok()) (void)DescribeValue(*value, 20).size();
  }
}

TEST(ValuesTest, WhatPythonMayWriteIsReadAtTheVeryLimit) {
  const auto nested = [](int depth, const std::string& innermost) {
    return std::string(depth, '[') + innermost + std::string(depth, ']');
  };
  for (const char* innermost : {"i1;", "[]", "N'<f4'yAACAPw;"}) {
    EXPECT_TRUE(ValuesReader(nested(kValuesDepthMax, innermost)).Next().ok()) << innermost;
  }
  EXPECT_THAT(Refused(nested(kValuesDepthMax + 1, "i1;")), HasSubstr("nested more than 128 deep"));
}

}  // namespace
}  // namespace neve::format
