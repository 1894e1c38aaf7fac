#include "format/layout.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/format_fixtures.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;

TEST(LayoutTest, DataBeginsAtAPageAndTheFirstTensorToo) {
  const auto layout = State().Add("w", DType::kF32, {3, 5}, {}, 0x10000).Build();
  EXPECT_EQ(layout->header_bytes() % 4096, 0u);
  EXPECT_EQ(layout->image_bytes(), layout->header_bytes() + 60);
  ASSERT_EQ(layout->stored().size(), 1u);
  EXPECT_EQ(layout->stored()[0].offset, layout->header_bytes());
}

TEST(LayoutTest, ST_08_AStateWithoutTensorsIsAHeaderAndNothingElse) {
  State state;
  state.structure.metadata = {{"k", "v"}};
  const auto layout = state.Build();
  EXPECT_EQ(layout->image_bytes(), layout->header_bytes());
  const ImageHeader header = Parsed(*layout);
  EXPECT_TRUE(header.tensors.empty());
  ASSERT_NE(header.FindMetadata("k"), nullptr);
  EXPECT_EQ(*header.FindMetadata("k"), "v");
}

TEST(LayoutTest, MetadataStandsFirstInItsFixedOrder) {
  State state;
  state.structure.metadata = {{"zebra", "1"}, {"author", "2"}};
  const std::string header = HeaderOf(*state.Add("a", DType::kU8, {1}, {}, 0x1000).Build());
  EXPECT_EQ(header.substr(8, 16), R"({"__metadata__":)");
  const ImageHeader parsed = *ParseImageHeader(header, header.size() + 1);
  std::vector<std::string> keys;
  for (const auto& [key, value] : parsed.metadata) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"neve.format", "neve.values", "neve.tree", "zebra", "author"}));
}

TEST(LayoutTest, HeaderEntriesStandInTreeOrder) {
  const auto layout = State()
                          .Add("z", DType::kU8, {3}, {}, 0x1000)
                          .Add("a", DType::kF64, {3}, {}, 0x2000)
                          .Add("m", DType::kF32, {1024}, {}, 0x3000)
                          .Build();
  const ImageHeader header = Parsed(*layout);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "z");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[2].name, "m");
}

TEST(LayoutTest, ST_13_WholePagesFirstThenByAlignmentThenByName) {
  const auto layout = State()
                          .Add("half", DType::kF16, {3}, {}, 0x1000)
                          .Add("byte", DType::kU8, {5}, {}, 0x2000)
                          .Add("double.b", DType::kF64, {1}, {}, 0x3000)
                          .Add("double.a", DType::kF64, {1}, {}, 0x4000)
                          .Add("page", DType::kU8, {4096}, {}, 0x5000)
                          .Add("complex", DType::kC128, {1}, {}, 0x7000)
                          .Build();
  std::vector<std::string> names;
  uint64_t end = layout->header_bytes();
  for (const StoredTensor& stored : layout->stored()) {
    const TensorSpec& spec = layout->structure().tensors[stored.index];
    names.push_back(spec.name);
    EXPECT_EQ(stored.offset, end) << "a hole or an overlap";
    EXPECT_EQ(stored.offset % ItemBytes(spec.dtype), 0u) << spec.name;
    end += stored.bytes;
  }
  EXPECT_EQ(end, layout->image_bytes());
  EXPECT_EQ(names, (std::vector<std::string>{"page", "complex", "double.a", "double.b", "half", "byte"}));
}

TEST(LayoutTest, HeadersOfTwoSavesDifferInTheValuesOnly) {
  const auto layout = State().Add("w", DType::kF32, {2}, {}, 0x1000).Build();
  const std::string a = HeaderOf(*layout, "i1;"), b = HeaderOf(*layout, "i1000;d0x1p+0;"), c = HeaderOf(*layout, "i1;");
  EXPECT_EQ(a, c);
  const size_t begin = a.find("i1;");
  for (size_t i = 0; i < a.size(); ++i) {
    const bool in_values = i >= begin && i < begin + 64;
    ASSERT_TRUE(in_values || a[i] == b[i]) << i;
  }
  EXPECT_EQ(*ParseImageHeader(b, layout->image_bytes())->FindMetadata("neve.values"),
            "i1000;d0x1p+0;" + std::string(64 - 14, ' '));
}

