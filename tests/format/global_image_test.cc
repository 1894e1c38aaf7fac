// Headers of several ranks merged into one, and ranks that contradict each other.
#include "format/global_image.h"

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/format_fixtures.h"
#include "format/state_tree.h"

namespace neve::format {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The ranks of one save, by their states.
class Ranks {
 public:
  Ranks& Add(const State& state, std::string_view values = "") {
    const auto layout = state.Build();
    headers_.push_back(ParseImageHeader(HeaderOf(*layout, values), layout->image_bytes()).value());
    tensors_.push_back(LogicalTensors(headers_.back()).value());
    return *this;
  }
  // Of the rank that was added last, what its blobs hold.
  Ranks& WithBlobs(std::vector<std::string> payloads) {
    payloads_[headers_.size() - 1] = std::move(payloads);
    return *this;
  }
  absl::StatusOr<std::unique_ptr<GlobalMerge>> Begin(GlobalOptions options = {}) const {
    std::vector<RankImage> images;
    for (uint32_t i = 0; i < headers_.size(); ++i) images.push_back({i, &headers_[i], tensors_[i]});
    return GlobalMerge::Begin(std::move(images), std::move(options), [&](uint32_t image, uint64_t offset, std::span<std::byte> target) {
      for (const HeaderTensor& blob : headers_[image].tensors) {
        if (!blob.name.starts_with(kBlobPrefix) || offset < blob.offset || offset >= blob.offset + blob.bytes) continue;
        const std::string& payload = payloads_.at(image).at(std::stoul(blob.name.substr(kBlobPrefix.size())));
        std::string bytes(8, '\0');
        for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(payload.size() >> (8 * i));
        bytes += payload;
        std::memcpy(target.data(), bytes.data() + (offset - blob.offset), target.size());
        return absl::OkStatus();
      }
      return absl::InternalError("no blob was asked for");
    });
  }
  // What differs, shown by rank. equal: of all that is compared but copies of boxes.
  absl::StatusOr<GlobalImage> ByRank(bool equal = true) const {
    NEVE_ASSIGN_OR_RETURN(const auto merge, Begin({.differing = Differing::kByRank}));
    std::vector<bool> answers;
    for (const Comparison& comparison : merge->comparisons()) answers.push_back(equal || comparison.box);
    return merge->Finish(answers);
  }
  absl::StatusOr<GlobalImage> Merge(bool equal = true, std::vector<std::string> take_rank0 = {}) const {
    return MergeBy({std::move(take_rank0), std::nullopt}, equal);
  }
  absl::StatusOr<GlobalImage> MergeBy(GlobalOptions options, bool equal = true) const {
    NEVE_ASSIGN_OR_RETURN(const auto merge, Begin(std::move(options)));
    return merge->Finish(std::vector<bool>(merge->comparisons().size(), equal));
  }
  GlobalImage Merged() const {
    auto global = Merge();
    EXPECT_TRUE(global.ok()) << global.status();
    return global.ok() ? *std::move(global) : GlobalImage();
  }

