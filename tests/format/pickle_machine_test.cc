#include "format/pickle_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/pickle_text.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;
using std::string_literals::operator""s;

// Python's repr, roughly; circles are cut.
std::string Show(const PickleGraph& graph, PickleNode node, int depth = 0) {
  if (depth > 6) return "..";
  const auto items = [&](std::span<const PickleNode> nodes) {
    std::string text;
    for (const PickleNode item : nodes) text += (text.empty() ? "" : ",") + Show(graph, item, depth + 1);
    return text;
  };
  std::string digits;
  switch (graph.kind(node)) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kFalse:
      return "False";
    case PickleKind::kTrue:
      return "True";
    case PickleKind::kInteger:
      return std::to_string(graph.Integer(node));
    case PickleKind::kLong:
      TwosComplementToDecimal(graph.Bytes(node), &digits);
      return digits + "L";
    case PickleKind::kFloat:
      return std::to_string(graph.Float(node));
    case PickleKind::kText:
      return "'" + std::string(graph.Bytes(node)) + "'";
    case PickleKind::kBytes:
      return "b'" + std::string(graph.Bytes(node)) + "'";
    case PickleKind::kByteArray:
      return "ba'" + std::string(graph.Bytes(node)) + "'";
    case PickleKind::kTuple:
      return "(" + items(graph.Items(node)) + ")";
    case PickleKind::kList:
      return "[" + items(graph.Items(node)) + "]";
    case PickleKind::kSet:
      return "set(" + items(graph.Items(node)) + ")";
    case PickleKind::kFrozenSet:
      return "frozenset(" + items(graph.Items(node)) + ")";
    case PickleKind::kDict:
      return "{" + items(graph.Items(node)) + "}";
    case PickleKind::kGlobal:
      return "<" + graph.Global(node).FullName() + ">";
    case PickleKind::kPersistent:
      return "P" + Show(graph, graph.PersistentId(node), depth + 1);
    case PickleKind::kCall: {
      const PickleCall& call = graph.Call(node);
      std::string text =
          Show(graph, call.callable, depth + 1) + (call.constructs ? ".new" : "") + Show(graph, call.args, depth + 1);
      if (call.state != 0) text += "|" + Show(graph, call.state, depth + 1);
      if (!call.items.empty()) text += "+[" + items(call.items) + "]";
      if (!call.pairs.empty()) text += "+{" + items(call.pairs) + "}";
      return text;
    }
  }
  return "?";
}

std::string ShowPickle(std::string pickle, const PickleLimits& limits = {}) {
  const auto read = ReadPickle(std::move(pickle), "p", limits);
  return read.ok() ? Show(read->graph, read->graph.root()) : std::string(read.status().message());
}

TEST(PickleMachineTest, ContainersAndScalarsOfProtocolTwo) {
  EXPECT_EQ(ShowPickle("\x80\x02}q\x00(X\x01\x00\x00\x00"
                       "aK\x01X\x01\x00\x00\x00"
                       "b]q\x01(K\x02M\x00\x01J\xff\xff\xff\xff"
                       "e"
                       "X\x01\x00\x00\x00"
                       "cN\x88\x89\x87u."s),
            "{'a',1,'b',[2,256,-1],'c',(None,True,False)}");
}

TEST(PickleMachineTest, ProtocolZeroIsRead) {
  EXPECT_EQ(ShowPickle("(dp0\nVa\np1\nI1\nsS'b'\np2\n(lp3\nL12345678901234567890L\naF1.5\naI01\nas."),
            "{'a',1,'b',[12345678901234567890L,1.500000,True]}");
}

TEST(PickleMachineTest, ProtocolsFourAndFiveAreRead) {
  EXPECT_EQ(ShowPickle("\x80\x05\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8f\x94(\x8c\x01x\x94K\x05\x90\x8c\x01m\x8c\x01n\x93)\x81"
                       "\x96\x02\x00\x00\x00\x00\x00\x00\x00hi\x87."s),
            "(set('x',5),<m.n>.new(),ba'hi')");
}

TEST(PickleMachineTest, CallsAreNotedAndNotMade) {
  EXPECT_EQ(ShowPickle("\x80\x02"
                       "cos\nsystem\nX\x05\x00\x00\x00touchq\x00\x85R}X\x01\x00\x00\x00kK\x01sb."s),
            "<os.system>('touch')|{'k',1}");
}

TEST(PickleMachineTest, ObjectsOfOldProtocolsAreCalls) {
  EXPECT_EQ(ShowPickle("(I1\nI2\nim\nC\n."), "<m.C>.new(1,2)");
  EXPECT_EQ(ShowPickle("(cm\nC\nI1\no."), "<m.C>.new(1)");
}

TEST(PickleMachineTest, PersistentIdsAreKept) {
  EXPECT_EQ(ShowPickle("\x80\x02(X\x07\x00\x00\x00storageX\x01\x00\x00\x00"
                       "0tQ."s),
            "P('storage','0')");
}

TEST(PickleMachineTest, SharedAndCircularObjectsAreOneNode) {
  const auto read = ReadPickle(
      "\x80\x02]q\x00(h\x00h\x00"
      "e."s,
      "p");
  ASSERT_TRUE(read.ok());
  const auto items = read->graph.Items(read->graph.root());
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0], read->graph.root());
}

TEST(PickleMachineTest, WhatFollowsThePickleIsNotRead) {
  const auto source = MakeMemorySource("xxN.rest", "p");
  const auto read = ReadPickle(*source, 2, source->size());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->end, 4u);
}

