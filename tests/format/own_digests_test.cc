#include "format/own_digests.h"

#include <gtest/gtest.h>

#include <string>

namespace neve::format {
namespace {

constexpr uint64_t kFileBytes = 2 * kDefaultChunkBytes + 5;

std::string HeaderWith(const std::string& value) {
  return std::string(8, '\1') + "{\"__metadata__\":{\"neve.format\":\"1\",\"x\":\"\\\"neve.digests\\\":\\\"\",\"neve.digests\":\"" + value +
         "\"}}";
}

std::vector<codec::Digest> Three() { return {{1, 2}, {3, 4}, {~uint64_t{0}, 6}}; }

TEST(OwnDigests, TheValueHasTheSizeThatWasPlannedAndIsReadBack) {
  const uint64_t value_bytes = OwnDigestsBytes(kFileBytes) + 7;   // room to spare is filled with spaces
  const std::string planned = HeaderWith(OwnDigestsPlaceholder(value_bytes));
  uint64_t found_bytes = 0;
  const std::optional<uint64_t> at = FindOwnDigests(planned, &found_bytes);
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(found_bytes, value_bytes);
  std::string written = planned;
  written.replace(*at, value_bytes, OwnDigestsText(planned.size(), kFileBytes, Three(), value_bytes));
  ASSERT_EQ(written.size(), planned.size());

  const auto own = ReadOwnDigests(written, kFileBytes);
  ASSERT_TRUE(own.ok() && own->has_value()) << own.status();
  EXPECT_EQ((*own)->record.digests, Three());
  EXPECT_EQ((*own)->record.header_bytes, planned.size());
  EXPECT_EQ((*own)->record.chunk_count(), 3u);
  for (const size_t begin : {size_t{0}, static_cast<size_t>(*at) + 3, static_cast<size_t>(*at + value_bytes)}) {
    std::string part = written.substr(begin);
    (*own)->Mask(begin, std::as_writable_bytes(std::span(part)));
    EXPECT_EQ(part, planned.substr(begin)) << begin;
  }
}

TEST(OwnDigests, WhatAnotherProgramCopiedCountsForNothing) {
  const uint64_t value_bytes = OwnDigestsBytes(kFileBytes);
  const uint64_t header_bytes = HeaderWith(OwnDigestsPlaceholder(value_bytes)).size();
  const std::string value = OwnDigestsText(header_bytes, kFileBytes, Three(), value_bytes);
  EXPECT_TRUE((*ReadOwnDigests(HeaderWith(value), kFileBytes)).has_value());
  EXPECT_FALSE((*ReadOwnDigests(HeaderWith(value), kFileBytes + 8)).has_value());
  EXPECT_FALSE((*ReadOwnDigests(HeaderWith(value) + " ", kFileBytes)).has_value());
  EXPECT_FALSE((*ReadOwnDigests("12345678{}", kFileBytes)).has_value());
}

TEST(OwnDigests, MalformedOnesAreDamage) {
  const uint64_t value_bytes = OwnDigestsBytes(kFileBytes);
  const uint64_t header_bytes = HeaderWith(OwnDigestsPlaceholder(value_bytes)).size();
  const std::string good = OwnDigestsText(header_bytes, kFileBytes, Three(), value_bytes);
  const auto code = [&](std::string value) { return ReadOwnDigests(HeaderWith(value), kFileBytes).status(); };
  EXPECT_TRUE(code(good).ok());
  for (const size_t at : {size_t{0}, size_t{10}, size_t{41}, size_t{42}, good.size() - 1}) {
    std::string bad = good;
    bad[at] = 'x';
    EXPECT_TRUE(IsDamaged(code(bad))) << at;
  }
  std::string huge = good;
  huge.replace(0, 10, "9999999999");
  EXPECT_TRUE(IsDamaged(code(huge)));
  std::string tiny = good;
  tiny.replace(0, 10, "0000000000");
  EXPECT_TRUE(IsDamaged(code(tiny)));
  std::string spaces = good;
  spaces.replace(42 + 32, 32, std::string(32, ' '));
  EXPECT_TRUE(IsDamaged(code(spaces)));
  std::string more = good.substr(0, 42);   // of a chunk size that makes more of them
  more.replace(0, 10, "0000065536");
  more.resize(value_bytes, '1');
  EXPECT_TRUE(IsDamaged(code(more)));
  EXPECT_TRUE(IsDamaged(ReadOwnDigests(HeaderWith(""), kFileBytes).status()));
}

}  // namespace
}  // namespace neve::format
