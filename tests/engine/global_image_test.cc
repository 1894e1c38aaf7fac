// Every layout into every other: states cut by random meshes, saved as one file a rank, read as one image and cut again.
#include "engine/global_image.h"

#include <fcntl.h>

#include <array>
#include <filesystem>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "engine/engine_fixture.h"
#include "restore/memory_source.h"

namespace neve {
namespace {

using ::testing::HasSubstr;
using tensor::Dims;

struct Cut {
  Dims offset, extent;
};

// A mesh and, for each of its dimensions, the tensor's dimension that it cuts; negative: replicated.
struct Layout {
  std::vector<int64_t> mesh;
  std::vector<int> placements;
  int64_t ranks() const {
    int64_t count = 1;
    for (const int64_t parts : mesh) count *= parts;
    return count;
  }
  // As torch.chunk cuts, one dimension of the mesh after the other.
  Cut Of(const Dims& shape, int64_t rank) const {
    Cut cut{Dims(shape.size(), 0), shape};
    int64_t below = ranks();
    for (size_t i = 0; i < mesh.size(); ++i) {
      below /= mesh[i];
      const int64_t at = rank / below % mesh[i];
      if (placements[i] < 0 || placements[i] >= static_cast<int>(shape.size())) continue;
      const auto dimension = static_cast<size_t>(placements[i]);
      const int64_t all = cut.extent[dimension], chunk = (all + mesh[i] - 1) / mesh[i];
      const int64_t begin = std::min(all, chunk * at);
      cut.offset[dimension] += begin;
      cut.extent[dimension] = std::min(chunk, all - begin);
    }
    return cut;
  }
};

// A logical tensor whose bytes are told by its number and theirs.
struct Logical {
  Dims shape;
  DType dtype = DType::kF32;
  uint64_t number = 0;
  std::byte At(uint64_t byte) const { return static_cast<std::byte>((number * 0x9e3779b97f4a7c15u + byte * 0x85ebca6bu) >> 13); }
  // The elements of a box, row-major.
  std::vector<std::byte> Box(const Cut& cut) const {
    const uint64_t item = ItemBytes(dtype);
    const Dims strides = tensor::ContiguousStrides(shape);
    std::vector<std::byte> bytes;
    if (tensor::IsEmptyBox(cut.extent)) return bytes;
    Dims at(shape.size(), 0);
    for (bool more = true; more;) {
      uint64_t element = 0;
      for (size_t i = 0; i < shape.size(); ++i) element += static_cast<uint64_t>((cut.offset[i] + at[i]) * strides[i]);
      for (uint64_t b = 0; b < item; ++b) bytes.push_back(At(element * item + b));
      more = false;
      for (size_t i = shape.size(); i-- > 0 && !more;) {
        more = ++at[i] < cut.extent[i];
        if (!more) at[i] = 0;
      }
    }
    return bytes;
  }
};

class GlobalImageTest : public EngineTest {
 protected:
  std::string PathOf(int64_t rank) const { return absl::StrFormat("%s/rank%d.safetensors", folder_, rank); }

  // Each rank's boxes of the tensors as one file.
  void Save(const Layout& layout, const std::vector<Logical>& tensors) {
    for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<std::string> names;
      std::vector<std::vector<std::byte>> data;
      std::vector<DType> dtypes;
      std::vector<uint8_t> dims, pieces(tensors.size(), 1);
      Dims extents, global, offsets;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const Cut cut = layout.Of(tensors[i].shape, rank);
        names.push_back(absl::StrFormat("t%d", i));
        data.push_back(tensors[i].Box(cut));
        dtypes.push_back(tensors[i].dtype);
        dims.push_back(static_cast<uint8_t>(cut.extent.size()));
        extents.insert(extents.end(), cut.extent.begin(), cut.extent.end());
        global.insert(global.end(), tensors[i].shape.begin(), tensors[i].shape.end());
        offsets.insert(offsets.end(), cut.offset.begin(), cut.offset.end());
      }
      const std::vector<std::string_view> views(names.begin(), names.end());
      std::vector<const void*> addresses;
      for (const auto& bytes : data) addresses.push_back(bytes.data());
      const auto state = DescribeState({views, dtypes, dims, extents, {}, pieces, global, offsets, {}}, "", 0);
      ASSERT_TRUE(state.ok()) << state.status();
      ASSERT_EQ(SaveFile(PathOf(rank), *state, addresses, "", {}), absl::OkStatus());
    }
  }

