#include "format/torch_zip_layout.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neve::format {
namespace {

using ::testing::HasSubstr;

TorchZipLayout Built(std::string_view root, std::string_view pickle, const std::vector<uint64_t>& storages, uint64_t alignment = 64) {
  auto layout = TorchZipLayout::Build(root, alignment, pickle, storages);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

uint64_t Number(std::string_view text, size_t at, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; ++i) number |= uint64_t{static_cast<uint8_t>(text[at + i])} << (8 * i);
  return number;
}

// Offsets of torch 2.13.0's own archive of {"a": arange(10.), "b": ones(3), "e": empty(0), "big": zeros(100000)} as a.pt.
TEST(TorchZipLayoutTest, RecordsLieWhereTorchPutsThem) {
  const TorchZipLayout layout = Built("a", std::string(346, 'p'), {40, 12, 0, 400000});
  const std::vector<uint64_t> records = {726, 824, 924, 1024};
  const std::vector<uint64_t> data = {768, 896, 1024, 1088};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.storage(i).record, records[i]) << i;
    EXPECT_EQ(layout.storage(i).data, data[i]) << i;
  }
  EXPECT_EQ(layout.head().size(), 726u);
  EXPECT_EQ(layout.tail_offset(), 401104u);
  EXPECT_EQ(layout.archive_bytes(), 402017u);
}

// Offsets of torch 2.13.0's own archive of tensors of 12, 4 GiB + 16, 20 and 80 bytes as pt-big.pt, pickle of 363 bytes.
TEST(TorchZipLayoutTest, PT_11_RecordsAbove4GiBHaveZip64Fields) {
  const TorchZipLayout layout = Built("pt-big", std::string(363, 'p'), {12, (uint64_t{1} << 32) + 16, 20, 80});
  const std::vector<uint64_t> records = {790, 924, 4294968360, 4294968492};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(layout.storage(i).record, records[i]) << i;
  EXPECT_EQ(layout.tail_offset(), 4294968680u);
  EXPECT_EQ(layout.archive_bytes(), 4294969759u);
  std::string header, descriptor;
  layout.LocalHeader(1, &header);
  EXPECT_EQ(header.size(), layout.storage(1).data - layout.storage(1).record);
  const size_t extra = 30 + Number(header, 26, 2);
  EXPECT_EQ(Number(header, extra, 2), 1u);        // zip64,
  EXPECT_EQ(Number(header, extra + 2, 2), 16u);   // of two sizes: 20 bytes more than a small record's
  EXPECT_EQ(Number(header, extra + 4, 8), (uint64_t{1} << 32) + 16);
  layout.Descriptor(1, 0x12345678, &descriptor);
  EXPECT_EQ(descriptor.size(), 24u);
  layout.LocalHeader(2, &header);
  EXPECT_EQ(Number(header, 30 + Number(header, 26, 2) + 2, 2), 8u);   // its place only: 12 bytes more
  EXPECT_EQ(layout.Tail(std::vector<uint32_t>(4)).size(), layout.archive_bytes() - layout.tail_offset());
}

TEST(TorchZipLayoutTest, EveryStorageIsAligned) {
  for (const uint64_t alignment : {1, 2, 64, 4096, 32768}) {
    std::vector<uint64_t> storages;
    for (uint64_t i = 0; i < 1200; ++i) storages.push_back(i * 7 % 1000);
    const TorchZipLayout layout = Built("root", "pickle", storages, alignment);
    std::string text;
    for (size_t i = 0; i < storages.size(); ++i) {
      const TorchZipLayout::Storage storage = layout.storage(i);
      ASSERT_EQ(storage.data % alignment, 0u);
      ASSERT_EQ(storage.bytes, storages[i]);
      layout.LocalHeader(i, &text);
      ASSERT_EQ(text.size(), storage.data - storage.record);
      layout.Descriptor(i, 1, &text);
      ASSERT_EQ(text.size(), storage.end - storage.descriptor());
      ASSERT_EQ(text.empty(), storages[i] == 0);
      ASSERT_EQ(storage.end, i + 1 < storages.size() ? layout.storage(i + 1).record : layout.tail_offset());
    }
    EXPECT_EQ(layout.Tail(std::vector<uint32_t>(storages.size())).size(), layout.archive_bytes() - layout.tail_offset());
  }
}

TEST(TorchZipLayoutTest, AStorageIsFoundByAnyOffsetOfItsRecord) {
  const TorchZipLayout layout = Built("r", "pickle", {5, 0, 1000, 1});
  for (uint64_t at = layout.head().size(); at < layout.tail_offset(); ++at) {
    const TorchZipLayout::Storage storage = layout.storage(layout.StorageAt(at));
    ASSERT_LE(storage.record, at);
    ASSERT_LT(at, storage.end);
  }
}

TEST(TorchZipLayoutTest, PT_18_MoreThan65535RecordsAreCountedIn64Bits) {
  const TorchZipLayout layout = Built("archive", "pickle", std::vector<uint64_t>(70'000, 4));
  const std::string tail = layout.Tail(std::vector<uint32_t>(70'000));
  const size_t end = tail.size() - 22;
  EXPECT_EQ(Number(tail, end, 4), 0x06054b50u);
  EXPECT_EQ(Number(tail, end + 10, 2), 0xFFFFu);
  EXPECT_EQ(Number(tail, end - 20 - 56 + 32, 8), 70'006u);
}

TEST(TorchZipLayoutTest, TheFingerprintFollowsTheContents) {
  const TorchZipLayout layout = Built("r", "pickle", {4, 4});
  const std::vector<uint32_t> one = {1, 2}, other = {2, 1};
  EXPECT_EQ(layout.Tail(one), layout.Tail(one));
  EXPECT_NE(layout.Tail(one).substr(0, 300), layout.Tail(other).substr(0, 300));
}

TEST(TorchZipLayoutTest, RootsAreNamedAsTorchNamesThem) {
  EXPECT_EQ(TorchZipRoot("a/b.c/x.tar.pt"), "x.tar");
  EXPECT_EQ(TorchZipRoot("noext"), "noext");
  EXPECT_EQ(TorchZipRoot("/runs/.hidden.pt"), ".hidden");
  EXPECT_EQ(TorchZipRoot("x."), "x");
  for (const char* odd : {"\xc3\xbc.pt", ".pt", "..pt", "...pt", "", "a/", "q\\w.pt", "d\x01.pt"}) {
    EXPECT_EQ(TorchZipRoot(odd), "archive") << odd;
  }
}

TEST(TorchZipLayoutTest, WhatNoArchiveCanBeIsRefused) {
  for (const uint64_t alignment : {uint64_t{0}, uint64_t{3}, uint64_t{65536}}) {
    const auto refused = TorchZipLayout::Build("r", alignment, "p", {});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("power of two"));
  }
  EXPECT_FALSE(TorchZipLayout::Build("", 64, "p", {}).ok());
  EXPECT_FALSE(TorchZipLayout::Build("a/b", 64, "p", {}).ok());
  EXPECT_FALSE(TorchZipLayout::Build("r", 64, "p", std::vector<uint64_t>{uint64_t{1} << 63}).ok());
}

}  // namespace
}  // namespace neve::format
