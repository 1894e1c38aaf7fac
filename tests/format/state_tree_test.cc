#include "format/state_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/format_fixtures.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;

std::vector<LogicalTensor> Named(std::initializer_list<const char*> names) {
  std::vector<LogicalTensor> tensors;
  for (const char* name : names) tensors.push_back({name, DType::kU8, {1}, {1}, name});
  return tensors;
}
ImageHeader HeaderWith(const std::string& root, const std::string& values) {
  ImageHeader header;
  header.metadata = {{"neve.format", "1"}, {"neve.values", values}, {"neve.tree", "{\"v\":1,\"root\":" + root + "}"}};
  return header;
}

TEST(StateTreeTest, WhatIsReadIsWrittenAgain) {
  const std::string root =
      R"({"d":[["step","v"],["model",{"a":{"d":[["m","v"]]},"d":[2,["p",{"T":1,"param":1,"py":"v"}]],"t":"O"}],)"
      R"(["l",{"l":[1,"v",{"r":"l.0"}],"t":"tuple"}],["b",{"b":0,"q":"a.B"}],["s",{"o":"coo","sh":[2],"c":[{"T":1},{"T":1}]}]]})";
  const std::string values = "i7;'x'tn";
  const auto tensors = Named({"model.w", "model.x", "model.p", "l.0", "s.indices", "s.values"});
  const auto tree = ReadStateTree(HeaderWith(root, values + "   "), tensors);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_FALSE(tree->flat);
  const TreeNode& model = tree->root.children[1];
  EXPECT_EQ(model.children[1].path, "model.x");
  EXPECT_EQ(model.children[1].index, 1u);
  EXPECT_EQ(tree->root.children[2].children[1].path, "l.1");
  const TreeText text = WriteStateTree(tree->root);
  EXPECT_EQ(text.root, root);
  EXPECT_EQ(text.values, values);
}

TEST(StateTreeTest, AFileWithoutATreeIsADictOfItsTensors) {
  const auto tree = ReadStateTree(ImageHeader{}, Named({"b.c", "~a"}));
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_TRUE(tree->flat);
  EXPECT_EQ(tree->root.children[1].key, "~a");
}

TEST(StateTreeTest, TreesThatDoNotFitTheirTensorsOrValuesAreDamaged) {
  const auto refused = [](const std::string& root, const std::string& values) {
    const auto tree = ReadStateTree(HeaderWith(root, values), Named({"a.w"}));
    EXPECT_TRUE(IsDamaged(tree.status())) << root;
    return Message(tree.status());
  };
  EXPECT_THAT(refused(R"({"d":[9]})", ""), HasSubstr("places for more tensors"));
  EXPECT_THAT(refused(R"({"d":[]})", ""), HasSubstr("no place for tensor \"a.w\""));
  EXPECT_THAT(refused(R"({"d":[["b",{"d":[1]}]]})", ""), HasSubstr("does not lie in"));
  EXPECT_THAT(refused(R"({"d":[1]})", "i7;"), HasSubstr("no place for the last values"));
  EXPECT_FALSE(refused(R"({"d":[["v","v"]]})", "").empty());
  EXPECT_FALSE(refused(R"({"d":[5.5]})", "").empty());
  EXPECT_FALSE(refused("[]", "").empty());
}

TEST(StateTreeTest, KeysComeBackFromTheirEscapes) {
  EXPECT_EQ(KeyOf("plain")->text, "plain");
  EXPECT_EQ(KeyOf("~~x")->text, "~x");
  EXPECT_EQ(KeyOf("~e")->text, "");
  EXPECT_EQ(KeyOf("~i-5")->kind, Value::Kind::kInteger);
  EXPECT_EQ(KeyOf("~t")->kind, Value::Kind::kBool);
  for (const char* wrong : {"~", "~q", "~i", "~j!", "~ix"}) EXPECT_FALSE(KeyOf(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace neve::format