  absl::StatusOr<std::unique_ptr<OpenedImage>> Merge(int64_t ranks) {
    std::vector<std::unique_ptr<RankFile>> images;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Image> image, OpenImageFile(PathOf(rank)));
      images.emplace_back(dynamic_cast<RankFile*>(image.release()));
    }
    return engine::MergeImages(std::move(images), {}, {}, 0);
  }

  // All boxes of one rank of another layout, in one read; every second one transposed.
  static void ExpectBoxes(const ImageTensors& table, const Layout& layout, int64_t rank, const std::vector<Logical>& tensors) {
    std::vector<Cut> cuts;
    std::vector<std::vector<std::byte>> got;
    std::vector<Dims> strides;
    std::vector<BoxTarget> targets;
    for (const Logical& logical : tensors) {
      cuts.push_back(layout.Of(logical.shape, rank));
      got.emplace_back(*tensor::ElementCount(cuts.back().extent) * ItemBytes(logical.dtype));
      Dims reversed(cuts.back().extent.rbegin(), cuts.back().extent.rend());
      strides.push_back(tensor::ContiguousStrides(reversed));
      std::reverse(strides.back().begin(), strides.back().end());
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      targets.push_back({*table.Find(absl::StrFormat("t%d", i)), cuts[i].offset.data(), cuts[i].extent.data(), got[i].data(),
                         i % 2 == 0 ? nullptr : strides[i].data()});
    }
    std::vector<uint8_t> written(targets.size());
    const absl::Status status = table.ReadBoxes(targets, written);
    ASSERT_EQ(status, absl::OkStatus());
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<std::byte> rows = got[i];
      if (i % 2 == 1 && !got[i].empty()) {
        const tensor::StridedCopy copy(cuts[i].extent, strides[i], ItemBytes(tensors[i].dtype));
        copy.Gather(got[i].data(), 0, got[i].size(), rows.data());
      }
      ASSERT_EQ(rows, tensors[i].Box(cuts[i])) << "tensor " << i << " rank " << rank;
      ASSERT_EQ(written[i], got[i].empty() ? 0 : 1);
    }
  }

  // The whole tensors, as any reader of an image gets them: by ranges of bytes.
  static void ExpectWhole(Image* image, const std::vector<Logical>& tensors) {
    const auto header = format::ParseImageHeader(image->header(), image->image_bytes());
    ASSERT_TRUE(header.ok()) << header.status();
    std::vector<std::byte> all(image->image_bytes());
    const std::vector<ReadRange> ranges = {{.offset = 0, .bytes = all.size() / 3, .target = all.data()},
                                           {.offset = all.size() / 3, .bytes = all.size() - all.size() / 3,
                                            .target = all.data() + all.size() / 3}};
    ASSERT_EQ(image->Read(ranges), absl::OkStatus());
    ASSERT_EQ(std::string_view(reinterpret_cast<const char*>(all.data()), image->header().size()), image->header());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const format::HeaderTensor* stored = header->Find(absl::StrFormat("t%d", i));
      ASSERT_NE(stored, nullptr);
      const std::vector<std::byte> expected = tensors[i].Box({Dims(tensors[i].shape.size(), 0), tensors[i].shape});
      ASSERT_EQ(std::vector<std::byte>(all.begin() + static_cast<int64_t>(stored->offset),
                                       all.begin() + static_cast<int64_t>(stored->offset + stored->bytes)),
                expected)
          << i;
    }
  }
};

