#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/contents_fixture.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;
using tensor::Dims;

std::vector<std::byte> Wanted(const TensorSpec& spec, const void* address, const Dims& offset, const Dims& extents) {
  const auto* from = static_cast<const std::byte*>(address);
  for (size_t i = 0; i < offset.size(); ++i) from += static_cast<uint64_t>(offset[i] * spec.strides[i]) * ItemBytes(spec.dtype);
  const tensor::StridedCopy copy(extents, spec.strides, ItemBytes(spec.dtype));
  std::vector<std::byte> bytes(copy.logical_bytes());
  copy.Gather(from, 0, bytes.size(), bytes.data());
  return bytes;
}

// Every box, all or random, of every tensor equals what memory holds.
void ExpectBoxes(const State& state, uint64_t seed) {
  const auto contents = OpenText(ImageOf(state));
  ASSERT_TRUE(contents.ok()) << contents.status();
  std::mt19937_64 random(seed);
  for (const LogicalTensor& tensor : (*contents)->tensors()) {
    size_t i = 0;
    while (state.structure.tensors[i].name != tensor.name) ++i;
    const TensorSpec& spec = state.structure.tensors[i];
    for (int round = 0; round < 20; ++round) {
      Dims offset(tensor.shape.size(), 0), extents = tensor.shape;
      for (size_t d = 0; d < extents.size() && round > 0; ++d) {
        if (extents[d] == 0) continue;
        offset[d] = static_cast<int64_t>(random() % static_cast<uint64_t>(extents[d]));
        extents[d] = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(extents[d] - offset[d]));
      }
      const std::vector<std::byte> wanted = Wanted(spec, state.addresses[i], offset, extents);
      std::vector<std::byte> found(wanted.size());
      const absl::Status status = ReadBox(**contents, tensor, offset, extents, found);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(found, wanted) << tensor.name << " round " << round << " seed " << seed;
    }
  }
}

template <typename T>
std::vector<T> Counting(size_t count) {
  std::vector<T> memory(count);
  std::iota(memory.begin(), memory.end(), T{1});
  return memory;
}
template <typename T>
uint64_t At(const std::vector<T>& memory, size_t element = 0) {
  return reinterpret_cast<uint64_t>(memory.data() + element);
}

TEST(ReadBoxTest, BoxesOfContiguousAndScalarAndEmptyTensors) {
  const auto a = Counting<float>(24 * 50), b = Counting<float>(1);
  ExpectBoxes(State().Add("a", DType::kF32, {4, 6, 50}, {}, At(a)).Add("s", DType::kF32, {}, {}, At(b))
                  .Add("e", DType::kF32, {3, 0}, {}, 0), 1);
}

TEST(ReadBoxTest, PermutedAndGappedTensorsAreReadInTheirLogicalOrder) {
  const auto a = Counting<int64_t>(60);
  const auto b = Counting<int16_t>(100);
  ExpectBoxes(State().Add("p", DType::kI64, {5, 12}, {1, 5}, At(a)).Add("g", DType::kI16, {10, 3}, {10, 2}, At(b)), 2);
}

TEST(ReadBoxTest, ExpandedTensorsRepeatWhatIsStoredOnce) {
  const auto a = Counting<int32_t>(7);
  ExpectBoxes(State().Add("x", DType::kI32, {3, 7, 2}, {0, 1, 0}, At(a)), 3);
}

TEST(ReadBoxTest, AliasesOfAContiguousBase) {
  const auto a = Counting<int32_t>(64);
  ExpectBoxes(State().Add("whole", DType::kI32, {8, 8}, {}, At(a)).Add("turned", DType::kI32, {8, 8}, {1, 8}, At(a))
                  .Add("column", DType::kI32, {8}, {8}, At(a, 3)).Add("bytes", DType::kU8, {4, 6}, {16, 2}, At(a, 5)), 4);
}

TEST(ReadBoxTest, WindowsOverAHiddenBase) {
  const auto a = Counting<int32_t>(40);
  ExpectBoxes(State().Add("window", DType::kI32, {10, 8}, {2, 1}, At(a)).Add("odd", DType::kI32, {3}, {7}, At(a, 20)), 5);
}