 private:
  std::deque<ImageHeader> headers_;
  std::deque<std::vector<LogicalTensor>> tensors_;
  std::map<size_t, std::vector<std::string>> payloads_;
};

State Box(tensor::Dims extent, tensor::Dims global, tensor::Dims offset, DType dtype = DType::kF32, std::string name = "w") {
  return State().Add(std::move(name), dtype, std::move(extent), {}, 0x1000).AsPiece(std::move(global), std::move(offset));
}
State Tree(std::string root) {
  State state;
  state.structure.tree = std::move(root);
  return state;
}

std::string Damage(const Ranks& ranks) {
  const absl::Status status = ranks.Begin().status();
  EXPECT_TRUE(IsDamaged(status)) << status;
  return Message(status);
}
std::string Difference(const Ranks& ranks, bool equal = true) {
  const absl::Status status = ranks.Merge(equal).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  return Message(status);
}

TEST(GlobalImageTest, DCP_06_BoxesOfALogicalTensorBecomeOneWholeTensor) {
  const GlobalImage global = Ranks().Add(Box({4, 3}, {7, 3}, {0, 0})).Add(Box({3, 3}, {7, 3}, {4, 0})).Merged();
  ASSERT_EQ(global.tensors.size(), 1u);
  EXPECT_EQ(global.tensors[0].name, "w");
  EXPECT_EQ(global.tensors[0].shape, (tensor::Dims{7, 3}));
  EXPECT_EQ(global.tensors[0].piece, nullptr);
  ASSERT_EQ(global.entries.size(), 1u);
  EXPECT_TRUE(global.entries[0].cut);
  EXPECT_EQ(global.entries[0].boxes.size(), 2u);
  EXPECT_EQ(global.entries[0].copies[1].image, 1u);
  EXPECT_EQ(global.header.file_bytes, global.header_text.size() + 84);
}

TEST(GlobalImageTest, IdenticalBoxesAreCopiesOfOne) {
  const GlobalImage global = Ranks().Add(Box({2}, {4}, {0})).Add(Box({2}, {4}, {2})).Add(Box({2}, {4}, {2})).Merged();
  ASSERT_EQ(global.entries.size(), 1u);
  EXPECT_EQ(global.entries[0].boxes.size(), 2u);
  EXPECT_EQ(global.entries[0].CopiesOf(1).size(), 2u);
}

TEST(GlobalImageTest, SeveralBoxesOfOneRankAndEmptyOnesAreOneTensor) {
  State two = Box({1, 2}, {4, 2}, {0, 0});
  two.Add("w~#2", DType::kF32, {1, 2}, {}, 0x2000).AsPiece({4, 2}, {2, 0}, "w");
  State other = Box({1, 2}, {4, 2}, {1, 0});
  other.Add("w~#2", DType::kF32, {1, 2}, {}, 0x2000).AsPiece({4, 2}, {3, 0}, "w");
  const GlobalImage flat = Ranks().Add(two).Add(other).Add(Box({0, 2}, {4, 2}, {4, 0})).Merged();
  ASSERT_EQ(flat.tensors.size(), 1u);
  EXPECT_EQ(flat.entries[0].boxes.size(), 4u);

  two.structure.tree = other.structure.tree = R"({"d":[["w",{"o":"pieces","c":[{"T":1},{"T":1}]}]]})";
  State none = Box({0, 2}, {4, 2}, {4, 0});
  none.structure.tree = R"({"d":[1]})";
  const GlobalImage tree = Ranks().Add(two).Add(other).Add(none).Merged();
  ASSERT_EQ(tree.tensors.size(), 1u);
  EXPECT_EQ(tree.tensors[0].name, "w");
  EXPECT_EQ(tree.entries[0].boxes.size(), 4u);
}

TEST(GlobalImageTest, PiecesThatOverlapLeaveAGapOrDisagreeAreNamed) {
  EXPECT_THAT(Damage(Ranks().Add(Box({3, 2}, {4, 2}, {0, 0})).Add(Box({2, 2}, {4, 2}, {2, 0}))),
              AllOf(HasSubstr("\"w\""), HasSubstr("[0:3, 0:2] on rank 0 and [2:4, 0:2] on rank 1"), HasSubstr("overlap")));
  EXPECT_THAT(Damage(Ranks().Add(Box({1, 2}, {4, 2}, {0, 0})).Add(Box({2, 2}, {4, 2}, {2, 0}))),
              AllOf(HasSubstr("2 of its 8 elements"), HasSubstr("at [1,0]"), HasSubstr("ranks 0 and 1")));
  EXPECT_THAT(Damage(Ranks().Add(Box({2, 2}, {4, 2}, {0, 0})).Add(Box({2, 2}, {5, 2}, {2, 0}))),
              AllOf(HasSubstr("global shape [4,2] on rank 0"), HasSubstr("[5,2] on rank 1")));
  EXPECT_THAT(Damage(Ranks().Add(Box({2}, {4}, {0})).Add(Box({2}, {4}, {2}, DType::kI32))),
              HasSubstr("F32 on rank 0 and I32 on rank 1"));
  EXPECT_THAT(Damage(Ranks().Add(Box({0}, {4}, {0})).Add(Box({0}, {4}, {4}))), HasSubstr("4 of its 4 elements"));
  State whole = State().Add("w", DType::kF32, {4}, {}, 0x1000);
  EXPECT_THAT(Damage(Ranks().Add(Box({4}, {4}, {0})).Add(whole)),
              HasSubstr("a piece of a logical tensor on rank 0 and a whole tensor on rank 1"));
}

TEST(GlobalImageTest, DCP_03_PlainTensorsOfOneNameMustBeEqual) {
  const auto plain = [](tensor::Dims shape, DType dtype = DType::kF32) { return State().Add("a", dtype, std::move(shape), {}, 0x1000); };
  const auto same = Ranks().Add(plain({3})).Add(plain({3})).Begin();
  ASSERT_EQ((*same)->comparisons().size(), 1u);
  EXPECT_EQ((*same)->comparisons()[0].copies.size(), 2u);
  EXPECT_THAT(Difference(Ranks().Add(plain({3})).Add(plain({3})), false), AllOf(HasSubstr("\"a\""), HasSubstr("ranks 0 and 1")));
  EXPECT_THAT(Difference(Ranks().Add(plain({3})).Add(plain({4}))), HasSubstr("type, shape"));
  EXPECT_THAT(Difference(Ranks().Add(plain({3})).Add(plain({3}, DType::kI32))), HasSubstr("rank 0 and rank 1"));
  const auto taken = Ranks().Add(plain({3})).Add(plain({4})).Merge(true, {"a*"});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->tensors[0].shape, (tensor::Dims{3}));
  EXPECT_EQ(taken->entries[0].copies.size(), 1u);
}

