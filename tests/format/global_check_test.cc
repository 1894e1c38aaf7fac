// All that is wrong with the pieces of a save, tensor by tensor.
#include "format/global_check.h"

#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "format/format_fixtures.h"

namespace neve::format {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Save {
 public:
  Save& Add(const State& state) {
    const auto layout = state.Build();
    headers_.push_back(ParseImageHeader(HeaderOf(*layout), layout->image_bytes()).value());
    tensors_.push_back(LogicalTensors(headers_.back()).value());
    images_.push_back({static_cast<uint32_t>(images_.size()), &headers_.back(), tensors_.back()});
    return *this;
  }
  PiecesCheck Check() const { return CheckPieces(images_); }

 private:
  std::deque<ImageHeader> headers_;
  std::deque<std::vector<LogicalTensor>> tensors_;
  std::vector<RankImage> images_;
};

State& AddBox(State& state, std::string name, tensor::Dims extent, tensor::Dims global, tensor::Dims offset, tensor::Dims strides = {}) {
  state.Add(name, DType::kF32, std::move(extent), std::move(strides), 0x1000 * (state.addresses.size() + 1));
  return state.AsPiece(std::move(global), std::move(offset));
}

TEST(GlobalCheckTest, EveryWrongTensorIsNamedWithItsRanks) {
  State first, second;
  AddBox(first, "gap", {1, 2}, {4, 2}, {0, 0}), AddBox(second, "gap", {2, 2}, {4, 2}, {2, 0});
  AddBox(first, "over", {3}, {4}, {0}), AddBox(second, "over", {2}, {4}, {2});
  AddBox(first, "shape", {2}, {4}, {0}), AddBox(second, "shape", {2}, {5}, {2});
  AddBox(first, "mixed", {2}, {2}, {0});
  second.Add("mixed", DType::kF32, {2}, {}, 0x9000);
  AddBox(first, "good", {2}, {4}, {0}), AddBox(second, "good", {2}, {4}, {2});
  const PiecesCheck check = Save().Add(first).Add(second).Check();
  ASSERT_EQ(check.problems.size(), 4u);
  EXPECT_EQ(check.tensors, 5u);
  EXPECT_THAT(check.problems[0].message, AllOf(HasSubstr("\"gap\""), HasSubstr("at [1,0]"), HasSubstr("ranks 0 and 1")));
  EXPECT_THAT(check.problems[1].message, AllOf(HasSubstr("\"over\""), HasSubstr("overlap"), HasSubstr("rank 1")));
  EXPECT_THAT(check.problems[2].message, AllOf(HasSubstr("\"shape\""), HasSubstr("[5] on rank 1")));
  EXPECT_EQ(check.problems[3].name, "mixed");
  EXPECT_THAT(check.problems[3].message, HasSubstr("on rank 0 and a whole tensor on rank 1"));
}

TEST(GlobalCheckTest, ReplicasAreToBeCompared) {
  State first, second, third;
  for (State* state : {&first, &second}) AddBox(*state, "w", {2, 3}, {4, 3}, {0, 0});
  AddBox(third, "w", {2, 3}, {4, 3}, {2, 0});
  const PiecesCheck check = Save().Add(first).Add(second).Add(third).Check();
  EXPECT_THAT(check.problems, IsEmpty());
  ASSERT_EQ(check.replicas.size(), 1u);
  EXPECT_EQ(check.replicas[0].name, "w");
  ASSERT_EQ(check.replicas[0].copies.size(), 2u);
  EXPECT_EQ(check.replicas[0].copies[1].image, 1u);
  EXPECT_EQ(check.replicas[0].copies[1].bytes, 24u);
}

TEST(GlobalCheckTest, ReplicasThatLieOtherwiseAreSaidToBe) {
  State first, second;
  AddBox(first, "w", {4, 3}, {4, 3}, {0, 0}), AddBox(second, "w", {4, 3}, {4, 3}, {0, 0}, {0, 1});
  const PiecesCheck check = Save().Add(first).Add(second).Check();
  EXPECT_THAT(check.replicas, IsEmpty());
  EXPECT_THAT(check.unlike, ElementsAre("w"));
  State third;
  AddBox(third, "w", {4, 3}, {4, 3}, {0, 0}, {0, 1});
  const PiecesCheck alike = Save().Add(second).Add(third).Check();
  ASSERT_EQ(alike.replicas.size(), 1u);
  EXPECT_EQ(alike.replicas[0].copies[0].bytes, 12u) << "what repeats is there once";
}

// As many ranks as tensors, each cut by rows: work that grew with the square of either would never end.
TEST(GlobalCheckTest, DCP_05_ManyTensorsInManyShardsAreCheckedAndEachFaultIsNamed) {
  constexpr int64_t kTensors = 1024, kRanks = 1024, kHole = 300, kOverlap = 700;
  Save save;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    State state;
    for (int64_t t = 0; t < kTensors; ++t) {
      // A row too few, or one too many.
      const int64_t begin = t == kHole && rank == 511 ? 510 : rank, rows = t == kOverlap && rank == 511 ? 2 : 1;
      AddBox(state, absl::StrFormat("layer%d.weight", t), {rows, 2}, {kRanks, 2}, {begin, 0});
    }
    save.Add(state);
  }
  const PiecesCheck faulty = save.Check();
  ASSERT_EQ(faulty.problems.size(), 2u);   // of the rest nothing is wrong
  EXPECT_EQ(faulty.tensors, static_cast<size_t>(kTensors));
  EXPECT_THAT(faulty.problems[0].message, AllOf(HasSubstr("\"layer300.weight\""), HasSubstr("[511,0]")));
  EXPECT_THAT(faulty.problems[1].message,
              AllOf(HasSubstr("\"layer700.weight\""), HasSubstr("[511:513, 0:2] on rank 511"), HasSubstr("overlap")));
}

}  // namespace
}  // namespace neve::format
