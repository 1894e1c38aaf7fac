#include "format/tree_walk.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/format_fixtures.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A header with that tree, those values and these entries.
struct Image {
  std::string tree, values, entries;
  uint64_t data_bytes = 0;

  // U8 unless said; of one dimension.
  Image& Add(const std::string& name, uint64_t count, DType dtype = DType::kU8) {
    std::string quoted;
    AppendJsonString(name, &quoted);
    const uint64_t bytes = count * ItemBytes(dtype);
    entries += absl::StrFormat(",%s:{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[%d,%d]}", quoted,
                               std::string(Name(dtype)), count, data_bytes, data_bytes + bytes);
    data_bytes += bytes;
    return *this;
  }

  ImageHeader Header() const {
    std::string json = "{\"__metadata__\":{\"neve.format\":\"1\",\"neve.values\":";
    AppendJsonString(values, &json);
    json += ",\"neve.tree\":";
    AppendJsonString(tree, &json);
    json += "}" + entries + "}";
    auto header = ParseJson(json, data_bytes);
    EXPECT_TRUE(header.ok()) << header.status();
    return header.value_or(ImageHeader{});
  }
};

Image With(const std::string& root, const std::string& values = "", const std::string& tensors = "") {
  return {"{\"v\":1,\"root\":" + root + (tensors.empty() ? "" : ",\"tensors\":" + tensors) + "}", values};
}

std::string Refused(const Image& image) {
  const absl::Status status = CheckTree(image.Header());
  EXPECT_TRUE(IsDamaged(status)) << image.tree << " " << status;
  return Message(status);
}

// What a visitor is told, a line each.
class Teller : public TreeVisitor {
 public:
  std::vector<std::string> lines;

  void Enter(const TreePlace& place, Container container, const NodeMembers& node) override {
    constexpr std::string_view kNames[] = {"dict", "list", "composite", "attributes"};
    Tell(place, std::string(kNames[static_cast<size_t>(container)]) + " " + node.type);
  }
  void Leave() override { lines.push_back("leave"); }
  void OnTensor(const TreePlace& place, const NodeMembers&, const LogicalTensor& tensor) override {
    Tell(place, "tensor " + tensor.name);
  }
  void OnValue(const TreePlace& place, Value value) override { Tell(place, "value " + DescribeValue(value)); }
  void OnMeta(const TreePlace& place, const NodeMembers& node) override { Tell(place, "meta " + node.dtype); }
  void OnBlob(const TreePlace& place, const NodeMembers& node, const HeaderTensor& blob) override {
    Tell(place, "blob " + blob.name + " " + node.class_name);
  }
  void OnReference(const TreePlace& place, const std::string& target) override { Tell(place, "same as " + target); }

 private:
  void Tell(const TreePlace& place, const std::string& what) {
    const std::string key = place.role == TreePlace::Role::kKey     ? DescribeValue(*place.key)
                            : place.role == TreePlace::Role::kIndex ? std::to_string(place.index)
                                                                    : "-";
    lines.push_back(absl::StrFormat("%d %s %s: %s", place.depth, key, std::string(place.name), what));
  }
};

TEST(TreeWalkTest, TellsOfEveryNodeInItsOrder) {
  Image image = With(R"({"d":[1,["x",{"l":[1,"v",{"r":"a"}],"t":"tuple"}],["~i5",{"b":0,"q":"m.C"}],)"
                     R"(["s",{"o":"state","q":"m.S","c":[{"d":[["g",{"T":1,"param":1,"grad":1,"py":"v"}]]}]}],)"
                     R"(["m",{"T":1,"meta":1,"dt":"float32","sh":[2],"st":[1]}]]})", "i7;{'k't}");
  image.Add("a", 4).Add("x.0", 4).Add("s.g", 4, DType::kF32).Add("neve.blob.0", 16);
  const ImageHeader header = image.Header();
  const auto tensors = LogicalTensors(header);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  Teller teller;
  const absl::Status status = WalkTree(header, *tensors, &teller);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(teller.lines, ElementsAre("0 - : dict ", "1 \"a\" a: tensor a", "1 \"x\" x: list tuple", "2 0 x.0: tensor x.0",
                                        "2 1 x.1: value 7", "2 2 x.2: same as a", "leave", "1 5 ~i5: blob neve.blob.0 m.C",
                                        "1 \"s\" s: composite state", "2 - s: dict ", "3 \"g\" s.g: tensor s.g",
                                        "3 \"g\" s.g: attributes ", "4 - s.g.~py: value {\"k\": True}", "leave", "leave", "leave",
                                        "1 \"m\" m: meta float32", "leave"));
  EXPECT_TRUE(CheckTree(header).ok());
}