TEST(GlobalImageTest, ValuesMustBeEqualOrRankZeroSpeaksForThem) {
  const State state = Tree(R"({"d":[["step","v"],["rng",{"d":[["cpu","v"]]}]]})");
  const Ranks ranks = Ranks().Add(state, "i7;i1;").Add(state, "i7;i2;").Add(state, "i7;i3;");
  EXPECT_THAT(Difference(ranks), AllOf(HasSubstr("\"rng.cpu\" has different values (rank 0 and rank 1)"), Not(HasSubstr("step"))));
  const auto taken = ranks.Merge(true, {"rng"});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->header.FindMetadata("neve.values")->substr(0, 7), "i7;i1; ");
  EXPECT_TRUE(Ranks().Add(state, "i7;i1;").Add(state, "i7;i1;").Merge().ok());
}

TEST(GlobalImageTest, PipelineStagesAreJoinedInTheOrderOfTheRanks) {
  State first = Tree(R"({"d":[["model",{"d":[2]}],["layers",{"l":[1]}],["step","v"]]})");
  first.Add("model.embed", DType::kF32, {2}, {}, 0x1000).AsPiece({2}, {0}).Add("model.a", DType::kF32, {2}, {}, 0x2000);
  first.Add("layers.0", DType::kF32, {2}, {}, 0x3000);
  State second =
      Tree(R"({"d":[["model",{"d":[2,["tied",{"r":"model.b"}]]}],["layers",{"l":[2]}],["step","v"],["more",{"b":0}]]})");
  second.structure.blob_count = 1;
  second.capacities.blob_bytes = {4096};
  second.Add("model.b", DType::kF32, {2}, {}, 0x1000).Add("model.head", DType::kF32, {2}, {}, 0x2000).AsPiece({2}, {0});
  second.Add("layers.0", DType::kF32, {2}, {}, 0x3000).Add("layers.1", DType::kF32, {2}, {}, 0x4000);
  const GlobalImage global = Ranks().Add(first, "i1;").Add(second, "i1;").Merged();
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : global.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("model.embed", "model.a", "model.b", "model.head", "layers.0", "layers.1"));
  const auto tree = ReadStateTree(global.header, global.tensors);
  ASSERT_TRUE(tree.ok()) << tree.status();
  std::vector<std::string> keys;
  for (const TreeNode& child : tree->root.children) keys.push_back(child.key);
  EXPECT_THAT(keys, ElementsAre("model", "layers", "step", "more"));
  EXPECT_EQ(tree->root.children[0].children.back().text, "model.b");
  EXPECT_EQ(global.header.tensors.back().name, "neve.blob.0");
}

TEST(GlobalImageTest, ReferencesFollowTheLogicalName) {
  State state = Tree(R"({"d":[["w",{"T":1}],["tied",{"r":"w"}]]})");
  state.Add("w", DType::kF32, {2}, {}, 0x1000).AsPiece({4}, {0}, "whole");
  State other = Tree(R"({"d":[["w",{"T":1}],["tied",{"r":"w"}]]})");
  other.Add("w", DType::kF32, {2}, {}, 0x1000).AsPiece({4}, {2}, "whole");
  const GlobalImage global = Ranks().Add(state).Add(other).Merged();
  EXPECT_EQ(global.tensors[0].name, "whole");
  EXPECT_THAT(*global.header.FindMetadata("neve.tree"), HasSubstr(R"(["w",{"T":1}],["tied",{"r":"whole"}])"));
}