TEST(LayoutTest, OneStructureHasOneHeaderAndOneId) {
  const auto make = [](uint64_t base) {
    return State().Add("w", DType::kF32, {2}, {}, base).Add("v", DType::kF32, {2}, {}, base + 64).Build();
  };
  const auto a = make(0x1000), b = make(0x777000);
  EXPECT_EQ(HeaderOf(*a), HeaderOf(*b));
  EXPECT_EQ(a->id(), b->id());
  EXPECT_NE(a->id(), State().Add("w", DType::kF32, {2}, {}, 0x1000).Build()->id());
}

TEST(LayoutTest, ValuesThatDoNotFitOrNeedAnEscapeAreRefused) {
  const auto layout = State().Build();
  std::vector<std::byte> header(layout->header_bytes());
  EXPECT_TRUE(layout->WriteHeader(std::string(64, 'n'), header).ok());
  EXPECT_THAT(Message(layout->WriteHeader(std::string(65, 'n'), header)), HasSubstr("65 bytes"));
  for (const char* bad : {"\"", "\\", "\n", "\x7f"}) {
    EXPECT_EQ(layout->WriteHeader(bad, header).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(layout->WriteHeader("", std::span(header).first(100)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(LayoutTest, PT_25_StridedTensorsAreStoredInLogicalOrderWithTheirStrides) {
  const auto layout = State()
                          .Add("conv", DType::kF32, {4, 3, 3, 3}, {27, 1, 9, 3}, 0x10000)
                          .Add("columns", DType::kF32, {3, 2}, {10, 1}, 0x20000)
                          .Build();
  const ImageHeader header = Parsed(*layout);
  EXPECT_EQ(header.Find("conv")->shape, (tensor::Dims{4, 3, 3, 3}));
  EXPECT_EQ(header.Find("conv")->bytes, 108u * 4);
  EXPECT_EQ(header.Find("columns")->bytes, 24u);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_EQ(logical[0].strides, (tensor::Dims{27, 1, 9, 3}));
  EXPECT_EQ(logical[1].strides, (tensor::Dims{10, 1}));
  for (const StoredTensor& stored : layout->stored()) {
    EXPECT_FALSE(stored.contiguous);
    EXPECT_EQ(stored.strides, layout->structure().tensors[stored.index].strides);
  }
}

TEST(LayoutTest, PT_25_AnExpandedViewCostsOnlyWhatItTouches) {
  const auto layout = State()
                          .Add("one", DType::kF32, {1000, 1000}, {0, 0}, 0x10000)
                          .Add("rows", DType::kF32, {5, 3, 2}, {2, 0, 1}, 0x20000)
                          .Build();
  const ImageHeader header = Parsed(*layout);
  EXPECT_EQ(header.Find("one")->shape, (tensor::Dims{1, 1}));
  EXPECT_EQ(header.Find("one")->bytes, 4u);
  EXPECT_EQ(header.Find("rows")->shape, (tensor::Dims{5, 1, 2}));
  for (const StoredTensor& stored : layout->stored()) EXPECT_TRUE(stored.contiguous);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_EQ(logical[0].shape, (tensor::Dims{1000, 1000}));
  EXPECT_EQ(logical[1].strides, (tensor::Dims{2, 0, 1}));
}

TEST(LayoutTest, AnExpandedViewOfGapsIsGatheredWithoutTheExpandedDimension) {
  const auto layout = State().Add("x", DType::kF32, {4, 3}, {0, 5}, 0x1000).Build();
  const StoredTensor& stored = layout->stored()[0];
  EXPECT_FALSE(stored.contiguous);
  EXPECT_EQ(stored.shape, (tensor::Dims{3}));
  EXPECT_EQ(stored.strides, (tensor::Dims{5}));
  EXPECT_EQ(stored.bytes, 12u);
}

TEST(LayoutTest, AnOverlappingViewIsAnAliasOfAHiddenBase) {
  const auto layout = State().Add("windows", DType::kF32, {8, 3}, {1, 1}, 0x1000).Build();
  const ImageHeader header = Parsed(*layout);
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "neve.base.0");
  EXPECT_EQ(header.tensors[0].shape, (tensor::Dims{40}));
  const StoredTensor& stored = layout->stored()[0];
  EXPECT_EQ(stored.source, StoredTensor::Source::kBase);
  EXPECT_EQ(stored.address_delta, 0);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  ASSERT_EQ(logical.size(), 1u);
  EXPECT_TRUE(logical[0].alias);
  EXPECT_EQ(logical[0].strides, (tensor::Dims{1, 1}));
}

TEST(LayoutTest, ST_10_EmptyAndScalarTensorsKeepTheirShapes) {
  const auto layout = State()
                          .Add("a", DType::kF32, {0}, {}, 0)
                          .Add("b", DType::kF32, {2, 0}, {0, 0}, 0)
                          .Add("c", DType::kF32, {0, 3}, {7, 0}, 0x1000)
                          .Add("d", DType::kF32, {}, {}, 0x1000)
                          .Add("e", DType::kC128, {0}, {}, 0x1000)
                          .Build();
  const std::vector<LogicalTensor> logical = Logical(*layout);
  ASSERT_EQ(logical.size(), 5u);
  EXPECT_EQ(logical[0].shape, (tensor::Dims{0}));
  EXPECT_EQ(logical[1].shape, (tensor::Dims{2, 0}));
  EXPECT_EQ(logical[2].shape, (tensor::Dims{0, 3}));
  EXPECT_EQ(logical[3].shape, (tensor::Dims{}));
  EXPECT_EQ(logical[4].shape, (tensor::Dims{0}));
  for (const LogicalTensor& tensor : logical) EXPECT_FALSE(tensor.alias) << tensor.name;
  EXPECT_EQ(layout->image_bytes(), layout->header_bytes() + 4);
}

TEST(LayoutTest, PT_05_TypesWithoutASafetensorsNameAreBytesWithOneMoreDimension) {
  for (const DType dtype : {DType::kC128, DType::kC32, DType::kBits8, DType::kBits16, DType::kQI8, DType::kQU8, DType::kQI32}) {
    const auto layout = State().Add("x", dtype, {2, 3}, {1, 2}, 0x1000).Build();
    const ImageHeader header = Parsed(*layout);
    EXPECT_EQ(header.tensors[0].dtype, DType::kU8);
    EXPECT_EQ(header.tensors[0].shape, (tensor::Dims{2, 3, static_cast<int64_t>(ItemBytes(dtype))}));
    const std::vector<LogicalTensor> logical = Logical(*layout);
    EXPECT_EQ(logical[0].dtype, dtype);
    EXPECT_EQ(logical[0].shape, (tensor::Dims{2, 3}));
    EXPECT_EQ(logical[0].strides, (tensor::Dims{1, 2}));
  }
}

TEST(LayoutTest, EveryTypeOfSafetensorsKeepsItsName) {
  for (int value = 1; value <= static_cast<int>(DType::kQI32); ++value) {
    const DType dtype = static_cast<DType>(value);
    if (!HasSafetensorsName(dtype)) continue;
    const auto layout = State().Add("x", dtype, {2, 3}, {}, 0x1000).Build();
    EXPECT_EQ(Parsed(*layout).tensors[0].dtype, dtype);
    const std::vector<LogicalTensor> logical = Logical(*layout);
    EXPECT_EQ(logical[0].dtype, dtype);
    EXPECT_EQ(logical[0].shape, (tensor::Dims{2, 3}));
  }
}

TEST(LayoutTest, ST_12_F4CountsValuesInTheHeaderAndPairsOutside) {
  const auto layout = State().Add("x", DType::kF4E2M1x2, {2, 4}, {}, 0x1000).Add("s", DType::kF4E2M1x2, {}, {}, 0x2000).Build();
  const ImageHeader header = Parsed(*layout);
  EXPECT_EQ(header.Find("x")->shape, (tensor::Dims{2, 8}));
  EXPECT_EQ(header.Find("x")->bytes, 8u);
  const std::vector<LogicalTensor> logical = Logical(*layout);
  EXPECT_EQ(logical[0].shape, (tensor::Dims{2, 4}));
  EXPECT_EQ(logical[1].shape, (tensor::Dims{}));
}

TEST(LayoutTest, BlobsStandAfterTheTensorsWithRoomForTheirLength) {
  State state;
  state.structure.blob_count = 2;
  state.capacities.blob_bytes = {5000, 4096};
  const auto layout = state.Add("w", DType::kU8, {1}, {}, 0x1000).Build();
  const ImageHeader header = Parsed(*layout);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[1].name, "neve.blob.0");
  EXPECT_EQ(header.tensors[1].bytes, 5008u);
  EXPECT_EQ(header.tensors[2].bytes, 4104u);
  EXPECT_EQ(Logical(*layout).size(), 1u);
}

TEST(LayoutTest, CapacitiesGrowToTwiceTheNeedAndNeverShrink) {
  const Capacities first = GrowCapacities({}, 10, std::vector<uint64_t>{5000});
  EXPECT_EQ(first.values_bytes, 4096u);
  EXPECT_EQ(first.blob_bytes, (std::vector<uint64_t>{10000}));
  const Capacities same = GrowCapacities(first, 4096, std::vector<uint64_t>{1});
  EXPECT_EQ(same.values_bytes, 4096u);
  EXPECT_EQ(same.blob_bytes, (std::vector<uint64_t>{10000}));
  const Capacities grown = GrowCapacities(same, 4097, std::vector<uint64_t>{10001, 1});
  EXPECT_EQ(grown.values_bytes, 8194u);
  EXPECT_EQ(grown.blob_bytes, (std::vector<uint64_t>{20002, 4096}));
}

TEST(LayoutTest, TheTreeIsKeptAsGiven) {
  State state;
  state.structure.tree = R"({"d":[1,["k\"ey","v"]]})";
  const auto layout = state.Add("a", DType::kU8, {1}, {}, 0x1000).Build();
  EXPECT_EQ(*Parsed(*layout).FindMetadata("neve.tree"), R"({"v":1,"root":{"d":[1,["k\"ey","v"]]}})");
}