TEST(TreeWalkTest, PlacesAndTensorsMustBeAsMany) {
  EXPECT_THAT(Refused(With(R"({"d":[2]})").Add("a", 1)), HasSubstr("more tensors than the header"));
  EXPECT_THAT(Refused(With(R"({"d":[18446744073709551615]})").Add("a", 1)), HasSubstr("more tensors than the header"));
  EXPECT_THAT(Refused(With(R"({"d":[18446744073709551616]})").Add("a", 1)), HasSubstr("no count"));
  EXPECT_THAT(Refused(With(R"({"d":[-1]})").Add("a", 1)), HasSubstr("no count"));
  EXPECT_THAT(Refused(With(R"({"l":[1000000000]})")), HasSubstr("more tensors than the header"));
  EXPECT_THAT(Refused(With(R"({"d":[1,["b",{"T":1}]]})").Add("a", 1)), HasSubstr("at \"b\": it has places for more"));
  EXPECT_THAT(Refused(With(R"({"d":[]})").Add("a", 1)), HasSubstr("no place for tensor \"a\""));
  EXPECT_THAT(Refused(With(R"({"d":[["x",{"d":[1]}]]})").Add("a", 1)), HasSubstr("\"a\" does not lie there"));
}

TEST(TreeWalkTest, AliasesMustLieInTheirBase) {
  const auto refused = [](const std::string& alias) {
    return Refused(With(R"({"d":[1,["b",{"T":1}]]})", "", "{\"alias\":[[" + alias + ",[2],[1]]]}").Add("a", 2, DType::kF32));
  };
  EXPECT_THAT(refused(R"(1,"b","a",4,"F32")"), HasSubstr("reach past"));
  EXPECT_THAT(refused(R"(1,"b","a",-4,"F32")"), HasSubstr("negative"));
  EXPECT_THAT(refused(R"(1,"b","zz",0,"F32")"), HasSubstr("not in the header"));
  EXPECT_THAT(refused(R"(99,"b","a",0,"F32")"), HasSubstr("position 99"));
}

TEST(TreeWalkTest, StridesThatSpanMoreThanAnyMemoryAreDamaged) {
  const auto strided = [](const std::string& text) {
    return With(R"({"d":[1]})", "", R"({"strided":{"a":)" + text + "}}").Add("a", 2, DType::kF32);
  };
  EXPECT_THAT(Refused(strided("[[2],[35184372088832]]")), HasSubstr("do not fit"));
  EXPECT_THAT(Refused(strided("[[2],[4611686018427387904]]")), HasSubstr("do not fit"));
  EXPECT_TRUE(CheckTree(strided("[[2],[1099511627776]]").Header()).ok());
}