TEST(GlobalImageTest, ViewsKeepTheirBasesAndStrides) {
  const auto state = [] {
    return State()
        .Add("conv", DType::kF32, {4, 3}, {1, 4}, 0x1000)
        .Add("row", DType::kF32, {4}, {}, 0x1000)
        .Add("wide", DType::kF32, {5, 3}, {0, 1}, 0x2000)
        .Add("window", DType::kI16, {5, 4}, {2, 1}, 0x3000)
        .Add("complex", DType::kC128, {2}, {}, 0x4000);
  };
  const Ranks ranks = Ranks().Add(state()).Add(state());
  EXPECT_EQ((*ranks.Begin())->comparisons().size(), 4u) << "what shares memory is compared once";
  const GlobalImage global = ranks.Merged();
  const std::vector<LogicalTensor> own = Logical(*state().Build());
  ASSERT_EQ(global.tensors.size(), own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(global.tensors[i].name, own[i].name);
    EXPECT_EQ(global.tensors[i].dtype, own[i].dtype);
    EXPECT_EQ(global.tensors[i].shape, own[i].shape);
    EXPECT_EQ(global.tensors[i].strides, own[i].strides);
    EXPECT_EQ(global.tensors[i].stored, own[i].stored);
    EXPECT_EQ(global.tensors[i].byte_offset, own[i].byte_offset);
  }
}

TEST(GlobalImageTest, KindsThatDisagreeAreNamed) {
  EXPECT_THAT(Difference(Ranks().Add(Tree(R"({"d":[["a",{"d":[]}]]})")).Add(Tree(R"({"d":[["a",{"l":[]}]]})"))), HasSubstr("\"a\""));
  EXPECT_THAT(Difference(Ranks().Add(Tree(R"({"d":[]})")).Add(Tree(R"({"d":[],"t":"O"})"))), HasSubstr("kinds"));
  EXPECT_THAT(Difference(Ranks().Add(Tree(R"({"d":[]})")).Add(State())), HasSubstr("flat"));
  EXPECT_TRUE(Ranks().Add(Tree(R"({"d":[["a",{"d":[]}]]})")).Add(Tree(R"({"d":[["a",{"l":[]}]]})")).Merge(true, {"a"}).ok());
}

// What a state of one place is, by "key: text of the value", tensors by "key: tensor".
std::string Places(const GlobalImage& global) {
  const auto tree = ReadStateTree(global.header, global.tensors);
  EXPECT_TRUE(tree.ok()) << tree.status();
  if (!tree.ok()) return "";
  std::string text;
  const std::function<void(const TreeNode&)> walk = [&](const TreeNode& node) {
    if (node.kind == TreeNode::Kind::kTensor) text += node.path + ": tensor\n";
    if (node.kind == TreeNode::Kind::kValue) text += node.path + ": " + node.text + "\n";
    if (node.kind == TreeNode::Kind::kBlob) text += node.path + ": blob\n";
    for (const TreeNode& child : node.children) walk(child);
  };
  walk(tree->root);
  return text;
}