TEST(LayoutTest, ST_09_OddNamesAreKeptByteForByte) {
  const std::vector<std::string> names = {"a", std::string("a\0b", 3), "", "..", "new\nline", "quote\"\\", "h\u00e9llo \u96ea",
                                          std::string(1'000'000, 'x')};
  State state;
  uint64_t address = 0x1000;
  for (const std::string& name : names) state.Add(name, DType::kU8, {1}, {}, address += 64);
  const ImageHeader header = Parsed(*state.Build());
  ASSERT_EQ(header.tensors.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(header.tensors[i].name, names[i]);
}

// ---- refusals ----

absl::Status Refusal(const State& state) {
  const auto layout = state.TryBuild();
  EXPECT_FALSE(layout.ok());
  return layout.status();
}

TEST(LayoutTest, RepeatedNamesAreRefusedWithBothTensors) {
  const absl::Status status =
      Refusal(State().Add("a", DType::kU8, {1}, {}, 1).Add("b", DType::kU8, {1}, {}, 2).Add("a", DType::kU8, {1}, {}, 3));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("\"a\" is given to tensor 0 and to tensor 2"));
}

TEST(LayoutTest, ReservedNamesAreRefused) {
  for (const char* name : {"__metadata__", "neve.blob.0", "neve.base.7", "neve.blob.123456789012345678901"}) {
    EXPECT_THAT(Message(Refusal(State().Add(name, DType::kU8, {1}, {}, 1))), HasSubstr("reserved")) << name;
  }
}