TEST(TreeWalkTest, ValuesMustBeWellFormedAndAsManyAsTheTreeTakes) {
  EXPECT_THAT(Refused(With("\"v\"", "")), HasSubstr("a value is missing"));
  EXPECT_THAT(Refused(With("\"v\"", "i1;i2;  ")), HasSubstr("something follows the last value"));
  EXPECT_THAT(Refused(With("\"v\"", "[[[[i1;")), HasSubstr("without an end"));
  EXPECT_THAT(Refused(With("\"v\"", std::string(200, '[') + std::string(200, ']'))), HasSubstr("nested more than 128"));
  EXPECT_THAT(Refused(With("\"v\"", "i" + std::string(5'000'000, '9') + ";")), HasSubstr("over the limit of 4096"));
  EXPECT_TRUE(CheckTree(With("\"v\"", "h-" + std::string(10'000, 'f') + ";").Header()).ok());
  EXPECT_TRUE(CheckTree(With("\"v\"", "i1;   ").Header()).ok());
}

TEST(TreeWalkTest, NodesMustBeOfAKindAndWhole) {
  for (const char* root : {"null", "[]", "5", "\"w\"", "1.5", "true"}) Refused(With(root));
  EXPECT_THAT(Refused(With(R"({"d":5})")), HasSubstr("not of its type"));
  EXPECT_THAT(Refused(With(R"({"d":["x"]})")), HasSubstr("no pair"));
  EXPECT_THAT(Refused(With(R"({"d":[["x"]]})")), HasSubstr("no pair"));
  EXPECT_THAT(Refused(With(R"({"d":[["x","v",1]]})", "n")), HasSubstr("no pair"));
  EXPECT_THAT(Refused(With(R"({"d":[["x","v"],["x","v"]]})", "nn")), HasSubstr("stands twice"));
  EXPECT_THAT(Refused(With(R"({"d":[1,["a","v"]]})", "n").Add("a", 1)), HasSubstr("stands twice"));
  EXPECT_THAT(Refused(With(R"({"d":[["~i5x","v"]]})", "n")), HasSubstr("escaped key \"~i5x\" is malformed"));
  EXPECT_THAT(Refused(With(R"({"d":[],"l":[]})")), HasSubstr("two kinds"));
  EXPECT_THAT(Refused(With(R"({"l":[2,-1]})").Add("a", 2)), HasSubstr("header"));
  EXPECT_THAT(Refused(With(R"({"T":1,"dev":5})").Add("a", 1)), HasSubstr("\"dev\""));
  EXPECT_THAT(Refused(With(R"({"T":1,"dev":"cuda:"})").Add("a", 1)), HasSubstr("\"dev\""));
  EXPECT_THAT(Refused(With(R"({"T":1,"dev":"meta"})").Add("a", 1)), HasSubstr("cannot hold"));
  EXPECT_THAT(Refused(With(R"({"T":1,"param":1,"grad":1})").Add("a", 1, DType::kI64)), HasSubstr("gradients"));
  EXPECT_THAT(Refused(With(R"({"T":1,"py":"v"})", "i5;").Add("a", 1)), HasSubstr("no dictionary"));
  EXPECT_THAT(Refused(With(R"({"T":1,"py":{"l":[]}})").Add("a", 1)), HasSubstr("no dictionary"));
  EXPECT_THAT(Refused(With(R"({"T":1,"np":"|O8"})").Add("a", 8)), HasSubstr("NumPy dtype"));
  EXPECT_THAT(Refused(With(R"({"T":1,"np":"<i4"})").Add("a", 8)), HasSubstr("NumPy dtype"));
  EXPECT_THAT(Refused(With(R"({"T":1,"st":[1.5]})").Add("a", 1)), HasSubstr("\"st\""));
  EXPECT_THAT(Refused(With(R"({"T":1,"st":[2]})").Add("a", 2)), HasSubstr("strides"));
  EXPECT_THAT(Refused(With(R"({"T":1,"meta":1,"dt":"float32","sh":[4611686018427387904,4611686018427387904],"st":[1,1]})")),
              HasSubstr("overflows"));
  EXPECT_THAT(Refused(With(R"({"T":1,"meta":1,"dt":"float32","sh":[4611686018427387904],"st":[1]})")), HasSubstr("any memory"));
  EXPECT_THAT(Refused(With(R"({"T":1,"meta":1})")), HasSubstr("without its dtype"));
  EXPECT_THAT(Refused(With(R"({"o":"coo","sh":[2,2],"c":[{"T":1}]})").Add("a", 1)), HasSubstr("has 1 parts, not 2"));
  EXPECT_THAT(Refused(With(R"({"o":"coo","sh":[2,2],"c":["v","v"]})", "nn")), HasSubstr("no tensor"));
  EXPECT_THAT(Refused(With(R"({"o":"generator"})")), HasSubstr("without its parts"));
}

TEST(TreeWalkTest, BoxesThatStandInOnePlaceAreOfOneLogicalTensor) {
  const auto boxes = [](const std::string& parts, const std::string& pieces) {
    return With(R"({"d":[["w",{"o":"pieces","c":[)" + parts + "]}]]}", "", "{\"piece\":{" + pieces + "}}").Add("w", 2).Add("w~#2", 2);
  };
  const std::string first = R"("w":[[8],[0]])";
  EXPECT_TRUE(CheckTree(boxes(R"({"T":1},{"T":1})", first + R"(,"w~#2":[[8],[4],"w"])").Header()).ok());
  EXPECT_THAT(Refused(boxes(R"({"T":1},{"T":1})", first)), HasSubstr("its part \"w~#2\" is no piece"));
  EXPECT_THAT(Refused(boxes(R"({"T":1},{"T":1})", first + R"(,"w~#2":[[8],[4]])")), HasSubstr("of \"w\" and of \"w~#2\""));
  EXPECT_THAT(Refused(boxes(R"({"T":1},{"d":[1]})", first)), HasSubstr("is no tensor"));
  EXPECT_THAT(Refused(boxes(R"({"T":1},{"T":1},{"T":1})", first + R"(,"w~#2":[[8],[4],"w"])")), HasSubstr("more tensors"));
}

TEST(TreeWalkTest, BlobsMustBeThereOnce) {
  EXPECT_THAT(Refused(With(R"({"b":7})")), HasSubstr("no neve.blob.7"));
  EXPECT_THAT(Refused(With(R"({"b":"7"})")), HasSubstr("not of its type"));
  EXPECT_THAT(Refused(With(R"({"l":[{"b":0},{"b":0}]})").Add("neve.blob.0", 16)), HasSubstr("named twice"));
  EXPECT_THAT(Refused(With(R"({"b":0})").Add("neve.blob.0", 8)), HasSubstr("is no blob"));
}

TEST(TreeWalkTest, ReferencesMustNameWhatStandsBefore) {
  EXPECT_THAT(Refused(With(R"({"d":[["x",{"r":"x"}]]})")), HasSubstr("no tensor that stands before"));
  EXPECT_THAT(Refused(With(R"({"d":[["x",{"r":"a"}],1]})").Add("a", 1)), HasSubstr("no tensor that stands before"));
}

TEST(TreeWalkTest, ContainersNestAsDeepAsValuesDo) {
  const auto nested = [](int depth) {
    std::string root = "\"v\"";
    for (int i = 0; i < depth; ++i) root = "{\"l\":[" + root + "]}";
    return With(root, "n");
  };
  EXPECT_TRUE(CheckTree(nested(kValuesDepthMax).Header()).ok());
  EXPECT_THAT(Refused(nested(kValuesDepthMax + 1)), HasSubstr("nested more than 128 deep"));
  EXPECT_THAT(Refused(nested(5000)), HasSubstr("deep"));
}

TEST(TreeWalkTest, AKeyOfMegabytesAboveManyPlacesIsRefused) {
  std::string children;
  for (int i = 0; i < 2000; ++i) children += absl::StrFormat("%s[\"%d\",\"v\"]", i == 0 ? "" : ",", i);
  const std::string key(1'000'000, 'k');
  const Image image = With("{\"d\":[[\"" + key + "\",{\"d\":[" + children + "]}]]}", std::string(2000, 'n'));
  EXPECT_THAT(Refused(image), HasSubstr("names of its places"));
}

TEST(TreeWalkTest, WhatANewerVersionMayHaveIsUnsupported) {
  for (const char* root : {R"({"z":1})", R"({"d":[],"t":"Z"})", R"({"l":[],"t":"Z"})"}) {
    EXPECT_EQ(CheckTree(With(root).Header()).code(), absl::StatusCode::kUnimplemented) << root;
  }
  EXPECT_TRUE(CheckTree(With(R"({"o":"later","c":[{"T":1}]})").Add("a", 1).Header()).ok());
  EXPECT_TRUE(CheckTree(With(R"({"d":[1],"later":[1]})").Add("a", 1).Header()).ok());
}

TEST(TreeWalkTest, AStateWhoseTreeCouldNotBeReadAgainIsInvalid) {
  State state;
  state.Add("a", DType::kU8, {4}, {}, 4096);
  const auto status = [&](const std::string& tree) {
    state.structure.tree = tree;
    return CheckRoot(state.structure);
  };
  for (const char* tree : {"", R"({"d":[1]})", R"( {"d":[["x","v"],1]} )", "1", " 1\n", R"({"z":1})"}) {
    EXPECT_TRUE(status(tree).ok()) << tree << status(tree);
  }
  for (const char* tree : {"{", "5", "\"v\"", R"({"d":[2]})", R"({"d":[1,["x",{"b":0}]]})", R"({"T":1,"py":{"l":[]}})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status(tree))) << tree << " " << status(tree);
  }
  state.structure.blob_count = 1;
  EXPECT_TRUE(status("{\"d\":[1,[\"x\",{\"b\":0}]]}").ok());
}

TEST(TreeWalkTest, ATreeIsReadWhateverElseTheHeaderSays) {
  const auto header = ParseJson(R"({"__metadata__":{"neve.tree":"{\"v\":1,\"root\":{\"d\":[9]}}"}})", 0);
  ASSERT_TRUE(header.ok());
  EXPECT_TRUE(IsDamaged(CheckTree(*header)));
}

TEST(TreeWalkTest, MutatedTreesAreReadOrRefused) {
  Image image = With(R"({"d":[1,["x",{"l":[1,"v",{"r":"a"}],"t":"tuple"}],["~i5",{"b":0,"q":"m.C"}],)"
                     R"(["s",{"o":"state","c":[{"d":[]}]}]]})", "i7;");
  image.Add("a", 4).Add("x.0", 4).Add("neve.blob.0", 16);
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr std::string_view kBytes = "{}[]\",:0123456789dltTrbovacq-. \\u~";
  for (int i = 0; i < 20'000; ++i) {
    Image bad = image;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) bad.tree[random() % bad.tree.size()] = kBytes[random() % kBytes.size()];
    const ImageHeader header = bad.Header();
    const auto tensors = LogicalTensors(header);
    if (!tensors.ok()) continue;
    Teller teller;
    EXPECT_EQ(WalkTree(header, *tensors, &teller).ok(), CheckTree(header).ok()) << bad.tree;
  }
}

}  // namespace
}  // namespace neve::format
