#include "format/pickle_sharing.h"

#include <gtest/gtest.h>

#include <limits>

#include "format/pickle_machine.h"

namespace neve::format {
namespace {

using std::string_literals::operator""s;

PickleSharing Of(std::string pickle) {
  const auto read = ReadPickle(std::move(pickle), "p", {});
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? FindSharing(read->graph) : PickleSharing{};
}

TEST(PickleSharingTest, OneListInTwoPlacesIsShared) {
  EXPECT_TRUE(Of("\x80\x02]q\x00(]q\x01h\x01"
                 "e."s).shares);
  EXPECT_FALSE(Of("\x80\x02]q\x00(]q\x01]q\x02"
                  "e."s).shares);
}

TEST(PickleSharingTest, ATupleIsSharedByWhatItHolds) {
  EXPECT_FALSE(Of("\x80\x02]q\x00(K\x01\x85q\x01h\x01"
                  "e."s).shares);                        // t = (1,); [t, t]
  EXPECT_TRUE(Of("\x80\x02]q\x00(]\x85q\x01h\x01"
                 "e."s).shares);                         // t = ([],); [t, t]
}

TEST(PickleSharingTest, WhatIsWrittenOutIsCountedWithoutWritingIt) {
  std::string pickle = "\x80\x02]q\x00"s;
  for (char level = 1; level < 100; ++level) {
    const char before = static_cast<char>(level - 1);
    pickle += "](h"s + before + "h" + before + "eq" + level;   // [before, before]
  }
  const PickleSharing found = Of(pickle + ".");
  EXPECT_TRUE(found.shares);
  EXPECT_EQ(found.written_out, std::numeric_limits<uint64_t>::max());
}

}  // namespace
}  // namespace neve::format