TEST(GlobalImageTest, ValuesMergeWithTheContainersThatTheyStandFor) {
  const State values = Tree(R"("v")");
  State tensors = Tree(R"({"d":[["~~odd","v"],2,["~i7",{"d":[1]}]]})");
  tensors.Add("a", DType::kF32, {2}, {}, 0x1000).Add("z", DType::kF32, {2}, {}, 0x2000).Add("~i7.w", DType::kF32, {2}, {}, 0x3000);
  // {"step": 3, "~odd": None, 7: {"lr": True, b"\x00": -2}} on rank 0, tensors beside and among them on rank 1.
  const std::string text = "{'step'i3;'~odd'ni7;{'lr'tyAA;i-2;}}";
  for (const std::vector<std::string>& take_rank0 : {std::vector<std::string>{}, {"*"}}) {
    const auto global = Ranks().Add(values, text).Add(tensors, "n").Merge(true, take_rank0);
    ASSERT_TRUE(global.ok()) << global.status();
    EXPECT_EQ(Places(*global), "step: i3;\n~~odd: n\n~i7.lr: t\n~i7.~yAA: i-2;\n~i7.w: tensor\na: tensor\nz: tensor\n");
  }
  // The other way round, and where the value is a blob.
  const auto turned = Ranks().Add(tensors, "n").Add(values, text).Merge();
  ASSERT_TRUE(turned.ok()) << turned.status();
  EXPECT_EQ(Places(*turned), "~~odd: n\na: tensor\nz: tensor\n~i7.w: tensor\n~i7.lr: t\n~i7.~yAA: i-2;\nstep: i3;\n");
  State blob = Tree(R"({"b":0})");
  blob.structure.blob_count = 1;
  blob.capacities.blob_bytes = {4096};
  const auto read = Ranks().Add(blob).WithBlobs({"v" + text}).Add(tensors, "n").Merge(true, {"*"});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Places(*read), "step: i3;\n~~odd: n\n~i7.lr: t\n~i7.~yAA: i-2;\n~i7.w: tensor\na: tensor\nz: tensor\n");
  // Blobs of several ranks, alike and not.
  const auto several = Ranks().Add(blob).WithBlobs({"v{'a'i1;}"}).Add(blob).WithBlobs({"v{'a'i1;}"}).Add(blob).WithBlobs({"v{'b'i2;}"})
                           .Add(Tree(R"({"d":[["c","v"]]})"), "i3;").Merge();
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_EQ(Places(*several), "a: i1;\nb: i2;\nc: i3;\n");
  EXPECT_THAT(Message(Ranks().Add(blob).WithBlobs({"v{'c'i1;}"}).Add(Tree(R"({"d":[["c","v"]]})"), "i3;").Merge().status()),
              HasSubstr("\"c\" has different values (rank 0 and rank 1)"));
}

TEST(GlobalImageTest, ListsTuplesAndObjectsOfValuesMergeWithTensors) {
  State tensors = Tree(R"({"d":[["l",{"l":["v",1]}],["t",{"l":["v",1],"t":"tuple"}],["n",{"l":[1],"t":"n:m.Point"}],)"
                       R"(["o",{"d":[1],"t":"O"}],["c",{"o":"dataclass","q":"m.Config","c":[{"d":[["x","v"],1]}]}]]})");
  for (const char* name : {"l.1", "t.1", "n.0", "o.w", "c.w"}) {
    tensors.Add(name, DType::kF32, {2}, {}, 0x1000 * (1 + tensors.addresses.size()));
  }
  const std::string values = "{'l'[i1;]'t'(i2;)'n'@'m.Point'()'o'E{'k'i4;}'c'@'m.Config'{'x'i5;}}";
  State all = Tree(R"("v")");
  all.capacities.values_bytes = 128;
  const auto global = Ranks().Add(all, values).Add(tensors, "i1;i2;i5;").Merge(true, {"*"});
  ASSERT_TRUE(global.ok()) << global.status();
  EXPECT_EQ(Places(*global), "l.0: i1;\nl.1: tensor\nt.0: i2;\nt.1: tensor\nn.0: tensor\no.k: i4;\no.w: tensor\nc.x: i5;\n"
                             "c.w: tensor\n");
}

TEST(GlobalImageTest, DictionariesOfValuesMergeByKey) {
  const State values = Tree(R"("v")");
  const GlobalImage global =
      Ranks().Add(values, "{'a'i1;'b'{}}").Add(values, "{'b'{'c'i2;}'a'i1;'s'sYWJj;}").Add(values, "{'s''abc'}").Merged();
  EXPECT_EQ(Places(global), "a: i1;\nb.c: i2;\ns: sYWJj;\n");
  EXPECT_THAT(Difference(Ranks().Add(values, "{'a'i1;'l'[i1;]}").Add(values, "{'a'i2;'l'[i1;i2;]}")),
              AllOf(HasSubstr("\"a\" has different values"), HasSubstr("\"l\" has different values")));
}

