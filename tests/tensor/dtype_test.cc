#include "neve/dtype.h"

#include <gtest/gtest.h>

namespace neve {
namespace {

TEST(DTypeTest, EveryTypeHasANameThatLeadsBackToIt) {
  for (int value = 1; value <= static_cast<int>(DType::kQI32); ++value) {
    const DType dtype = static_cast<DType>(value);
    ASSERT_FALSE(Name(dtype).empty()) << value;
    EXPECT_EQ(DTypeFromName(Name(dtype)), dtype) << Name(dtype);
    EXPECT_GT(ItemBytes(dtype), 0u) << Name(dtype);
  }
}

TEST(DTypeTest, PT_05_NewerTypesHaveTheirSafetensorsNames) {
  EXPECT_EQ(Name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(Name(DType::kF8E5M2), "F8_E5M2");
  EXPECT_EQ(Name(DType::kF8E4M3Fnuz), "F8_E4M3FNUZ");
  EXPECT_EQ(Name(DType::kF8E5M2Fnuz), "F8_E5M2FNUZ");
  EXPECT_EQ(Name(DType::kF8E8M0), "F8_E8M0");
  EXPECT_EQ(Name(DType::kF4E2M1x2), "F4");
  EXPECT_EQ(Name(DType::kU16), "U16");
  EXPECT_EQ(Name(DType::kU32), "U32");
  EXPECT_EQ(Name(DType::kU64), "U64");
}

TEST(DTypeTest, OnlyTypesThatSafetensorsLacksAreOurs) {
  for (const DType dtype : {DType::kC128, DType::kC32, DType::kBits8, DType::kBits16, DType::kQI8, DType::kQU8, DType::kQI32}) {
    EXPECT_FALSE(HasSafetensorsName(dtype)) << Name(dtype);
  }
  for (const DType dtype : {DType::kBool, DType::kU8, DType::kBF16, DType::kF64, DType::kC64, DType::kF4E2M1x2}) {
    EXPECT_TRUE(HasSafetensorsName(dtype)) << Name(dtype);
  }
}

TEST(DTypeTest, AValueFromOutsideHasNoBytesAndNoName) {
  for (const int value : {0, static_cast<int>(DType::kQI32) + 1, 255}) {
    EXPECT_EQ(ItemBytes(static_cast<DType>(value)), 0u);
    EXPECT_EQ(Name(static_cast<DType>(value)), "");
    EXPECT_FALSE(HasSafetensorsName(static_cast<DType>(value)));
  }
  EXPECT_EQ(DTypeFromName("F33"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

}  // namespace
}  // namespace neve