TEST(LayoutTest, OnlyNumberedNamesAreReserved) {
  for (const char* name : {"neve.blob.0~#2", "neve.blob.", "neve.base.x", "neve.base.1.w", "neve.blob"}) {
    EXPECT_TRUE(State().Add(name, DType::kU8, {1}, {}, 1).Build() != nullptr) << name;
    EXPECT_FALSE(IsHiddenName(name)) << name;
  }
}

TEST(LayoutTest, NamesThatAreNotUtf8AreRefused) {
  EXPECT_THAT(Message(Refusal(State().Add("a\xff", DType::kU8, {1}, {}, 1))), HasSubstr("UTF-8"));
}

TEST(LayoutTest, BadShapesStridesTypesAndAddressesAreRefusedByName) {
  const auto message = [](DType dtype, tensor::Dims shape, tensor::Dims strides, uint64_t address) {
    const absl::Status status = Refusal(State().Add("bad.one", dtype, std::move(shape), std::move(strides), address));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr("bad.one"));
    return Message(status);
  };
  EXPECT_THAT(message(DType::kU8, {-1}, {1}, 1), HasSubstr("negative"));
  EXPECT_THAT(message(DType::kU8, {2}, {-1}, 1), HasSubstr("negative"));
  EXPECT_THAT(message(DType::kU8, {2, 2}, {1}, 1), HasSubstr("2 extents but 1 strides"));
  EXPECT_THAT(message(DType::kF64, {int64_t{1} << 61}, {1}, 1), HasSubstr("overflow"));
  EXPECT_THAT(message(static_cast<DType>(99), {1}, {1}, 1), HasSubstr("unknown dtype 99"));
  EXPECT_THAT(message(DType::kU8, {1}, {1}, 0), HasSubstr("no memory"));
  EXPECT_THAT(message(DType::kU8, {100}, {1}, UINT64_MAX - 50), HasSubstr("wraps"));
}

