#include "base/codec/hmac.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "base/codec/text.h"

namespace neve::codec {
namespace {

std::string Hex(const std::string& bytes) {
  return HexEncode(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

// The cases of RFC 4231 that exercise short, long and binary keys.
TEST(Hmac, AgreesWithThePublishedCases) {
  ASSERT_EQ(HmacAvailable(), absl::OkStatus());
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, EqualMeansEveryByte) {
  EXPECT_TRUE(EqualInConstantTime("abc", "abc"));
  EXPECT_FALSE(EqualInConstantTime("abc", "abd"));
  EXPECT_FALSE(EqualInConstantTime("abc", "ab"));
  EXPECT_TRUE(EqualInConstantTime("", ""));
}

TEST(Hmac, AMissingLibraryIsNamed) {
  const absl::Status missing = HmacAvailableIn("libneve-has-no-such.so.9");
  EXPECT_TRUE(absl::IsUnimplemented(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), ::testing::HasSubstr("libneve-has-no-such.so.9"));
  EXPECT_TRUE(absl::IsUnimplemented(HmacAvailableIn("libc.so.6")));   // loads, and is another library
}

}  // namespace
}  // namespace neve::codec