TEST_F(GlobalImageTest, DCP_06_EverySmallLayoutRestoresIntoEveryOther) {
  std::vector<Logical> tensors;
  for (int64_t rows = 0; rows <= 5; ++rows) {
    tensors.push_back({{rows}, DType::kI64, tensors.size()});
    for (int64_t columns = 0; columns <= 4; ++columns) tensors.push_back({{rows, columns}, DType::kF16, tensors.size()});
  }
  tensors.push_back({{}, DType::kF64, tensors.size()});
  tensors.push_back({{3, 2, 5}, DType::kC128, tensors.size()});
  std::vector<Layout> layouts = {{{1}, {-1}}};
  for (const int64_t parts : {2, 3, 4}) {
    for (const int placement : {-1, 0, 1}) layouts.push_back({{parts}, {placement}});
  }
  for (const auto& mesh : std::vector<std::vector<int64_t>>{{2, 2}, {3, 2}}) {
    for (const int first : {-1, 0, 1}) {
      for (const int second : {-1, 0, 1}) layouts.push_back({mesh, {first, second}});
    }
  }
  for (const Layout& from : layouts) {
    ASSERT_NO_FATAL_FAILURE(Save(from, tensors));
    const auto image = Merge(from.ranks());
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE((*image)->is_global());
    const auto table = ImageTensors::Of(image->get());
    ASSERT_TRUE(table.ok()) << table.status();
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(image->get(), tensors));
    for (const Layout& to : layouts) {
      for (int64_t rank = 0; rank < to.ranks(); ++rank) ASSERT_NO_FATAL_FAILURE(ExpectBoxes(**table, to, rank, tensors));
    }
  }
}

TEST_F(GlobalImageTest, DCP_06_RandomMeshesAndShapesRestoreIntoEachOther) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr DType kTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kF64, DType::kC128, DType::kC32};
  const auto draw_layout = [&] {
    Layout layout;
    for (uint64_t i = 1 + random() % 3; i > 0; --i) {
      layout.mesh.push_back(static_cast<int64_t>(1 + random() % 3));
      layout.placements.push_back(static_cast<int>(random() % 5) - 1);
    }
    return layout;
  };
  for (int round = 0; round < 25; ++round) {
    std::vector<Logical> tensors;
    for (int i = 0; i < 12; ++i) {
      Logical logical{{}, kTypes[random() % 6], random()};
      for (uint64_t rank = random() % 5; rank > 0; --rank) logical.shape.push_back(static_cast<int64_t>(random() % 9));
      tensors.push_back(std::move(logical));
    }
    const Layout from = draw_layout();
    ASSERT_NO_FATAL_FAILURE(Save(from, tensors));
    const auto image = Merge(from.ranks());
    ASSERT_TRUE(image.ok()) << image.status();
    const auto table = ImageTensors::Of(image->get());
    ASSERT_TRUE(table.ok()) << table.status();
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(image->get(), tensors));
    for (int again = 0; again < 3; ++again) {
      const Layout to = draw_layout();
      for (int64_t rank = 0; rank < to.ranks(); ++rank) ASSERT_NO_FATAL_FAILURE(ExpectBoxes(**table, to, rank, tensors));
    }
  }
}