TEST(PickleMachineTest, EveryPrefixIsDamaged) {
  const std::string pickle =
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aK\x01X\x01\x00\x00\x00"
      "bG\x3f\xf0\x00\x00\x00\x00\x00\x00u."s;
  for (size_t bytes = 0; bytes < pickle.size(); ++bytes) {
    EXPECT_TRUE(IsDamaged(ReadPickle(pickle.substr(0, bytes), "p").status())) << bytes;
  }
}

TEST(PickleMachineTest, FailuresNameTheByteAndTheOpcode) {
  EXPECT_THAT(ShowPickle("\x80\x02NR."s), HasSubstr("malformed at byte 3 (opcode 'R')"));
  EXPECT_THAT(ShowPickle("\xff."s), HasSubstr("opcode 0xff"));
}

TEST(PickleMachineTest, MisuseOfTheStackIsDamaged) {
  for (const std::string& pickle : {"."s, "0."s, "t."s, "u."s, "(u."s, "K\x01(NNu."s, "Na."s, "NNs."s,
                                    "(K\x01"
                                    "d."s,
                                    "h\x05."s, "NNR."s, "Nb."s, "]Nb."s, "(o."s, "NN\x93."s, "(0N(R."s, "\x85."s, "(N\x86."s}) {
    EXPECT_TRUE(IsDamaged(ReadPickle(pickle, "p").status())) << ShowPickle(pickle);
  }
}

TEST(PickleMachineTest, HugeClaimsAreRefusedBeforeAnythingIsAllocated) {
  EXPECT_THAT(ShowPickle("X\xff\xff\xff\x7fhello."s), HasSubstr("truncated: 2147483647 bytes wanted"));
  EXPECT_THAT(ShowPickle("\x8d\xff\xff\xff\xff\xff\xff\xff\xffhello."s), HasSubstr("truncated"));
  EXPECT_THAT(ShowPickle("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN."s), HasSubstr("truncated"));
}

TEST(PickleMachineTest, DeepNestingTakesNoStackOfOurs) {
  const auto read = ReadPickle(std::string(1'000'000, ']') + std::string(999'999, 'a') + ".", "p");
  EXPECT_TRUE(read.ok()) << read.status().message();
}

TEST(PickleMachineTest, MoreObjectsThanTheLimitAreRefused) {
  EXPECT_THAT(ShowPickle(std::string(1000, ']') + ".", {.nodes_max = 500}), HasSubstr("more than 500 objects"));
  EXPECT_THAT(ShowPickle("N" + std::string(1000, '2') + ".", {.nodes_max = 500}), HasSubstr("grows without end"));
}

TEST(PickleMachineTest, MemoPlacesOutOfOrderAreFound) {
  EXPECT_EQ(ShowPickle("K\x07r\xff\xff\xff\xff"
                       "K\x08q\x02K\x09q\x00"
                       "00j\xff\xff\xff\xffh\x02h\x00\x87."s),
            "(7,8,9)");
}

TEST(PickleMachineTest, WhatLiesOutsideIsUnsupported) {
  EXPECT_TRUE(absl::IsUnimplemented(ReadPickle("\x82\x01."s, "p").status()));
  EXPECT_TRUE(absl::IsUnimplemented(ReadPickle("\x97."s, "p").status()));
}

TEST(PickleTextTest, NumbersOfAnySizeGoBothWays) {
  for (const std::string digits : {"0", "1", "-1", "127", "-128", "255", "4294967296", "-4294967296",
                                   "123456789012345678901234567890", "-170141183460469231731687303715884105728"}) {
    std::string twos, back;
    ASSERT_TRUE(DecimalToTwosComplement(digits, &twos)) << digits;
    ASSERT_TRUE(TwosComplementToDecimal(twos, &back));
    EXPECT_EQ(back, digits);
  }
  std::string digits;
  EXPECT_TRUE(TwosComplementToDecimal("\x00\x80"s, &digits));
  EXPECT_EQ(digits, "-32768");
  EXPECT_FALSE(TwosComplementToDecimal(std::string(kLongBytesMax + 1, '\1'), &digits));
  EXPECT_EQ(TwosComplementToHex("\x00\x80"s), "-8000");
  EXPECT_EQ(TwosComplementToHex("\x00\x80\x00"s), "8000");
  EXPECT_EQ(TwosComplementToHex("\xff"s), "-1");
  EXPECT_EQ(TwosComplementToHex(""s), "0");
}

TEST(PickleTextTest, SurrogatesAreAllowedAndNothingElseThatIsWrong) {
  EXPECT_TRUE(
      IsUtf8WithSurrogates("a\xED\xA0\x80"
                           "b\xED\xBF\xBF"));
  EXPECT_TRUE(IsUtf8WithSurrogates("\xED\x95\x9C"));
  EXPECT_FALSE(IsUtf8WithSurrogates("\xED\xA0"));
  EXPECT_FALSE(IsUtf8WithSurrogates("\xED\xA0\x80\xFF"));
}

TEST(PickleTextTest, EscapedTextsAreDecoded) {
  std::string text;
  EXPECT_TRUE(DecodeQuoted(R"('it\'s\x41\n')", &text));
  EXPECT_EQ(text, "it'sA\n");
  text.clear();
  EXPECT_TRUE(DecodeRawUnicode("\\u20ac\xe9", &text));
  EXPECT_EQ(text, "\xe2\x82\xac\xc3\xa9");
  std::string bytes;
  EXPECT_TRUE(Latin1FromUtf8("\xc3\xbf\x00"s, &bytes));
  EXPECT_EQ(bytes, "\xff\x00"s);
  EXPECT_FALSE(Latin1FromUtf8("\xe2\x82\xac", &bytes));
}

}  // namespace
}  // namespace neve::format
