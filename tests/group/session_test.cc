// Two ends of one connection, their bytes carried by hand.
#include "group/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sync/seeded_random.h"

namespace neve::group {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Session::Nonce NonceOf(uint8_t value) {
  Session::Nonce nonce;
  nonce.fill(value);
  return nonce;
}

Session::Terms TermsOf(uint32_t self, const std::string& key = "the key", const std::string& context = "job 1") {
  return {.key = key, .context = context, .self = self, .frame_bytes_max = 100};
}

struct Pair {
  Session connects = Session::Connecting(TermsOf(9), 1, NonceOf(1));
  Session listens = Session::Listening(TermsOf(1), NonceOf(2));
  std::string from_connects, from_listens;                     // recorded

  // Carries both sides' bytes, `piece` at a time, until nothing moves; the first error ends it.
  absl::Status Shake(size_t piece = 1000) {
    std::string there = connects.Start(), back;
    std::vector<std::string> frames;
    while (!there.empty() || !back.empty()) {
      from_connects += there.substr(0, piece);
      std::string sent = std::exchange(there, there.size() > piece ? there.substr(piece) : "");
      NEVE_RETURN_IF_ERROR(listens.Feed(std::string_view(sent).substr(0, piece), &back, &frames));
      from_listens += back.substr(0, piece);
      sent = std::exchange(back, back.size() > piece ? back.substr(piece) : "");
      NEVE_RETURN_IF_ERROR(connects.Feed(std::string_view(sent).substr(0, piece), &there, &frames));
    }
    return absl::OkStatus();
  }
};

TEST(Session, BothProveThemselvesHoweverTheBytesAreCut) {
  for (const size_t piece : {1, 7, 31, 1000}) {
    Pair pair;
    ASSERT_EQ(pair.Shake(piece), absl::OkStatus()) << piece;
    EXPECT_TRUE(pair.connects.ready());
    EXPECT_TRUE(pair.listens.ready());
    EXPECT_EQ(pair.listens.peer(), 9u);
    std::string frames = pair.connects.Seal("a");
    frames += pair.connects.Seal("");
    frames += pair.connects.Seal(std::string(100, 'b'));
    std::string send;
    std::vector<std::string> got;
    for (size_t at = 0; at < frames.size(); at += piece) {
      ASSERT_EQ(pair.listens.Feed(std::string_view(frames).substr(at, piece), &send, &got), absl::OkStatus());
    }
    EXPECT_THAT(got, ElementsAre("a", "", std::string(100, 'b')));
    EXPECT_EQ(send, "");
  }
}

TEST(Session, AnotherKeyContextOrRankDoesNotGetIn) {
  const auto shake = [](Session::Terms connects, Session::Terms listens) {
    Pair pair{.connects = Session::Connecting(std::move(connects), 1, NonceOf(1)),
              .listens = Session::Listening(std::move(listens), NonceOf(2)), .from_connects = "", .from_listens = ""};
    const absl::Status status = pair.Shake();
    EXPECT_FALSE(pair.listens.ready());
    return std::string(status.message());
  };
  EXPECT_THAT(shake(TermsOf(9, "guessed"), TermsOf(1)), HasSubstr("another key"));
  EXPECT_THAT(shake(TermsOf(9, "the key", "job 2"), TermsOf(1)), HasSubstr("another job or life"));
  EXPECT_THAT(shake(TermsOf(9), TermsOf(2)), HasSubstr("rank 1 was looked for where rank 2 is"));
}

TEST(Session, WhatWasRecordedProvesNothingLater) {
  Pair pair;
  ASSERT_EQ(pair.Shake(), absl::OkStatus());
  Session listens = Session::Listening(TermsOf(1), NonceOf(3));
  std::string send;
  std::vector<std::string> frames;
  EXPECT_TRUE(absl::IsInvalidArgument(listens.Feed(pair.from_connects, &send, &frames)));   // hello and proof together
  Session again = Session::Listening(TermsOf(1), NonceOf(3));
  EXPECT_EQ(again.Feed(std::string_view(pair.from_connects).substr(0, Session::kHelloBytes), &send, &frames), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(again.Feed(std::string_view(pair.from_connects).substr(Session::kHelloBytes), &send, &frames)));
  EXPECT_FALSE(again.ready());
  // Nor does it serve the other way: the answer of the one that listens is no proof of the one that connects.
  Session mirror = Session::Listening(TermsOf(1), NonceOf(2));
  EXPECT_EQ(mirror.Feed(std::string_view(pair.from_connects).substr(0, Session::kHelloBytes), &send, &frames), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(mirror.Feed(std::string_view(pair.from_listens).substr(16), &send, &frames)));
  // Frames of one session, or one direction, or out of order, are not those of another.
  const std::string frame = pair.connects.Seal("x");
  EXPECT_EQ(pair.listens.Feed(frame, &send, &frames), absl::OkStatus());
  EXPECT_THAT(frames, ElementsAre("x"));
  EXPECT_TRUE(absl::IsInvalidArgument(pair.listens.Feed(frame, &send, &frames)));
  EXPECT_TRUE(absl::IsInvalidArgument(pair.listens.Feed(pair.connects.Seal("y"), &send, &frames)));   // failed stays failed
  EXPECT_THAT(frames, ElementsAre("x"));
}

TEST(Session, GarbageIsRefusedAtItsFirstByteAndKeepsNothing) {
  std::string send;
  std::vector<std::string> frames;
  Session listens = Session::Listening(TermsOf(1), NonceOf(2));
  EXPECT_TRUE(absl::IsInvalidArgument(listens.Feed("G", &send, &frames)));   // of "GET / HTTP/1.1"
  Session large = Session::Listening(TermsOf(1), NonceOf(2));
  EXPECT_TRUE(absl::IsInvalidArgument(large.Feed(std::string(1 << 20, 'n'), &send, &frames)));
  EXPECT_EQ(send, "");
  EXPECT_THAT(frames, IsEmpty());
}

TEST(Session, AFrameBeyondTheBoundEndsIt) {
  Pair pair;
  ASSERT_EQ(pair.Shake(), absl::OkStatus());
  std::string send;
  std::vector<std::string> frames;
  const absl::Status status = pair.listens.Feed(pair.connects.Seal(std::string(101, 'x')), &send, &frames);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a frame of 101 bytes"));
  EXPECT_THAT(frames, IsEmpty());
}

TEST(Session, AnyChangedByteIsFound) {
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  sync::SeededRandom random(seed);
  for (int round = 0; round < 300; ++round) {
    Pair pair;
    ASSERT_EQ(pair.Shake(), absl::OkStatus());
    std::string frames = pair.listens.Seal("one");
    frames += pair.listens.Seal("two");
    frames[random.Below(frames.size())] ^= static_cast<char>(1 + random.Below(255));
    std::string send;
    std::vector<std::string> got;
    // A changed length may wait for bytes that never come: then nothing is taken for whole either.
    pair.connects.Feed(frames, &send, &got).IgnoreError();
    EXPECT_LT(got.size(), 2u) << "seed " << seed;
    for (const std::string& frame : got) EXPECT_EQ(frame, "one");
  }
}

}  // namespace
}  // namespace neve::group
