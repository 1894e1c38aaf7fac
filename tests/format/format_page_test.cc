// docs/format.md is part of the format: its worked example and its constants are compared with what the code does.
#include <array>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "format/commit_record.h"
#include "format/format_fixtures.h"
#include "format/tree_walk.h"
#include "format/values.h"

namespace neve::format {
namespace {

std::string Page() {
  // Not by __FILE__: the compiler cache makes that relative to the build folder.
  const std::string path = NEVE_SOURCE_DIR "/docs/format.md";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

// The fenced block of that kind.
std::string Block(const std::string& page, const std::string& kind) {
  const std::string fence = "```" + kind + "\n";
  const size_t begin = page.find(fence);
  if (begin == std::string::npos) return "";
  const size_t end = page.find("```", begin + fence.size());
  return page.substr(begin + fence.size(), end - begin - fence.size());
}

std::string HexDump(std::string_view bytes) {
  std::string out;
  std::string_view before;
  bool repeated = false;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    const std::string_view line = bytes.substr(at, 16);
    if (line == before) {
      if (!repeated) out += "*\n";
      repeated = true;
      continue;
    }
    repeated = false;
    before = line;
    out += absl::StrFormat("%08x ", at);
    for (size_t i = 0; i < 16; ++i) {
      if (i == 8) out += " ";
      out += i < line.size() ? absl::StrFormat(" %02x", static_cast<unsigned char>(line[i])) : "   ";
    }
    out += "  |";
    for (const char c : line) out += c >= 0x20 && c < 0x7f ? c : '.';
    out += "|\n";
  }
  return out + absl::StrFormat("%08x\n", bytes.size());
}

struct Example {
  std::shared_ptr<const Layout> layout;
  std::string image;

  Example() {
    alignas(16) static constexpr std::array<float, 4> kWeights = {1, 2, 3, 4};
    alignas(16) static constexpr std::array<uint16_t, 2> kBias = {0x3f80, 0x4000};
    const uint64_t weights = reinterpret_cast<uint64_t>(kWeights.data()), bias = reinterpret_cast<uint64_t>(kBias.data());
    State state;
    state.structure.tree = R"({"d":[["step","v"],["layer",{"d":[2]}],1]})";
    state.capacities.values_bytes = 32;
    state.Add("layer.w", DType::kF32, {2, 2}, {1, 2}, weights).Add("layer.b", DType::kBF16, {2}, {}, bias);
    layout = state.Add("tied", DType::kF32, {4}, {}, weights).Build();
    image = HeaderOf(*layout, "i7;");
    image.resize(layout->image_bytes());
    for (const StoredTensor& stored : layout->stored()) {
      const std::byte* source = static_cast<const std::byte*>(state.addresses[stored.index]);
      const tensor::StridedCopy copy(stored.contiguous ? tensor::Dims{static_cast<int64_t>(stored.bytes)} : stored.shape,
                                     stored.contiguous ? tensor::Dims{1} : stored.strides,
                                     stored.contiguous ? 1 : ItemBytes(state.structure.tensors[stored.index].dtype));
      copy.Gather(source, 0, stored.bytes, reinterpret_cast<std::byte*>(image.data() + stored.offset));
    }
  }
};

TEST(FormatPageTest, TheWorkedExampleIsWhatTheLayoutWrites) {
  const std::string dump = HexDump(Example().image);
  EXPECT_EQ(Block(Page(), "hexdump"), dump) << "docs/format.md should hold:\n" << dump;
}

TEST(FormatPageTest, TheRecordIsWhatTheEncoderWrites) {
  const Example example;
  CommitRecord record;
  record.job = "example";
  ASSERT_TRUE(Uid::FromHex("000102030405060708090a0b0c0d0e0f", &record.uid));
  record.key = {.save = {1, 1}, .step = 7, .rank = 0, .world = 1};
  record.time = 1'700'000'000;
  record.tags = {{"loss", 0.5}};
  record.layout_id = example.layout->id();
  record.image_bytes = example.image.size();
  record.header_bytes = example.layout->header_bytes();
  record.digests = {codec::DigestOf(std::as_bytes(std::span(example.image)))};
  record.provenance = {{"neve", "0.1.0"}};
  const std::string text = EncodeRecord(record) + "\n";
  EXPECT_EQ(Block(Page(), "record"), text) << "docs/format.md should hold:\n" << text;
}

TEST(FormatPageTest, TheExampleIsReadBack) {
  const Example example;
  const auto header = ParseImageHeader(example.image, example.image.size());
  ASSERT_TRUE(header.ok()) << header.status();
  const auto tensors = LogicalTensors(*header);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_TRUE((*tensors)[0].alias);
  EXPECT_EQ((*tensors)[0].stored, "tied");
}

TEST(FormatPageTest, ThePieceIsWhatTheLayoutWrites) {
  const auto layout = State().Add("w", DType::kF32, {4, 3}, {}, 0x1000).AsPiece({8, 3}, {4, 0}).Build();
  const std::string entry = R"("w":{"dtype":"F32","shape":[4,3],"data_offsets":[0,48]})", part = R"("piece":{"w":[[8,3],[4,0]]})";
  EXPECT_NE(HeaderOf(*layout).find(entry), std::string::npos);
  EXPECT_NE(Parsed(*layout).FindMetadata("neve.tree")->find(part), std::string::npos);
  const std::string page = Page();
  EXPECT_NE(page.find(entry), std::string::npos);
  EXPECT_NE(page.find(part), std::string::npos);
}

TEST(FormatPageTest, TheConstantsAreThoseOfTheCode) {
  const std::string page = Page();
  for (const auto& [name, value] : std::vector<std::pair<std::string, uint64_t>>{{"kPageBytes", kPageBytes},
                                                                                 {"kHeaderBytesMax", kHeaderBytesMax},
                                                                                 {"kValuesBytesMin", kValuesBytesMin},
                                                                                 {"kBlobPrefixBytes", kBlobPrefixBytes},
                                                                                 {"kValuesDepthMax", kValuesDepthMax},
                                                                                 {"kDecimalDigitsMax", kDecimalDigitsMax},
                                                                                 {"kSpanBytesMax", kSpanBytesMax},
                                                                                 {"kTreeNamesBytesMax", kTreeNamesBytesMax},
                                                                                 {"kDefaultChunkBytes", kDefaultChunkBytes},
                                                                                 {"kChunkBytesMin", kChunkBytesMin},
                                                                                 {"kChunkBytesMax", kChunkBytesMax},
                                                                                 {"kRecordBytesMax", kRecordBytesMax},
                                                                                 {"kStepLimit", kStepLimit}}) {
    EXPECT_NE(page.find("| " + name + " | " + std::to_string(value) + " |"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace neve::format