TEST(GlobalImageTest, NoPatternMakesATensorDisappear) {
  State tensor = Tree(R"({"d":[["x",{"d":[1]}]]})");
  tensor.Add("x.w", DType::kF32, {2}, {}, 0x1000);
  for (const State& other : {Tree(R"({"d":[["x","v"]]})"), Tree(R"({"d":[["x",{"l":["v"]}]]})")}) {
    for (const char* pattern : {"*", "x", "x.w"}) {
      const absl::Status status = Ranks().Add(other, "i5;").Add(tensor).Merge(true, {pattern}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_THAT(Message(status), HasSubstr("\"x\" holds tensors on rank 1 and is of another kind on rank 0"));
    }
    EXPECT_TRUE(Ranks().Add(tensor).Add(other, "i5;").Merge(true, {"x"}).ok()) << "rank 0's tensor stands";
  }
}

TEST(GlobalImageTest, CopiesOfABoxMustBeEqual) {
  const auto ranks = Ranks().Add(Box({2}, {4}, {0})).Add(Box({2}, {4}, {2})).Add(Box({2}, {4}, {2}));
  const auto merge = ranks.Begin();
  ASSERT_TRUE(merge.ok()) << merge.status();
  ASSERT_EQ((*merge)->comparisons().size(), 1u);
  const Comparison& comparison = (*merge)->comparisons()[0];
  EXPECT_EQ(comparison.name, "w");
  EXPECT_TRUE(comparison.box);
  ASSERT_EQ(comparison.copies.size(), 2u);
  EXPECT_EQ(comparison.copies[0].image, 1u);
  EXPECT_EQ(comparison.copies[1].bytes, 8u);
  EXPECT_THAT(Difference(ranks, false), HasSubstr("\"w\" has different bytes on ranks 1 and 2 in the box [2:4]"));
  const auto taken = ranks.Merge(false, {"w"});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->entries[0].CopiesOf(0).size(), 1u);
  ASSERT_EQ(taken->entries[0].CopiesOf(1).size(), 1u);
  EXPECT_EQ(taken->entries[0].CopiesOf(1)[0].image, 1u);
  EXPECT_EQ(ranks.Merge(true, {"w"})->entries[0].CopiesOf(1).size(), 2u) << "what is equal can stand for the other";
  EXPECT_TRUE(IsDamaged(ranks.MergeBy({.differing = Differing::kByRank}, false).status())) << "boxes are shown once";
}

TEST(GlobalImageTest, WhatIsNotWantedMayDiffer) {
  State state = Tree(R"({"d":[["rng",{"d":[["cpu","v"]]}],["model",{"d":[1]}],["w",{"T":1}]]})");
  state.Add("model.b", DType::kF32, {2}, {}, 0x1000).Add("w", DType::kF32, {2}, {}, 0x2000).AsPiece({2}, {0});
  const Ranks ranks = Ranks().Add(state, "i1;").Add(state, "i2;");
  using Patterns = std::vector<std::string>;
  for (const Patterns& include : {Patterns{"w"}, {"mod?l"}, {"[n-z]ng.gpu"}, {"rng.cpu.*.x"}}) {
    EXPECT_EQ(ranks.MergeBy({{}, include}).ok(), include[0] != "[n-z]ng.gpu" && include[0] != "rng.cpu.*.x") << include[0];
  }
  EXPECT_EQ(ranks.MergeBy({{}, Patterns{"w"}}, false).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(ranks.MergeBy({{"w"}, Patterns{"w"}}, false).ok());
  const auto merge = ranks.Begin({{}, Patterns{"nothing"}});
  ASSERT_TRUE(merge.ok()) << merge.status();
  EXPECT_THAT((*merge)->comparisons(), IsEmpty());
  EXPECT_EQ((*merge)->Finish({})->entries.front().copies.size(), 1u) << "what nobody compared is one rank's";
  EXPECT_EQ((*ranks.Begin({{}, Patterns{}}))->comparisons().size(), 1u) << "logical tensors alone";
  EXPECT_FALSE(ranks.MergeBy({{}, Patterns{}}, false).ok());
  for (const char* pattern : {"model", "model.b", "model.*", "*", "m*.b", "*b", "model.b.c"}) {
    EXPECT_FALSE(ranks.MergeBy({{"rng"}, Patterns{pattern}}, false).ok()) << pattern;
  }
  for (const char* pattern : {"mod", "model.c", "model.bc", "b"}) {
    EXPECT_TRUE(ranks.MergeBy({{"rng"}, Patterns{pattern}}, false).ok()) << pattern;
  }
}

TEST(GlobalImageTest, OneRankAloneIsWhatItHolds) {
  const GlobalImage global = Ranks().Add(Box({4}, {4}, {0}).Add("x", DType::kU8, {3}, {}, 0x9000)).Merged();
  EXPECT_EQ(global.tensors.size(), 2u);
  EXPECT_THAT((*Ranks().Add(Box({4}, {4}, {0})).Begin())->comparisons(), IsEmpty());
}

std::vector<std::string> NamesOf(const GlobalImage& global) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : global.tensors) names.push_back(tensor.name);
  return names;
}