TEST_F(GlobalImageTest, ARanksOwnImageGivesBoxesOfItsPieceAndNoMore) {
  const std::vector<Logical> tensors = {{{6, 4}, DType::kF32, 1}};
  ASSERT_NO_FATAL_FAILURE(Save({{2}, {0}}, tensors));
  const auto image = OpenImageFile(PathOf(1));
  const auto table = ImageTensors::Of(image->get());
  EXPECT_FALSE((*image)->is_global());
  const Cut inside{{4, 1}, {2, 2}}, outside{{2, 0}, {2, 4}};
  std::vector<std::byte> got(16), more(32);
  const std::vector<BoxTarget> good = {{0, inside.offset.data(), inside.extent.data(), got.data()}};
  ASSERT_EQ((*table)->ReadBoxes(good), absl::OkStatus());
  EXPECT_EQ(got, tensors[0].Box(inside));
  const std::vector<BoxTarget> bad = {{0, outside.offset.data(), outside.extent.data(), more.data()}};
  const absl::Status status = (*table)->ReadBoxes(bad);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not lie in the [3:6, 0:4] that this image holds"));
  EXPECT_EQ((*image)->Global({}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(GlobalImageTest, BoxesThatCannotBeAreInvalid) {
  const std::vector<Logical> tensors = {{{6, 4}, DType::kF32, 1}};
  ASSERT_NO_FATAL_FAILURE(Save({{2}, {0}}, tensors));
  const auto image = Merge(2);
  const auto table = ImageTensors::Of(image->get());
  std::vector<std::byte> target(96);
  const Dims zero = {0, 0}, whole = {6, 4}, far = {INT64_MAX, INT64_MAX}, negative = {-1, 1}, same = {0, 1};
  const auto refused = [&](const BoxTarget& box) { return absl::IsInvalidArgument((*table)->ReadBoxes(std::vector{box})); };
  EXPECT_TRUE(refused({1, zero.data(), whole.data(), target.data()}));
  EXPECT_TRUE(refused({0, zero.data(), far.data(), target.data()}));
  EXPECT_TRUE(refused({0, far.data(), whole.data(), target.data()}));
  EXPECT_TRUE(refused({0, zero.data(), negative.data(), target.data()}));
  EXPECT_TRUE(refused({0, zero.data(), whole.data(), nullptr}));
  EXPECT_TRUE(refused({0, nullptr, whole.data(), target.data()}));
  EXPECT_TRUE(refused({0, zero.data(), whole.data(), target.data(), same.data()}));
  EXPECT_TRUE(absl::IsInvalidArgument((*image)->Global({}).status()));
}

// What is read is counted where it is read: boxes of long rows need little more than their own bytes.
TEST_F(GlobalImageTest, ReadsOfLargeTensorsFetchLittleMoreThanIsNeeded) {
  constexpr uint64_t kChunk = 64 << 10;
  const Logical logical{{1536, 1024}, DType::kF32, 9};
  const Layout four{{4}, {0}}, three{{3}, {0}};
  ASSERT_NO_FATAL_FAILURE(Save(four, {logical}));
  class Counting final : public storage::ImageReader {
   public:
    Counting(std::string path, format::CommitRecord record, std::atomic<uint64_t>* bytes)
        : image_(std::filesystem::file_size(path)), record_(std::move(record)), bytes_(bytes) {
      EXPECT_TRUE(os::ReadAt(*os::Open(path, O_RDONLY), 0, image_).ok());
      record_.image_bytes = image_.size();
      record_.chunk_bytes = kChunk;
      record_.digests = testing::DigestsOf(image_, kChunk);
      record_.header_bytes = format::HeaderBytesNeeded({reinterpret_cast<const char*>(image_.data()), 8}, image_.size()).value();
    }
    const format::CommitRecord& record() const override { return record_; }
    void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
      *bytes_ += target.size();
      std::memcpy(target.data(), image_.data() + offset, target.size());
      done(absl::OkStatus());
    }

   private:
    std::vector<std::byte> image_;
    format::CommitRecord record_;
    std::atomic<uint64_t>* const bytes_;
  };
  std::atomic<uint64_t> bytes{0};
  std::vector<std::unique_ptr<RankFile>> images;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    format::CommitRecord record;
    record.key = {.save = {1, 0}, .step = 1, .rank = rank, .world = 4};
    auto reader = std::make_shared<Counting>(PathOf(rank), record, &bytes);
    ImageParts parts;
    parts.record = std::make_shared<const format::CommitRecord>(reader->record());
    parts.image_bytes = reader->record().image_bytes;
    parts.crew = sync::Crew::Create(1);
    parts.metrics = std::make_shared<obs::Metrics>();
    parts.sources.push_back({.name = "file", .place = "", .reader = reader});
    images.push_back(MakeImage(std::move(parts)).value());
  }
  const auto image = engine::MergeImages(std::move(images), {}, {}, 0);
  ASSERT_TRUE(image.ok()) << image.status();
  const auto table = ImageTensors::Of(image->get());
  bytes = 0;
  for (int64_t rank = 0; rank < 3; ++rank) ASSERT_NO_FATAL_FAILURE(ExpectBoxes(**table, three, rank, {logical}));
  const uint64_t needed = 1536 * 1024 * 4;
  EXPECT_GE(bytes.load(), needed);
  EXPECT_LE(bytes.load(), needed + needed / 20);
}

// Three tensors of 16 bytes: the first is on images 0 and 1, the second on 0 only, the third on 1 only.
struct TwoImages {
  TwoImages() {
    const auto add = [&](std::vector<format::GlobalCopy> copies) {
      format::GlobalEntry& entry = entries.emplace_back();
      entry.dtype = DType::kU8;
      entry.shape = {16};
      entry.boxes = tensor::BoxIndex(1);
      entry.boxes.Add(Dims{0}, Dims{16});
      entry.boxes.Sort();
      entry.first_copy = {0, static_cast<uint32_t>(copies.size())};
      entry.copies = std::move(copies);
      wants.push_back({entries.size() - 1, {0}, {16}, targets[entries.size() - 1].data(), {1}});
    };
    add({{0, 0, 0}, {1, 0, 0}});
    add({{0, 16, 0}});
    add({{1, 16, 0}});
  }
  // bad: (image, offset) of tensors whose bytes are lost.
  absl::Status Read(const std::set<std::pair<uint32_t, uint64_t>>& bad) {
    return engine::ReadBoxes(entries, wants, std::vector<uint32_t>{0, 1}, [&](uint32_t image, std::span<const restore::Range> ranges) {
      for (const restore::Range& range : ranges) {
        if (bad.contains({image, range.offset})) return absl::DataLossError("bad");
        std::fill_n(range.target, range.bytes, static_cast<std::byte>(image * 100 + range.offset + 1));
      }
      return absl::OkStatus();
    }, {});
  }
  std::vector<format::GlobalEntry> entries;
  std::vector<restore::BoxWant> wants;
  std::array<std::array<std::byte, 16>, 3> targets{};
};

TEST(ReadBoxesTest, BadBytesOfAReplicaDoNotCostWhatLiesBesideThem) {
  TwoImages images;
  ASSERT_EQ(images.Read({{0, 0}}), absl::OkStatus());
  EXPECT_EQ(images.targets[0][15], std::byte{101});   // from the other copy
  EXPECT_EQ(images.targets[1][15], std::byte{17});    // from the image that has bad bytes
  EXPECT_EQ(images.targets[2][15], std::byte{117});
}

TEST(ReadBoxesTest, WhatHasNoOtherCopyIsLost) {
  EXPECT_TRUE(absl::IsDataLoss(TwoImages().Read({{0, 16}})));
  EXPECT_TRUE(absl::IsDataLoss(TwoImages().Read({{0, 0}, {1, 0}})));
}

TEST_F(GlobalImageTest, PlainTensorsAreTakenOnceWhereTheyAreEqual) {
  const auto save = [&](int64_t rank, float value, size_t floats) {
    TestState state(2, floats);
    state.Set(0);
    state.data[1].back() = value;
    ASSERT_EQ(SaveFile(PathOf(rank), state.state, state.addresses, "", {}), absl::OkStatus());
  };
  for (const size_t floats : {size_t{100}, size_t{3'000'000}}) {   // read together, and in steps
    save(0, 1, floats);
    save(1, 1, floats);
    const auto equal = Merge(2);
    ASSERT_TRUE(equal.ok()) << equal.status();
    TestState read(2, floats);
    ASSERT_EQ(ReadAll(**equal, read), absl::OkStatus());
    EXPECT_EQ(read.data[1].back(), 1);
    save(1, 2, floats);
    const auto different = Merge(2);
    EXPECT_EQ(different.status().code(), absl::StatusCode::kUnimplemented) << different.status();
    EXPECT_THAT(std::string(different.status().message()), HasSubstr("\"t1\" has different bytes on ranks 0 and 1"));
    std::vector<std::unique_ptr<RankFile>> images;
    for (const int64_t rank : {0, 1}) images.emplace_back(dynamic_cast<RankFile*>(OpenImageFile(PathOf(rank))->release()));
    EXPECT_TRUE(engine::MergeImages(std::move(images), {}, {.take_rank0 = {"t*"}}, 0).ok());
  }
}

}  // namespace
}  // namespace neve
