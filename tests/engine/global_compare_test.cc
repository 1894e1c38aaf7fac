// What is read to know whether bytes of several ranks are equal, and what a rank whose bytes are bad costs.
#include "engine/global_compare.h"

#include <cstring>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/codec/digest.h"
#include "engine/global_image.h"

namespace neve::engine {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kChunk = 64 << 10;   // ranges of more than one chunk count as large

// An image in memory, of which some chunks may be bad.
class MemoryFile final : public RankFile {
 public:
  explicit MemoryFile(std::vector<std::byte> bytes, bool with_record = true) : bytes_(std::move(bytes)) {
    record_.chunk_bytes = kChunk;
    for (uint64_t at = 0; at < bytes_.size(); at += kChunk) {
      record_.digests.push_back(codec::DigestOf(std::span(bytes_).subspan(at, std::min(kChunk, bytes_.size() - at))));
    }
    with_record_ = with_record;
  }
  absl::Status ReadRanges(std::span<const restore::Range> ranges) override {
    for (const restore::Range& range : ranges) {
      for (const uint64_t chunk : bad) {
        if (range.offset < (chunk + 1) * kChunk && range.offset + range.bytes > chunk * kChunk) return DataLoss("bad bytes");
      }
      read += range.bytes;
      if (range.box != nullptr) {
        range.box->Scatter(range.target, 0, range.bytes, bytes_.data() + range.offset);
      } else {
        std::memcpy(range.target, bytes_.data() + range.offset, range.bytes);
      }
    }
    return absl::OkStatus();
  }
  const format::CommitRecord* record() const override { return with_record_ ? &record_ : nullptr; }

  const format::ImageHeader& parsed() const override { return header_; }
  std::span<const format::LogicalTensor> tensors() const override { return {}; }
  bool in_memory() const override { return true; }
  void UseCrew(std::shared_ptr<sync::Crew>) override {}
  std::span<const format::GlobalEntry> entries() override { return {}; }
  absl::Status ReadWants(std::span<const restore::BoxWant>, std::span<uint8_t>) override { return Internal("not here"); }
  const SaveInfo& info() const override { return info_; }
  std::string_view header() const override { return ""; }
  uint64_t image_bytes() const override { return bytes_.size(); }
  bool has_digests() const override { return with_record_; }
  absl::Status Read(std::span<const ReadRange>, std::span<uint8_t>) override { return Internal("not here"); }
  absl::Status VerifyAll() override { return absl::OkStatus(); }
  std::map<std::string, uint64_t> Sources() const override { return {}; }
  bool is_global() const override { return false; }
  absl::StatusOr<std::unique_ptr<Image>> Global(const GlobalOptions&) override { return Internal("not here"); }

  std::set<uint64_t> bad;
  uint64_t read = 0;

 private:
  const std::vector<std::byte> bytes_;
  format::CommitRecord record_;
  bool with_record_ = true;
  format::ImageHeader header_;
  SaveInfo info_;
};

class GlobalCompareTest : public ::testing::Test {
 protected:
  // An image of five chunks; those bytes are other ones than everywhere.
  MemoryFile& Add(const std::set<uint64_t>& other = {}, uint64_t shift = 0, bool with_record = true) {
    std::vector<std::byte> bytes(5 * kChunk);
    for (uint64_t i = shift; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i - shift) * 2654435761u >> 7);
    for (const uint64_t at : other) bytes[at] ^= std::byte{1};
    images_.push_back(std::make_unique<MemoryFile>(std::move(bytes), with_record));
    return static_cast<MemoryFile&>(*images_.back());
  }
  // Of [offset, offset + bytes) in every image; in the last one at `last_offset`.
  format::Comparison Of(uint64_t offset, uint64_t bytes, bool box, uint64_t last_offset = 0) const {
    format::Comparison comparison;
    comparison.box = box;
    comparison.extent = {static_cast<int64_t>(bytes)};
    for (uint32_t i = 0; i < images_.size(); ++i) comparison.copies.push_back({i, offset, bytes});
    if (last_offset != 0) comparison.copies.back().offset = last_offset;
    return comparison;
  }
  absl::StatusOr<std::vector<bool>> Compare(std::vector<format::Comparison> comparisons) { return CompareBytes(images_, comparisons); }

