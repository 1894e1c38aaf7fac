#include "engine/pickle_text.h"

#include <gtest/gtest.h>

namespace neve::engine {
namespace {

std::string Hex(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    out.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    out.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  return out;
}

template <typename Write>
std::string Pickled(Write write) {
  PickleText text;
  write(text);
  return Hex(std::move(text).Finish());
}
std::string Integer(const std::string& digits) {
  return Pickled([&](PickleText& text) { text.Integer(digits); });
}

// As Python reads them; most are also what it writes.
TEST(PickleTextTest, IntegersOfEverySize) {
  EXPECT_EQ(Integer("7"), "80024b072e");
  EXPECT_EQ(Integer("-1"), "80024affffffff2e");
  EXPECT_EQ(Integer("256"), "80024a000100002e");
  EXPECT_EQ(Integer("2147483648"), "80028a0500000080002e");
  EXPECT_EQ(Integer("-2147483649"), "80028a05ffffff7fff2e");
  EXPECT_EQ(Integer("9223372036854775808"), "80028a090000000000000080002e");
  EXPECT_EQ(Integer("-9223372036854775808"), "80028a0800000000000000802e");
  EXPECT_EQ(Integer("1000000000000000000000000000000"), "80028a0d00000040eaed7446d09c2c9f0c2e");
}

TEST(PickleTextTest, HexadecimalIntegersAreTheSameNumbers) {
  EXPECT_EQ(Integer("0x123456789abcdef0123"), Integer("5373003642731685151011"));
  EXPECT_EQ(Integer("-0x123456789abcdef0123"), Integer("-5373003642731685151011"));
  EXPECT_EQ(Integer("0x80000000"), Integer("2147483648"));
}

TEST(PickleTextTest, FloatsAreBigEndianAndBytesGoThroughACodec) {
  EXPECT_EQ(Pickled([](PickleText& text) { text.Float(-2.5); }), "800247c0040000000000002e");
  EXPECT_EQ(Pickled([](PickleText& text) { text.Bytes("a\xff"); }),
            "8002" + Hex("c_codecs\nencode\n") + "7100" + "580300000061c3bf" + "58060000006c6174696e31" + "8652" + "2e");
}

TEST(PickleTextTest, AGlobalIsWrittenOnce) {
  EXPECT_EQ(Pickled([](PickleText& text) {
              text.Global("torch", "Size");
              text.Global("torch", "Size");
            }),
            "8002" + Hex("ctorch\nSize\n") + "7100" + "6800" + "2e");
}

}  // namespace
}  // namespace neve::engine
