#include "format/alias_groups.h"

#include <gtest/gtest.h>

#include "format/format_fixtures.h"

namespace neve::format {
namespace {

constexpr uint64_t kAt = 0x100000;

const LogicalTensor& Named(const std::vector<LogicalTensor>& tensors, std::string_view name) {
  for (const LogicalTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

TEST(AliasGroupsTest, PT_02_TiedWeightsAreStoredOnce) {
  const auto layout = State()
                          .Add("a", DType::kF32, {3}, {}, kAt)
                          .Add("b", DType::kF32, {3}, {}, kAt)
                          .Add("c", DType::kF32, {3, 1}, {1, 1}, kAt)
                          .Add("d", DType::kF32, {3}, {}, kAt)
                          .Build();
  EXPECT_EQ(Parsed(*layout).tensors.size(), 1u);
  EXPECT_EQ(layout->image_bytes() - layout->header_bytes(), 12u);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_FALSE(logical[0].alias);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(logical[i].alias);
    EXPECT_EQ(logical[i].stored, "a");
    EXPECT_EQ(logical[i].byte_offset, 0u);
  }
}

TEST(AliasGroupsTest, ST_02_TheNameThatIsKeptDoesNotDependOnTheOrder) {
  const auto kept = [](const char* first, const char* second) {
    const auto layout = State().Add(first, DType::kF32, {3}, {}, kAt).Add(second, DType::kF32, {3}, {}, kAt).Build();
    return Parsed(*layout).tensors[0].name;
  };
  EXPECT_EQ(kept("lm_head.weight", "embed.weight"), "embed.weight");
  EXPECT_EQ(kept("embed.weight", "lm_head.weight"), "embed.weight");
}

TEST(AliasGroupsTest, ST_01_AWeightAndItsTransposeAreStoredOnceAsTheContiguousOne) {
  const auto layout = State().Add("a.t", DType::kF32, {5, 7}, {1, 5}, kAt).Add("w", DType::kF32, {7, 5}, {}, kAt).Build();
  const ImageHeader header = Parsed(*layout);
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "w");
  EXPECT_EQ(Named(Logical(*layout), "a.t").strides, (tensor::Dims{1, 5}));
}

TEST(AliasGroupsTest, PT_01_SlicesWithTheirBaseAreAliasesWithOffsets) {
  const auto layout = State()
                          .Add("slice", DType::kF32, {2}, {}, kAt + 8)
                          .Add("base", DType::kF32, {10}, {}, kAt)
                          .Add("even", DType::kF32, {5}, {2}, kAt)
                          .Build();
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_EQ(Parsed(*layout).tensors.size(), 1u);
  EXPECT_EQ(Named(logical, "slice").byte_offset, 8u);
  EXPECT_EQ(Named(logical, "slice").stored, "base");
  EXPECT_EQ(Named(logical, "even").strides, (tensor::Dims{2}));
}

TEST(AliasGroupsTest, PT_01_AViewWithoutItsBaseCostsItsOwnBytesOnly) {
  const auto layout = State().Add("a", DType::kF32, {10}, {}, kAt).Add("b", DType::kF32, {2}, {}, kAt + 8).Build();
  EXPECT_EQ(layout->image_bytes() - layout->header_bytes(), 40u);
}

TEST(AliasGroupsTest, ST_01_PartlyOverlappingViewsShareAHiddenBase) {
  const auto layout = State().Add("x", DType::kF32, {6}, {}, kAt).Add("y", DType::kF32, {6}, {}, kAt + 16).Build();
  const ImageHeader header = Parsed(*layout);
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "neve.base.0");
  EXPECT_EQ(header.tensors[0].bytes, 40u);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  ASSERT_EQ(logical.size(), 2u);
  EXPECT_EQ(logical[0].byte_offset, 0u);
  EXPECT_EQ(logical[1].byte_offset, 16u);
}

TEST(AliasGroupsTest, ABaseThatBeginsBeforeItsLowestMemberHasANegativeDelta) {
  const auto layout = State().Add("y", DType::kF32, {6}, {}, kAt + 16).Add("x", DType::kF32, {6}, {}, kAt).Build();
  const StoredTensor& stored = layout->stored()[0];
  EXPECT_EQ(stored.source, StoredTensor::Source::kBase);
  EXPECT_EQ(stored.index, 0u);
  EXPECT_EQ(stored.address_delta, -16);
}

TEST(AliasGroupsTest, PT_03_TwoTypesOverOneStorageKeepTheirTypes) {
  const auto layout = State()
                          .Add("a", DType::kC64, {4}, {}, kAt)
                          .Add("real", DType::kF32, {4}, {2}, kAt)
                          .Add("imag", DType::kF32, {4}, {2}, kAt + 4)
                          .Add("i", DType::kI32, {4}, {}, kAt + 4096)
                          .Add("f", DType::kF32, {4}, {}, kAt + 4096)
                          .Build();
  const ImageHeader header = Parsed(*layout);
  EXPECT_EQ(header.tensors.size(), 2u);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_EQ(Named(logical, "real").strides, (tensor::Dims{2}));
  EXPECT_EQ(Named(logical, "imag").byte_offset, 4u);
  EXPECT_EQ(Named(logical, "imag").stored, "a");
  EXPECT_TRUE(Named(logical, "i").alias);
  EXPECT_EQ(Named(logical, "i").dtype, DType::kI32);
}

TEST(AliasGroupsTest, NeighboursInMemoryAreNoGroup) {
  const auto layout = State().Add("a", DType::kF32, {4}, {}, kAt).Add("b", DType::kF32, {4}, {}, kAt + 16).Build();
  for (const LogicalTensor& tensor : Logical(*layout)) EXPECT_FALSE(tensor.alias);
}

TEST(AliasGroupsTest, EmptyTensorsNeverAlias) {
  const auto layout = State()
                          .Add("a", DType::kF32, {4}, {}, kAt)
                          .Add("e", DType::kF32, {0}, {}, kAt + 4)
                          .Add("f", DType::kF32, {0}, {}, kAt + 4)
                          .Build();
  for (const LogicalTensor& tensor : Logical(*layout)) EXPECT_FALSE(tensor.alias);
}

TEST(AliasGroupsTest, PT_01_ColumnsOfAnAbsentMatrixStayApart) {
  State state;
  for (uint64_t i = 0; i < 3; ++i) state.Add("column" + std::to_string(i), DType::kF32, {100}, {1000}, kAt + 40 * i);
  const auto layout = state.Build();
  EXPECT_EQ(layout->image_bytes() - layout->header_bytes(), 3u * 400);
  for (const LogicalTensor& tensor : Logical(*layout)) EXPECT_FALSE(tensor.alias);
}

TEST(AliasGroupsTest, PT_01_AmongColumnsThoseThatShareAreStillAliases) {
  const auto layout = State()
                          .Add("wide", DType::kF32, {100, 10}, {1000, 1}, kAt)
                          .Add("within", DType::kF32, {100}, {1000}, kAt + 4)
                          .Add("apart", DType::kF32, {100, 5}, {1000, 1}, kAt + 2000)
                          .Build();
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_TRUE(Named(logical, "wide").alias);
  EXPECT_TRUE(Named(logical, "within").alias);
  EXPECT_FALSE(Named(logical, "apart").alias);
}

TEST(AliasGroupsTest, SameAliasesHoldsWhenMemoryMovesAsAWhole) {
  const State state = State().Add("x", DType::kF32, {6}, {}, kAt).Add("y", DType::kF32, {6}, {}, kAt + 16);
  const auto layout = state.Build();
  EXPECT_TRUE(layout->SameAliases(state.addresses));
  const auto at = [](uint64_t x, uint64_t y) {
    return std::vector<const void*>{reinterpret_cast<const void*>(x), reinterpret_cast<const void*>(y)};
  };
  EXPECT_TRUE(layout->SameAliases(at(0x5000, 0x5010)));
  EXPECT_TRUE(layout->SameAliases(at(0x5000, 0x5010)));
  EXPECT_FALSE(layout->SameAliases(at(0x5000, 0x5008)));   // another distance
  EXPECT_FALSE(layout->SameAliases(at(0x5000, 0x9000)));   // apart
  EXPECT_TRUE(layout->SameAliases(state.addresses));
}

TEST(AliasGroupsTest, SameAliasesSeesThatTensorsCameTogether) {
  const State state = State().Add("x", DType::kF32, {6}, {}, kAt).Add("y", DType::kF32, {6}, {}, kAt + 4096);
  const auto layout = state.Build();
  const std::vector<const void*> tied = {state.addresses[0], state.addresses[0]};
  EXPECT_FALSE(layout->SameAliases(tied));
  EXPECT_FALSE(layout->SameAliases(std::span(state.addresses).first(1)));
}

}  // namespace
}  // namespace neve::format