  std::vector<std::unique_ptr<RankFile>> images_;
};

TEST_F(GlobalCompareTest, EqualChunksAreNotRead) {
  MemoryFile& first = Add();
  MemoryFile& second = Add({5});
  const auto equal = Compare({Of(kChunk + 10, 20, false), Of(kChunk + 10, 3 * kChunk, true), Of(kChunk, kChunk, false)});
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_THAT(*equal, ElementsAre(true, true, true));
  EXPECT_EQ(first.read + second.read, 0u);
}

TEST_F(GlobalCompareTest, OnlyTheEndsInChunksThatDifferAreRead) {
  MemoryFile& first = Add();
  MemoryFile& second = Add({5, 4 * kChunk + 500});   // beside what is compared
  const auto equal = Compare({Of(10, 4 * kChunk, true), Of(10, 40, false)});
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_THAT(*equal, ElementsAre(true, true));
  EXPECT_EQ(first.read, kChunk - 10 + 10 + 40);
  EXPECT_EQ(second.read, first.read);
}

TEST_F(GlobalCompareTest, DifferencesAreFoundWhereverTheyLie) {
  Add();
  Add();
  MemoryFile& third = Add({10, kChunk + 7, 4 * kChunk + 9});
  const auto equal = Compare({Of(10, 2 * kChunk, true), Of(11, kChunk - 3, true), Of(2 * kChunk, 2 * kChunk + 10, true),
                              Of(kChunk, kChunk, false), Of(8, 4, false), Of(11, 40, true)});
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_THAT(*equal, ElementsAre(false, false, false, false, false, true));
  EXPECT_LT(third.read, 4 * kChunk);
}

TEST_F(GlobalCompareTest, WhatDoesNotLieAlikeIsRead) {
  Add();
  Add({}, 24);
  EXPECT_THAT(*Compare({Of(100, 3 * kChunk, true, 124), Of(100, 40, false, 124), Of(100, 3 * kChunk, true, 125)}),
              ElementsAre(true, true, false));
  images_.clear();
  Add({}, 0, false);
  Add({3 * kChunk}, 0, false);
  EXPECT_THAT(*Compare({Of(100, 2 * kChunk, true), Of(100, 4 * kChunk, false)}), ElementsAre(true, false));
}

TEST_F(GlobalCompareTest, ACopyThatCannotBeReadIsPassedOver) {
  MemoryFile& first = Add({1});
  Add({2});
  MemoryFile& third = Add({3, 20});
  first.bad = {0};
  EXPECT_THAT(*Compare({Of(10, 2 * kChunk, true), Of(10, 5, true), Of(15, 40, true)}), ElementsAre(false, true, false))
      << "the second and the third are compared with each other";
  third.bad = {0};
  EXPECT_THAT(*Compare({Of(10, 2 * kChunk, true), Of(15, 40, true)}), ElementsAre(true, true));
  EXPECT_TRUE(absl::IsDataLoss(Compare({Of(10, 2 * kChunk, false)}).status()));
  EXPECT_TRUE(absl::IsDataLoss(Compare({Of(10, 5, false)}).status()));
}

TEST_F(GlobalCompareTest, AnExpandedCopyIsComparedByItsElements) {
  // Four rows of three bytes on one rank, one row that stands for all on the other.
  const std::vector<std::byte> row = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::vector<std::byte> rows;
  for (int i = 0; i < 4; ++i) rows.insert(rows.end(), row.begin(), row.end());
  for (const bool same : {true, false}) {
    images_.clear();
    if (!same) rows.back() = std::byte{4};
    images_.push_back(std::make_unique<MemoryFile>(rows));
    images_.push_back(std::make_unique<MemoryFile>(row));
    format::Comparison comparison;
    comparison.box = true;
    comparison.extent = {4, 3};
    comparison.copies = {{0, 0, 12, 0}, {1, 0, 3, 1}};
    EXPECT_THAT(*Compare({comparison}), ElementsAre(same));
  }
}

}  // namespace
}  // namespace neve::engine