TEST(GlobalImageTest, WhatDiffersIsShownByRankWhenAskedFor) {
  const State state = Tree(R"({"d":[["step","v"],["rng",{"d":[["cpu","v"]]}]]})");
  const auto values = Ranks().Add(state, "i7;i1;").Add(state, "i7;i2;").Add(state, "i7;i1;").ByRank();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->header.FindMetadata("neve.values")->substr(0, 13), "i7;i1;i2;i1; ");
  EXPECT_THAT(*values->header.FindMetadata("neve.tree"),
              HasSubstr(R"(["rng",{"d":[["cpu",{"d":[["@0","v"],["@1","v"],["@2","v"]]}]]}])"));
  EXPECT_THAT(values->by_rank, ElementsAre("rng.cpu"));

  const auto plain = [](tensor::Dims shape) { return State().Add("a", DType::kF32, std::move(shape), {}, 0x1000); };
  EXPECT_THAT(NamesOf(*Ranks().Add(plain({3})).Add(plain({3})).ByRank()), ElementsAre("a"));
  const auto bytes = Ranks().Add(plain({3})).Add(plain({3})).ByRank(false);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_THAT(NamesOf(*bytes), ElementsAre("a.@0", "a.@1"));
  EXPECT_EQ(bytes->entries[1].copies[0].image, 1u);
  EXPECT_EQ(bytes->entries[1].copies.size(), 1u);
  const auto shapes = Ranks().Add(plain({3})).Add(plain({4})).ByRank();
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  EXPECT_EQ(shapes->tensors[1].shape, (tensor::Dims{4}));
}

TEST(GlobalImageTest, WhatSharesMemoryOrIsTheSameIsShownByRankTogether) {
  const auto state = [] {
    State made = Tree(R"({"d":[["l",{"l":[1,"v"]}],["view",{"T":1}],["tied",{"r":"l.0"}],["kept",{"T":1}]]})");
    made.Add("l.0", DType::kF32, {4}, {}, 0x1000).Add("view", DType::kF32, {2}, {}, 0x1004);
    return made.Add("kept", DType::kF32, {2}, {}, 0x3000).AsPiece({2}, {0});
  };
  const auto global = Ranks().Add(state(), "i1;").Add(state(), "i1;").ByRank(false);
  ASSERT_TRUE(global.ok()) << global.status();
  EXPECT_THAT(NamesOf(*global), ElementsAre("l.0.@0", "l.0.@1", "view.@0", "view.@1", "kept"));
  EXPECT_EQ(global->tensors[3].stored, "l.0.@1");
  EXPECT_THAT(global->by_rank, ElementsAre("l.0", "view"));
  EXPECT_THAT(*global->header.FindMetadata("neve.tree"), HasSubstr(R"(["tied",{"d":[["@0",{"r":"l.0.@0"}],["@1",{"r":"l.0.@1"}]]}])"));
}

TEST(GlobalImageTest, KindsAndPartsOfObjectsThatDifferAreShownByRankAsAWhole) {
  State dict = Tree(R"({"d":[["a",{"d":[["x",1],["w",1]]}]]})"), list = Tree(R"({"d":[["a",{"l":[1]}]]})");
  dict.Add("a.x", DType::kF32, {2}, {}, 0x1000).Add("a.w", DType::kF32, {2}, {}, 0x2000).AsPiece({4}, {0}, "w");
  list.Add("a.0", DType::kF32, {2}, {}, 0x1000).AsPiece({4}, {2}, "w");
  const auto kinds = Ranks().Add(dict).Add(list).ByRank();
  ASSERT_TRUE(kinds.ok()) << kinds.status();
  EXPECT_THAT(NamesOf(*kinds), ElementsAre("a.@0.x", "w"));

  State sparse = Tree(R"({"d":[["s",{"o":"coo","sh":[4],"c":[{"T":1},{"T":1}]}]]})");
  sparse.Add("s.indices", DType::kI64, {1, 2}, {}, 0x1000).Add("s.values", DType::kF32, {2}, {}, 0x2000);
  const auto parts = Ranks().Add(sparse).Add(sparse).ByRank(false);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(parts->by_rank, ElementsAre("s"));
  EXPECT_THAT(*parts->header.FindMetadata("neve.tree"), HasSubstr(R"(["@1",{"o":"coo")"));
}

}  // namespace
}  // namespace neve::format
