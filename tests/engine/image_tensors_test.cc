// Tensors of an image by name, those that share, permute or expand memory included.
#include <numeric>

#include "base/error/status.h"
#include "tests/engine/engine_fixture.h"

namespace neve {
namespace {

// base: [4, 6] row-major; its transpose, its second row and every other column share its memory; `wide` is one row seen thrice.
class ImageTensorsTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    std::iota(base_.begin(), base_.end(), 0);
    const std::vector<std::string_view> names = {"base", "t", "row", "columns", "wide", "none"};
    const std::vector<DType> dtypes(names.size(), DType::kI32);
    const std::vector<uint8_t> ranks = {2, 2, 1, 2, 2, 1};
    const std::vector<int64_t> extents = {4, 6, 6, 4, 6, 4, 3, 3, 2, 0};
    const std::vector<int64_t> strides = {6, 1, 1, 6, 1, 6, 2, 0, 1, 1};
    state_ = DescribeState({names, dtypes, ranks, extents, strides}, "", 0).value();
    const std::vector<const void*> addresses = {base_.data(), base_.data(), base_.data() + 6, base_.data(), row_.data(), row_.data()};
    ASSERT_TRUE(SaveFile(folder_ + "/s.safetensors", state_, addresses, "", {}).ok());
    image_ = OpenImageFile(folder_ + "/s.safetensors").value();
    tensors_ = ImageTensors::Of(image_.get()).value();
  }
  int At(const std::string& name, int i, int j) const {
    if (name == "base") return i * 6 + j;
    if (name == "t") return j * 6 + i;
    if (name == "row") return 6 + i;
    if (name == "columns") return i * 6 + 2 * j;
    return row_[static_cast<size_t>(j)];
  }

  std::vector<int32_t> base_ = std::vector<int32_t>(24), row_ = {-7, -8};
  std::shared_ptr<State> state_;
  std::unique_ptr<Image> image_;
  std::unique_ptr<ImageTensors> tensors_;
};

TEST_F(ImageTensorsTest, EachComesBackRowMajorAndByStrides) {
  ASSERT_EQ(tensors_->count(), 6u);
  for (const char* name : {"base", "t", "row", "columns", "wide"}) {
    const std::optional<size_t> index = tensors_->Find(name);
    ASSERT_TRUE(index.has_value()) << name;
    const TensorInfo info = tensors_->at(*index);
    const int rows = static_cast<int>(info.shape[0]), columns = info.shape.size() == 1 ? 1 : static_cast<int>(info.shape[1]);
    ASSERT_EQ(info.bytes, static_cast<uint64_t>(rows * columns) * 4);
    std::vector<int32_t> plain(static_cast<size_t>(rows * columns), -1), spread(static_cast<size_t>(rows * columns) * 3, -1);
    const int64_t strides[] = {3, 3 * rows};   // column-major, two items left free after each
    const TensorTarget targets[] = {{*index, plain.data()}, {*index, spread.data(), strides}};
    const absl::Status read = tensors_->Read(targets);
    ASSERT_TRUE(read.ok()) << name << ": " << read;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        EXPECT_EQ(plain[static_cast<size_t>(i * columns + j)], At(name, i, j)) << name << " " << i << " " << j;
        EXPECT_EQ(spread[static_cast<size_t>(i * 3 + j * 3 * rows)], At(name, i, j)) << name << " " << i << " " << j;
      }
    }
    for (size_t i = 0; i < spread.size(); ++i) {
      if (i % 3 != 0) {
        EXPECT_EQ(spread[i], -1) << name << " wrote between its elements";
      }
    }
  }
}

TEST_F(ImageTensorsTest, EmptyOnesNeedNoTargetAndOthersDo) {
  const TensorTarget none[] = {{*tensors_->Find("none")}};
  EXPECT_TRUE(tensors_->Read(none).ok());
  for (const char* name : {"base", "wide"}) {
    const TensorTarget missing[] = {{*tensors_->Find(name)}};
    EXPECT_TRUE(absl::IsInvalidArgument(tensors_->Read(missing))) << name;
  }
}

TEST_F(ImageTensorsTest, MisuseIsToldAndWritesNothing) {
  std::vector<int32_t> memory(24, -1);
  const int64_t sharing[] = {0, 1};
  const TensorTarget shared[] = {{*tensors_->Find("base"), memory.data(), sharing}};
  EXPECT_TRUE(absl::IsInvalidArgument(tensors_->Read(shared)));
  const TensorTarget beyond[] = {{*tensors_->Find("base"), memory.data()}, {99, memory.data()}};
  EXPECT_TRUE(absl::IsInvalidArgument(tensors_->Read(beyond)));
  EXPECT_EQ(memory, std::vector<int32_t>(24, -1));
  EXPECT_FALSE(tensors_->Find("bases").has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(ImageTensors::Of(nullptr).status()));
}

}  // namespace
}  // namespace neve