TEST(LayoutTest, CountsThatDoNotMatchAreRefused) {
  State state;
  state.Add("a", DType::kU8, {1}, {}, 1).addresses.push_back(nullptr);
  EXPECT_THAT(Message(Refusal(state)), HasSubstr("2 addresses for 1 tensors"));
  State blobs;
  blobs.structure.blob_count = 1;
  EXPECT_THAT(Message(Refusal(blobs)), HasSubstr("1 blobs"));
}

TEST(LayoutTest, ATreeThatIsNotJsonIsRefused) {
  State state;
  state.structure.tree = "{\"d\":[";
  EXPECT_THAT(Message(Refusal(state)), HasSubstr("not JSON"));
}

TEST(LayoutTest, ReservedRepeatedAndBrokenMetadataIsRefused) {
  State state;
  state.structure.metadata = {{"neve.x", ""}};
  EXPECT_THAT(Message(Refusal(state)), HasSubstr("reserved"));
  state.structure.metadata = {{"x", ""}, {"x", "1"}};
  EXPECT_THAT(Message(Refusal(state)), HasSubstr("twice"));
  state.structure.metadata = {{"x", "\xc3"}};
  EXPECT_THAT(Message(Refusal(state)), HasSubstr("UTF-8"));
}

TEST(LayoutTest, ST_16_AHeaderOverTheLimitIsRefusedByNumber) {
  State state;
  state.structure.tensors.reserve(1'200'000);
  for (uint64_t i = 0; i < 1'200'000; ++i) {
    std::string name = std::to_string(i);
    name.insert(0, 60 - name.size(), 'n');
    state.Add(std::move(name), DType::kU8, {1}, {}, 0x1000 + 64 * i);
  }
  const absl::Status status = Refusal(state);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("100000000"));
  EXPECT_THAT(Message(status), HasSubstr("1200000 tensors"));
}

TEST(LayoutTest, ST_16_AValuesCapacityOverTheLimitIsRefusedBeforeItIsMade) {
  State state;
  state.capacities.values_bytes = uint64_t{1} << 50;
  EXPECT_EQ(Refusal(state).code(), absl::StatusCode::kResourceExhausted);
}

TEST(LayoutTest, RandomStatesComeBackAsTheyWere) {
  constexpr uint64_t kSeed = 4711;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 100; ++round) {
    State state;
    const size_t count = random() % 40;
    for (size_t i = 0; i < count; ++i) {
      tensor::Dims shape(random() % 4), strides(shape.size());
      for (int64_t& extent : shape) extent = static_cast<int64_t>(random() % 5);
      int64_t stride = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        strides[d] = random() % 5 == 0 ? 0 : stride;
        stride = stride * std::max<int64_t>(shape[d], 1) + static_cast<int64_t>(random() % 8 == 0);
      }
      if (random() % 3 == 0) std::reverse(strides.begin(), strides.end());
      // Few places, so that many share memory.
      state.Add("t" + std::to_string(random()), static_cast<DType>(1 + random() % 27), shape, strides,
                0x1000 + 16 * (random() % 64));
    }
    const auto layout = state.Build();
    ASSERT_NE(layout, nullptr);
    const std::vector<LogicalTensor> logical = Logical(*layout);
    ASSERT_EQ(logical.size(), count);
    for (size_t i = 0; i < count; ++i) {
      const TensorSpec& spec = state.structure.tensors[i];
      EXPECT_EQ(logical[i].name, spec.name);
      EXPECT_EQ(logical[i].dtype, spec.dtype);
      EXPECT_EQ(logical[i].shape, spec.shape);
      if (!logical[i].alias && *tensor::Classify(spec.shape, spec.strides) == tensor::Density::kContiguous) continue;
      EXPECT_EQ(logical[i].strides, spec.strides);
    }
  }
}

// ---- pieces ----

