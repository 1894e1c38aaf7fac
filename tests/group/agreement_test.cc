#include "group/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace neve::group {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Uid UidOf(uint8_t number) {
  Uid uid;
  uid.bytes.fill(number);
  return uid;
}

Arrival OfRank(uint8_t rank) {
  Arrival arrival;
  arrival.job = "gpt";
  arrival.durable = true;
  arrival.place = "file:/place" + std::to_string(rank);
  arrival.fresh = UidOf(static_cast<uint8_t>(100 + rank));
  arrival.address = "10.0.0." + std::to_string(rank);
  arrival.key = "key of " + std::to_string(rank);
  arrival.process = {.nonce = "n" + std::to_string(rank), .host = "h", .boot_id = "b", .pid = 7 + rank, .start_time = 9, .world = 1};
  return arrival;
}

absl::StatusOr<Job> Agree(const std::vector<Arrival>& arrivals) {
  std::vector<std::string> texts;
  for (const Arrival& arrival : arrivals) texts.push_back(Encode(arrival));
  return AgreeOnJob(texts);
}

TEST(AgreeOnJobTest, ANewJobGetsTheUidThatTheFirstRankMade) {
  const auto job = Agree({OfRank(0), OfRank(1)});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->uid, UidOf(100));
  EXPECT_EQ(job->nonce, "n0");
  EXPECT_EQ(job->processes[1].pid, 8);
  EXPECT_EQ(job->processes[1].nonce, "n0");
  EXPECT_EQ(job->processes[1].world, 2u);
  EXPECT_EQ(job->key, "key of 0");
  EXPECT_EQ(job->addresses[1], "10.0.0.1");
}

TEST(AgreeOnJobTest, TheUidOfAnyRanksTierIsTaken) {
  std::vector<Arrival> arrivals = {OfRank(0), OfRank(1), OfRank(2)};
  arrivals[1].uid = UidOf(5);
  EXPECT_EQ(Agree(arrivals)->uid, UidOf(5));
}

TEST(AgreeOnJobTest, TwoUidsAreNamedWithTheirPlaces) {
  std::vector<Arrival> arrivals = {OfRank(0), OfRank(1), OfRank(2)};
  arrivals[1].uid = UidOf(5);
  arrivals[2].uid = UidOf(6);
  const absl::Status status = Agree(arrivals).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 1: file:/place1"), HasSubstr(UidOf(5).ToHex()),
                                                   HasSubstr("rank 2: file:/place2"), HasSubstr(UidOf(6).ToHex())));
}

TEST(AgreeOnJobTest, WithoutADurableTierTheNameStandsForTheJob) {
  std::vector<Arrival> arrivals = {OfRank(0), OfRank(1)};
  for (Arrival& arrival : arrivals) arrival.durable = false;
  EXPECT_EQ(Agree(arrivals)->uid, format::UidFromName("gpt"));
}

TEST(AgreeOnJobTest, OneRanksErrorIsEverybodys) {
  std::vector<Arrival> arrivals = {OfRank(0), OfRank(1)};
  arrivals[1].status = Unavailable("no such disk", EIO);
  const absl::Status status = Agree(arrivals).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(std::string(status.message()), "rank 1: no such disk");
  EXPECT_EQ(ErrnoOf(status), EIO);
}

TEST(AgreeOnJobTest, TwoNamesAndGarbageAreRefused) {
  std::vector<Arrival> arrivals = {OfRank(0), OfRank(1)};
  arrivals[1].job = "bert";
  EXPECT_THAT(std::string(Agree(arrivals).status().message()), AllOf(HasSubstr("\"gpt\""), HasSubstr("rank 1 \"bert\"")));
  EXPECT_TRUE(absl::IsInvalidArgument(AgreeOnJob(std::vector<std::string>{Encode(OfRank(0)), "junk"}).status()));
}

TEST(AgreeOnLifeTest, OneAboveTheGreatestThatAnyRankLists) {
  EXPECT_EQ(AgreeOnLife(std::vector{Encode(Past{.greatest = 2}), Encode(Past{.greatest = 7}), Encode(Past{})})->incarnation, 8u);
  EXPECT_EQ(AgreeOnLife(std::vector{Encode(Past{}), Encode(Past{})})->incarnation, 1u);
}

TEST(AgreeOnLifeTest, WhatWasGivenMustBeTheSame) {
  EXPECT_EQ(AgreeOnLife(std::vector{Encode(Past{.greatest = 2, .given = 9}), Encode(Past{.given = 9})})->incarnation, 9u);
  const absl::Status status = AgreeOnLife(std::vector{Encode(Past{.given = 9}), Encode(Past{})}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("incarnation 9 and rank 1 none"));
}

TEST(AgreeOnLifeTest, ARankThatCouldNotListKeepsAllFromNumbering) {
  const absl::Status status =
      AgreeOnLife(std::vector{Encode(Past{}), Encode(Past{.status = Unavailable("tier file", ENOENT)})}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(std::string(status.message()), "rank 1: tier file");
  EXPECT_TRUE(absl::IsInvalidArgument(AgreeOnLife(std::vector<std::string>{"x"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(AgreeOnLife(std::vector{Encode(Past{.greatest = ~uint32_t{0}})}).status()));
}

TEST(AgreeOnLifeTest, TellsWhereEachRankListensAndWhoDoesNot) {
  const auto life = AgreeOnLife(std::vector{Encode(Past{.place = "127.0.0.1:9", .tiers = "ram"}),
                                            Encode(Past{.control = Unsupported("switched off")})});
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_EQ(life->places[0].place, "127.0.0.1:9");
  EXPECT_EQ(life->places[0].tiers, "ram");
  EXPECT_EQ(life->places[1].status, Unsupported("rank 1: switched off"));
}

TEST(FirstErrorTest, NamesTheFirstRankThatFailed) {
  const std::vector<std::string> statuses = {EncodeStatus(absl::OkStatus()), EncodeStatus(DataLoss("chunk 3")),
                                             EncodeStatus(Damaged("x"))};
  EXPECT_EQ(FirstError(statuses), DataLoss("rank 1: chunk 3"));
  EXPECT_TRUE(FirstError(std::vector{EncodeStatus(absl::OkStatus())}).ok());
}

}  // namespace
}  // namespace neve::group