TEST(ReadBoxTest, AliasesOfAPermutedBaseAreFoundInItsMemory) {
  const auto a = Counting<float>(6 * 20);
  // The permuted member alone covers the memory; the others count in that memory.
  ExpectBoxes(State().Add("p", DType::kF32, {6, 20}, {1, 6}, At(a)).Add("row", DType::kF32, {9}, {2}, At(a, 11))
                  .Add("wide", DType::kC64, {7}, {3}, At(a, 4)), 6);
}

TEST(ReadBoxTest, LargeStridedBoxesComeInPieces) {
  const auto a = Counting<uint16_t>(3000 * 4000);   // 24 MB: more than one piece
  const State state = State().Add("whole", DType::kU16, {3000, 4000}, {}, At(a)).Add("turned", DType::kU16, {4000, 3000}, {1, 4000}, At(a));
  const auto contents = OpenText(ImageOf(state));
  ASSERT_TRUE(contents.ok()) << contents.status();
  for (size_t i = 0; i < 2; ++i) {
    const Dims offset = {7, 9}, extents = {2900, 1700};
    const std::vector<std::byte> wanted = Wanted(state.structure.tensors[i], state.addresses[i], offset, extents);
    std::vector<std::byte> found(wanted.size());
    ASSERT_TRUE(ReadBox(**contents, (*contents)->tensors()[i], offset, extents, found).ok());
    EXPECT_EQ(found, wanted);
  }
}

TEST(ReadBoxTest, ABoxThatDoesNotFitIsRefused) {
  const auto a = Counting<float>(6);
  const auto contents = OpenText(ImageOf(State().Add("a", DType::kF32, {2, 3}, {}, At(a))));
  ASSERT_TRUE(contents.ok()) << contents.status();
  const LogicalTensor& tensor = (*contents)->tensors()[0];
  std::vector<std::byte> target(8);
  const auto refused = [&](const Dims& offset, const Dims& extents) {
    const absl::Status status = ReadBox(**contents, tensor, offset, extents, target);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return Message(status);
  };
  EXPECT_THAT(refused({0}, {2}), HasSubstr("1 dimensions, the tensor has 2"));
  EXPECT_THAT(refused({0, 2}, {1, 2}), HasSubstr("[2, 2 + 2) of dimension 1"));
  EXPECT_THAT(refused({-1, 0}, {1, 2}), HasSubstr("of dimension 0"));
  EXPECT_THAT(refused({0, 0}, {1, 3}), HasSubstr("it takes 12 bytes, the target has 8"));
}

TEST(SafetensorsContentsTest, AFileIsItsOwnImage) {
  const std::string file = HeadOf(R"({"__metadata__":{"a":"b"},"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})") + "xyz";
  const auto contents = OpenText(file);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ((*contents)->kind(), ContentsKind::kSafetensors);
  EXPECT_EQ((*contents)->image_bytes(), file.size());
  std::string all(file.size(), '\0');
  ASSERT_TRUE((*contents)->Read(0, std::as_writable_bytes(std::span(all))).ok());
  EXPECT_EQ(all, file);
  const std::vector<Extent> extents = (*contents)->Locate(file.size() - 2, 2);
  ASSERT_EQ(extents.size(), 1u);
  EXPECT_EQ(extents[0].file_offset, file.size() - 2);
  std::vector<ContentsProblem> problems;
  EXPECT_TRUE((*contents)->Check({}, &problems).ok());
  EXPECT_TRUE(problems.empty());
}

TEST(SafetensorsContentsTest, LenientReadingMakesAnImageThatStrictReadersAccept) {
  const std::string file =
      HeadOf(R"({"__metadata__":{"n":5},"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})") + "xyz and more";
  EXPECT_FALSE(OpenText(file).ok());
  const auto contents = OpenText(file, {.lenient = true});
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ((*contents)->notes().size(), 2u);
  std::string image((*contents)->image_bytes(), '\0');
  ASSERT_TRUE((*contents)->Read(0, std::as_writable_bytes(std::span(image))).ok());
  const auto header = ParseImageHeader(image, image.size());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(*header->FindMetadata("n"), "5");
  EXPECT_EQ(image.substr(header->tensors[0].offset), "xyz");
  EXPECT_TRUE((*contents)->Locate(0, 8).empty());
  EXPECT_EQ((*contents)->Locate(header->tensors[0].offset, 3)[0].file_offset, file.find("xyz"));
}

}  // namespace
}  // namespace neve::format