TEST(LayoutTest, DCP_06_PiecesComeBackWithTheirPlaceInTheLogicalTensor) {
  const auto layout = State()
                          .Add("w", DType::kF32, {4, 3}, {}, 0x1000)
                          .AsPiece({8, 3}, {4, 0})
                          .Add("w~#2", DType::kF32, {1, 3}, {}, 0x2000)
                          .AsPiece({8, 3}, {2, 0}, "w")
                          .Add("none", DType::kC128, {0, 3}, {}, 0)
                          .AsPiece({2, 3}, {2, 0})
                          .Add("scalar", DType::kF64, {}, {}, 0x3000)
                          .AsPiece({}, {})
                          .Add("plain", DType::kF32, {2}, {}, 0x4000)
                          .Build();
  const std::vector<LogicalTensor> logical = Logical(*layout);
  ASSERT_EQ(logical.size(), 5u);
  ASSERT_NE(logical[0].piece, nullptr);
  EXPECT_EQ(logical[0].shape, (tensor::Dims{4, 3}));
  EXPECT_EQ(logical[0].piece->global_shape, (tensor::Dims{8, 3}));
  EXPECT_EQ(logical[0].piece->offset, (tensor::Dims{4, 0}));
  EXPECT_EQ(logical[0].logical_name(), "w");
  EXPECT_EQ(logical[1].logical_name(), "w");
  EXPECT_EQ(logical[1].name, "w~#2");
  ASSERT_NE(logical[2].piece, nullptr);
  EXPECT_EQ(logical[2].dtype, DType::kC128);
  EXPECT_EQ(logical[2].shape, (tensor::Dims{0, 3}));
  ASSERT_NE(logical[3].piece, nullptr);
  EXPECT_EQ(logical[4].piece, nullptr);
  EXPECT_EQ(logical[4].logical_name(), "plain");
}

TEST(LayoutTest, PiecesAreStoredOnTheirOwnWhateverMemoryTheyShare) {
  const auto layout = State()
                          .Add("embed", DType::kF32, {4, 3}, {}, 0x1000)
                          .AsPiece({8, 3}, {0, 0})
                          .Add("head", DType::kF32, {4, 3}, {}, 0x1000)
                          .AsPiece({8, 3}, {0, 0})
                          .Add("view", DType::kF32, {3}, {}, 0x1000)
                          .Build();
  for (const LogicalTensor& tensor : Logical(*layout)) EXPECT_FALSE(tensor.alias) << tensor.name;
  EXPECT_EQ(layout->image_bytes() - layout->header_bytes(), 48u + 48u + 12u);
}

TEST(LayoutTest, PiecesThatDoNotLieInTheirLogicalTensorAreRefused) {
  const auto refused = [](State state) {
    const auto layout = state.TryBuild();
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument) << layout.status();
    return Message(layout.status());
  };
  const auto box = [] { return State().Add("w", DType::kF32, {4, 3}, {}, 0x1000); };
  EXPECT_THAT(refused(box().AsPiece({8, 3}, {5, 0})), HasSubstr("\"w\": the piece [5:9, 0:3] does not lie in its global shape"));
  EXPECT_THAT(refused(box().AsPiece({8, 3}, {-1, 0})), HasSubstr("does not lie"));
  EXPECT_THAT(refused(box().AsPiece({8, 2}, {0, 0})), HasSubstr("dimension 1"));
  EXPECT_THAT(refused(box().AsPiece({8}, {0})), HasSubstr("2 dimensions"));
  EXPECT_THAT(refused(box().AsPiece({int64_t{1} << 40, int64_t{1} << 40}, {0, 0})), HasSubstr("overflow"));
  EXPECT_THAT(refused(box().AsPiece({int64_t{1} << 40, int64_t{1} << 22}, {0, 0})), HasSubstr("overflow"));
  EXPECT_THAT(refused(box().AsPiece({8, 3}, {0, 0}, "neve.blob.0")), HasSubstr("reserved"));
  EXPECT_THAT(refused(box().AsPiece({8, 3}, {0, 0}, "\xff")), HasSubstr("UTF-8"));
  EXPECT_THAT(refused(State().Add("w", DType::kF32, {4, 3}, {1, 1}, 0x1000).AsPiece({8, 3}, {0, 0})), HasSubstr("share memory"));
}

}  // namespace
}  // namespace neve::format
