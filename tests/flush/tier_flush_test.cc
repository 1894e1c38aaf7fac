// The flush of one tier as a state machine: each test answers the tier's calls by hand, under a simulated clock.
#include "flush/tier_flush.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <numeric>

#include "base/obs/log.h"
#include "flush/scripted_tier.h"

namespace neve::flush {
namespace {

using ::neve::testing::ScriptedTier;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TierFlushTest : public ::testing::Test {
 protected:
  void SetUp() override {
    obs::SetSink([this](obs::Level, const std::string& line) { log_.push_back(line); });
    policy_.depth = 3;
    policy_.piece_bytes = 100;
    policy_.timeout = 10 * sync::kSecond;
    policy_.retry_first = 100 * sync::kMillisecond;
    policy_.retry_max = sync::kSecond;
    image_.resize(4096);
    for (size_t i = 0; i < image_.size(); ++i) image_[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  void TearDown() override { obs::SetSink(nullptr); }

  void Make() {
    flush_ = std::make_unique<TierFlush>(tier_, *executor_, metrics_, policy_,
                                         [this](std::function<void(absl::Status)> done) {
                                           ++asked_;
                                           done(may_commit_);
                                         });
  }
  static ImageKey Key(uint64_t sequence) {
    return {.save = {1, sequence}, .step = sequence * 10, .rank = 0, .world = 1};
  }
  void Enqueue(uint64_t sequence, uint64_t bytes = 1000) {
    auto record = std::make_shared<format::CommitRecord>();
    record->key = Key(sequence);
    record->image_bytes = bytes;
    flush_->Enqueue({record, std::span<const std::byte>(image_).first(bytes), [this, sequence](absl::Status status) {
                       order_.push_back(sequence);
                       done_[sequence].push_back(std::move(status));
                     }});
  }
  // Lets every posted task run that needs no time to pass. Timers would jump the clock, so it stops where only those
  // are left.
  void Settle() { executor_->RunUntilIdle(); }
  // Answers what is waiting, in order, with OK, until nothing waits any more.
  void AnswerAll(absl::Status status = absl::OkStatus()) {
    Settle();
    while (!tier_.waiting.empty()) {
      tier_.Answer(0, status);
      Settle();
    }
  }
  absl::Status Outcome(uint64_t sequence) {
    if (done_[sequence].size() != 1) return Internal("done ran " + std::to_string(done_[sequence].size()) + " times");
    return done_[sequence][0];
  }
  size_t Logged(const std::string& text) const {
    return static_cast<size_t>(
        std::count_if(log_.begin(), log_.end(), [&](const std::string& line) { return line.find(text) != line.npos; }));
  }

  std::unique_ptr<sync::SimExecutor> executor_ = sync::SimExecutor::Create(1);
  obs::Metrics metrics_;
  ScriptedTier tier_;
  Policy policy_;
  std::vector<std::byte> image_;
  absl::Status may_commit_;
  int asked_ = 0;
  std::map<uint64_t, std::vector<absl::Status>> done_;
  std::vector<uint64_t> order_;
  std::vector<std::string> log_;
  std::unique_ptr<TierFlush> flush_;
};

TEST_F(TierFlushTest, AnImageIsWrittenInPiecesAndThenCommitted) {
  Make();
  Enqueue(1, 1050);
  AnswerAll();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(tier_.Count("write"), 11u);
  EXPECT_EQ(tier_.log.back().what, "commit");
  EXPECT_EQ(tier_.log.back().bytes, 1050u);
  EXPECT_EQ(tier_.written, std::string(reinterpret_cast<const char*>(image_.data()), 1050));
  EXPECT_TRUE(flush_->Idle());
  EXPECT_EQ(tier_.writers, 0);
  EXPECT_EQ(metrics_.Get(obs::Metric::kFileWriteBytes), 1050u);
  EXPECT_EQ(metrics_.Get(obs::Metric::kFileCommits), 1u);
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(TierFlushTest, AnEmptyImageNeedsNoWrite) {
  Make();
  Enqueue(1, 0);
  AnswerAll();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(tier_.Count("write"), 0u);
}

TEST_F(TierFlushTest, ImagesGoOneAfterAnotherOldestFirst) {
  Make();
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) Enqueue(sequence, 150);
  EXPECT_EQ(flush_->queued(), 3u);
  AnswerAll();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
  std::vector<uint64_t> keys;
  for (const auto& call : tier_.log) keys.push_back(call.key.save.sequence);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

TEST_F(TierFlushTest, NeverMoreThanDepthPiecesAreInFlight) {
  Make();
  Enqueue(1);
  Settle();
  tier_.Answer(0, absl::OkStatus());  // begin
  Settle();
  size_t most = 0;
  while (tier_.Count("commit") == 0) {
    most = std::max(most, tier_.waiting.size());
    tier_.Answer(tier_.waiting.size() - 1, absl::OkStatus());  // the latest first
    Settle();
  }
  EXPECT_EQ(most, 3u);
}

TEST_F(TierFlushTest, TheRecordWaitsForTheLastPiece) {
  Make();
  Enqueue(1, 300);
  Settle();
  tier_.Answer(0, absl::OkStatus());
  Settle();
  ASSERT_EQ(tier_.waiting.size(), 3u);
  tier_.Answer(2, absl::OkStatus());
  tier_.Answer(0, absl::OkStatus());
  Settle();
  EXPECT_EQ(tier_.Count("commit"), 0u);
  EXPECT_EQ(asked_, 0);
  tier_.Answer(0, absl::OkStatus());
  Settle();
  EXPECT_EQ(tier_.Count("commit"), 1u);
  EXPECT_EQ(asked_, 1);
}

TEST_F(TierFlushTest, ATierThatAnswersInsideTheCallIsFineToo) {
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return absl::OkStatus(); };
  Make();
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) Enqueue(sequence);
  Settle();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
  EXPECT_TRUE(flush_->Idle());
}

TEST_F(TierFlushTest, TheRateIsCappedByTheClock) {
  policy_.rate_bytes_per_s = 1000;
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return absl::OkStatus(); };
  Make();
  Enqueue(1, 1000);
  Enqueue(2, 1000);
  Settle();
  EXPECT_THAT(order_, ElementsAre(1, 2));
  // 20 pieces of 0.1 s each; the first one goes at once.
  EXPECT_EQ(executor_->Now(), 19 * 100 * sync::kMillisecond);
}

TEST_F(TierFlushTest, AnIdleTimeIsNotSavedUpForABurst) {
  policy_.rate_bytes_per_s = 1000;
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return absl::OkStatus(); };
  Make();
  executor_->PostAfter(100 * sync::kSecond, [] {});
  Settle();
  Enqueue(1, 1000);
  Settle();
  EXPECT_EQ(executor_->Now(), 100 * sync::kSecond + 9 * 100 * sync::kMillisecond);
}

// Each of these once, then never again.
TEST_F(TierFlushTest, ASY_09_OnePassingErrorIsRetriedSavedAndLoggedOnce) {
  for (const int error : {EIO, ESTALE, ENOSPC}) {
    for (const char* what : {"begin", "write", "commit"}) {
      log_.clear();
      done_.clear();
      int calls = 0;
      tier_.answer_at_once = [&](const ScriptedTier::Call& call) {
        const bool fails = call.what == what && ++calls == (call.what == "write" ? 10 : 1);
        return fails ? ErrnoStatus(error, "write of the shard") : absl::OkStatus();
      };
      const uint64_t retries = metrics_.Get(obs::Metric::kFileRetries);
      Make();
      Enqueue(1, 2000);
      Settle();
      EXPECT_EQ(Outcome(1), absl::OkStatus()) << what;
      EXPECT_EQ(Logged("event=flush_failed"), 1u) << what;
      EXPECT_EQ(Logged("event=flush_recovered"), 1u) << what;
      EXPECT_EQ(metrics_.Get(obs::Metric::kFileRetries), retries + 1);
      EXPECT_FALSE(flush_->degraded());
      EXPECT_EQ(flush_->last_error(), absl::OkStatus());
      EXPECT_EQ(tier_.writers, 0);
    }
  }
}

TEST_F(TierFlushTest, ASY_09_AnErrorThatStaysIsOnTheTicketAndTheNextSavesGoOn) {
  bool broken = true;
  tier_.answer_at_once = [&](const ScriptedTier::Call&) {
    return broken ? ErrnoStatus(EIO, "pwrite /ckpt/x") : absl::OkStatus();
  };
  Make();
  Enqueue(1);
  Settle();
  EXPECT_TRUE(absl::IsUnavailable(Outcome(1)));
  EXPECT_THAT(std::string(Outcome(1).message()), HasSubstr("pwrite /ckpt/x"));
  EXPECT_EQ(ErrnoOf(Outcome(1)), EIO);
  EXPECT_TRUE(flush_->degraded());
  EXPECT_EQ(Logged("event=tier_degraded"), 1u);
  EXPECT_LE(executor_->Now(), policy_.timeout + policy_.retry_max);
  broken = false;
  Enqueue(2);
  Settle();
  EXPECT_EQ(Outcome(2), absl::OkStatus());
  EXPECT_FALSE(flush_->degraded());
}

TEST_F(TierFlushTest, WhatOnlyAHandCanMendIsNotTriedForLong) {
  for (const int error : {EACCES, EPERM, EROFS, ENOTDIR}) {
    tier_.answer_at_once = [&](const ScriptedTier::Call&) { return ErrnoStatus(error, "open /ckpt/x"); };
    Make();
    const sync::Nanos begin = executor_->Now();
    Enqueue(static_cast<uint64_t>(error));
    Settle();
    EXPECT_EQ(ErrnoOf(Outcome(static_cast<uint64_t>(error))), error);
    EXPECT_GT(executor_->Now(), begin);   // tried again: a mount may be about to come back
    EXPECT_LE(executor_->Now() - begin, policy_.patience);
    EXPECT_TRUE(flush_->degraded());
  }
  // A full disk may become free.
  tier_.answer_at_once = [&](const ScriptedTier::Call&) { return ErrnoStatus(ENOSPC, "write /ckpt/x"); };
  Make();
  const sync::Nanos begin = executor_->Now();
  Enqueue(1);
  Settle();
  EXPECT_GT(executor_->Now() - begin, policy_.patience);
}

TEST_F(TierFlushTest, AnImageThatFindsNoRoomGivesWayToOneThatMay) {
  tier_.answer_at_once = [&](const ScriptedTier::Call& call) {
    if (call.what == "begin" && tier_.Count("begin") > 2) {   // after the first try at image 2
      EXPECT_EQ(tier_.writers, 0) << "the room of the attempt before is not free yet";
    }
    return call.what == "write" && call.key == Key(2) ? ErrnoStatus(ENOSPC, "write /ckpt/x") : absl::OkStatus();
  };
  Make();
  Enqueue(1);
  Enqueue(2);
  Enqueue(3);
  Enqueue(4);
  Settle();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(ErrnoOf(Outcome(2)), ENOSPC);
  EXPECT_THAT(std::string(Outcome(3).message()), HasSubstr("lapsed for a newer save: write /ckpt/x"));
  EXPECT_EQ(Outcome(4), absl::OkStatus());
  EXPECT_GT(metrics_.Get(obs::Metric::kFileRetries), 1u);   // retention may be making room
  EXPECT_LE(executor_->Now(), policy_.patience);
  EXPECT_FALSE(flush_->degraded());
}

TEST_F(TierFlushTest, ANewerImageEndsThePauseOfOneThatFindsNoRoom) {
  policy_.timeout = 600 * sync::kSecond;
  policy_.retry_max = 100 * sync::kSecond;
  for (const sync::Nanos late : {sync::kSecond, 50 * sync::kSecond}) {   // before its patience is over, and long after
    done_.clear();
    tier_.answer_at_once = [&](const ScriptedTier::Call& call) {
      return call.key == Key(1) ? ErrnoStatus(ENOSPC, "write /ckpt/x") : absl::OkStatus();
    };
    Make();
    const sync::Nanos begin = executor_->Now();
    Enqueue(1);
    executor_->PostAfter(late, [this] { Enqueue(2); });
    while (done_.find(2) == done_.end() && executor_->Step()) {
    }
    EXPECT_EQ(ErrnoOf(Outcome(1)), ENOSPC);
    EXPECT_EQ(Outcome(2), absl::OkStatus());
    EXPECT_GE(executor_->Now() - begin, late);
    EXPECT_LE(executor_->Now() - begin, std::max(late, policy_.patience));
    Settle();
    EXPECT_TRUE(flush_->Idle());
  }
}

TEST_F(TierFlushTest, OtherErrorsKeepTheirTurnWhateverIsQueued) {
  tier_.answer_at_once = [&](const ScriptedTier::Call&) { return ErrnoStatus(EIO, "write /ckpt/x"); };
  Make();
  Enqueue(1);
  Enqueue(2);
  Settle();
  EXPECT_GT(executor_->Now(), policy_.timeout - 2 * policy_.retry_max);
}

TEST_F(TierFlushTest, EachFailedAttemptIsToldAtOnce) {
  std::vector<std::string> told;
  flush_ = std::make_unique<TierFlush>(
      tier_, *executor_, metrics_, policy_, [](std::function<void(absl::Status)> done) { done(absl::OkStatus()); },
      [&](const absl::Status& status) { told.push_back(flush_->Describe() + ": " + std::string(status.message())); });
  int failures = 2;
  tier_.answer_at_once = [&](const ScriptedTier::Call&) { return failures-- > 0 ? Unavailable("gone") : absl::OkStatus(); };
  Enqueue(1);
  Settle();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  const std::string line = "file:/ckpt of step=10 save=i0001.s000001 rank=0: gone";
  EXPECT_THAT(told, ElementsAre(line, line));
}

TEST_F(TierFlushTest, AWaitIsToldWhatItWaitsForAndWhy) {
  Make();
  EXPECT_EQ(flush_->DescribeWait(), "");
  Enqueue(1, 100);
  Settle();
  EXPECT_EQ(flush_->DescribeWait(), flush_->Describe());
  tier_.Answer(0, ErrnoStatus(ENOSPC, "write /ckpt/x"));
  while (flush_->last_error().ok() && executor_->Step()) {
  }
  EXPECT_THAT(flush_->DescribeWait(),
              HasSubstr("step=10 save=i0001.s000001 rank=0, which fails since 0 s and is tried again: write /ckpt/x"));
}

TEST_F(TierFlushTest, PausesGrowToTheirLimitUntilTheTimeout) {
  std::vector<sync::Nanos> begins;
  tier_.answer_at_once = [&](const ScriptedTier::Call&) {
    begins.push_back(executor_->Now());
    return Unavailable("not there");
  };
  Make();
  Enqueue(1);
  Settle();
  ASSERT_GT(begins.size(), 6u);
  sync::Nanos wanted = policy_.retry_first;
  for (size_t i = 1; i < begins.size(); ++i) {
    const sync::Nanos pause = begins[i] - begins[i - 1];
    EXPECT_GE(pause, wanted);
    EXPECT_LE(pause, wanted + wanted / 4);  // spread, so that many ranks do not come back in step
    wanted = std::min(wanted * 2, policy_.retry_max);
  }
  EXPECT_LE(begins.back() - begins.front(), policy_.timeout + policy_.retry_max / 4);
  EXPECT_GT(begins.back() - begins.front(), policy_.timeout - 2 * policy_.retry_max);
}

TEST_F(TierFlushTest, ARetryBeginsTheImageAnewAfterAllPiecesAnswered) {
  Make();
  Enqueue(1, 300);
  Settle();
  tier_.Answer(0, absl::OkStatus());
  Settle();
  tier_.Answer(0, Unavailable("no"));
  Settle();
  EXPECT_EQ(tier_.Count("begin"), 1u);  // two pieces are still on their way: their memory is borrowed
  tier_.Answer(0, absl::OkStatus());
  tier_.Answer(0, Unavailable("another"));
  Settle();
  EXPECT_EQ(tier_.Count("begin"), 2u);
  EXPECT_EQ(tier_.writers, 0);
  AnswerAll();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(tier_.Count("write"), 6u);
  EXPECT_THAT(log_[0], HasSubstr("error=\"no\""));  // the first error is the one that is told
}

TEST_F(TierFlushTest, ACommitWhoseAnswerWasLostIsTakenBackAndDoneAgain) {
  int commits = 0;
  bool there = false;
  tier_.answer_at_once = [&](const ScriptedTier::Call& call) -> absl::Status {
    if (call.what == "begin" && there) return Invalid("a committed image is never replaced");
    if (call.what == "retire") there = false;
    if (call.what == "commit") {
      there = true;
      if (++commits == 1) return Unavailable("the answer was lost");
    }
    return absl::OkStatus();
  };
  Make();
  Enqueue(1, 300);
  Settle();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(tier_.Count("retire"), 1u);
  EXPECT_EQ(commits, 2);
  EXPECT_EQ(tier_.Count("write"), 6u);
}

TEST_F(TierFlushTest, TakingBackIsRetriedLikeAnythingElse) {
  int commits = 0, retires = 0;
  bool there = false;
  tier_.answer_at_once = [&](const ScriptedTier::Call& call) -> absl::Status {
    if (call.what == "begin" && there) return Invalid("a committed image is never replaced");
    if (call.what == "retire" && ++retires < 3) return Unavailable("busy");
    if (call.what == "retire") there = false;
    if (call.what == "commit") {
      there = true;
      if (++commits == 1) return Unavailable("the answer was lost");
    }
    return absl::OkStatus();
  };
  Make();
  Enqueue(1, 300);
  Settle();
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(retires, 3);
}

TEST_F(TierFlushTest, AKeyThatWasThereBeforeUsIsNeverTakenOut) {
  tier_.answer_at_once = [&](const ScriptedTier::Call& call) -> absl::Status {
    return call.what == "begin" ? Invalid("a committed image is never replaced") : absl::OkStatus();
  };
  Make();
  Enqueue(1);
  Enqueue(2);
  Settle();
  EXPECT_TRUE(absl::IsInvalidArgument(Outcome(1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Outcome(2)));
  EXPECT_EQ(tier_.Count("retire"), 0u);
  EXPECT_EQ(executor_->Now(), 0);  // and not tried again
  EXPECT_FALSE(flush_->degraded());
}

TEST_F(TierFlushTest, DegradedOlderClaimsLapseAndTheNewestIsTriedOnceAtOnce) {
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return Unavailable("gone"); };
  Make();
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) Enqueue(sequence);
  Settle();
  EXPECT_TRUE(absl::IsUnavailable(Outcome(1)));
  EXPECT_TRUE(absl::IsUnavailable(Outcome(2)));
  EXPECT_THAT(std::string(Outcome(2).message()), HasSubstr("lapsed for a newer save: gone"));
  EXPECT_TRUE(absl::IsUnavailable(Outcome(3)));
  EXPECT_EQ(std::string(Outcome(4).message()), "gone");   // its own failure: nobody waits for a save that may never come
  EXPECT_TRUE(flush_->Idle());
  EXPECT_TRUE(flush_->degraded());
}

TEST_F(TierFlushTest, DegradedTheNewestSucceedsWhenTheTierIsBackJustThen) {
  bool broken = true;
  tier_.answer_at_once = [&](const ScriptedTier::Call& call) {
    return broken && call.key.save.sequence == 1 ? Unavailable("gone") : absl::OkStatus();
  };
  Make();
  Enqueue(1);
  Enqueue(2);
  Settle();
  EXPECT_EQ(Outcome(2), absl::OkStatus());
  EXPECT_FALSE(flush_->degraded());
  EXPECT_EQ(flush_->last_error(), absl::OkStatus());
  EXPECT_EQ(Logged("event=flush_recovered"), 1u);
  EXPECT_TRUE(flush_->Idle());
  EXPECT_EQ(flush_->Describe(), "");
}

TEST_F(TierFlushTest, DegradedALaterSaveIsTriedOnceToo) {
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return Unavailable("gone"); };
  Make();
  Enqueue(1);
  Enqueue(2);
  Settle();
  const size_t begins = tier_.Count("begin");
  const sync::Nanos now = executor_->Now();
  Enqueue(3);
  Settle();
  EXPECT_TRUE(absl::IsUnavailable(Outcome(3)));
  EXPECT_EQ(tier_.Count("begin"), begins + 1);
  EXPECT_EQ(executor_->Now(), now);  // training with many saves does not wait for a dead tier each time
}

TEST_F(TierFlushTest, AfterARecoveryRetriesAreBackAndTheQueueGoesOn) {
  bool broken = true;
  tier_.answer_at_once = [&](const ScriptedTier::Call&) { return broken ? Unavailable("gone") : absl::OkStatus(); };
  Make();
  Enqueue(1);
  Settle();
  ASSERT_TRUE(flush_->degraded());
  broken = false;
  Enqueue(2);
  Enqueue(3);
  Enqueue(4);  // while 2 is in flight: 3 lapses, since the tier was still degraded
  Settle();
  EXPECT_EQ(Outcome(2), absl::OkStatus());
  EXPECT_THAT(std::string(Outcome(3).message()), HasSubstr("lapsed for a newer save: gone"));
  EXPECT_EQ(Outcome(4), absl::OkStatus());
  int failures = 2;
  tier_.answer_at_once = [&](const ScriptedTier::Call&) {
    return failures-- > 0 ? Unavailable("again") : absl::OkStatus();
  };
  Enqueue(5);
  Settle();
  EXPECT_EQ(Outcome(5), absl::OkStatus());
}

TEST_F(TierFlushTest, ARefusedCommitAbandonsTheImageWithoutRetries) {
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return absl::OkStatus(); };
  may_commit_ = Unavailable("superseded by life 4");
  Make();
  Enqueue(1);
  Enqueue(2);
  Settle();
  for (const uint64_t sequence : {1, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(Outcome(sequence)));
    EXPECT_THAT(std::string(Outcome(sequence).message()), HasSubstr("superseded by life 4"));
  }
  EXPECT_EQ(tier_.Count("commit"), 0u);
  EXPECT_EQ(tier_.Count("begin"), 2u);
  EXPECT_EQ(tier_.writers, 0);
  EXPECT_FALSE(flush_->degraded());
  EXPECT_EQ(executor_->Now(), 0);
}

TEST_F(TierFlushTest, CancelDropsWhatHasNotBegun) {
  Make();
  Enqueue(1);
  Enqueue(2);
  Enqueue(3);
  EXPECT_TRUE(flush_->Cancel(Key(2), Exhausted("replaced")));
  EXPECT_TRUE(absl::IsResourceExhausted(Outcome(2)));
  EXPECT_FALSE(flush_->Cancel(Key(2), Exhausted("replaced")));
  EXPECT_FALSE(flush_->Cancel(Key(1), Exhausted("replaced")));  // in flight
  EXPECT_FALSE(flush_->Cancel(Key(9), Exhausted("replaced")));
  AnswerAll();
  EXPECT_THAT(order_, ElementsAre(2, 1, 3));
  EXPECT_EQ(Outcome(1), absl::OkStatus());
  EXPECT_EQ(Outcome(3), absl::OkStatus());
}

TEST_F(TierFlushTest, DoneMayEnqueueTheNext) {
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return absl::OkStatus(); };
  Make();
  auto record = std::make_shared<format::CommitRecord>();
  record->key = Key(1);
  record->image_bytes = 100;
  flush_->Enqueue({record, std::span<const std::byte>(image_).first(100), [this](absl::Status) {
                     Enqueue(2);
                     Enqueue(3);
                   }});
  Settle();
  EXPECT_THAT(order_, ElementsAre(2, 3));
}

TEST_F(TierFlushTest, DoneMayDestroyTheFlush) {
  tier_.answer_at_once = [](const ScriptedTier::Call&) { return absl::OkStatus(); };
  Make();
  auto record = std::make_shared<format::CommitRecord>();
  record->key = Key(1);
  record->image_bytes = 100;
  flush_->Enqueue({record, std::span<const std::byte>(image_).first(100), [this](absl::Status) { flush_.reset(); }});
  Enqueue(2);
  Settle();
  EXPECT_EQ(flush_, nullptr);
  EXPECT_EQ(done_.count(2), 0u);
}

TEST_F(TierFlushTest, AnswersThatComeAfterTheDestructionAreHarmless) {
  // While each kind of answer is outstanding, and once each after it was posted.
  for (const char* what : {"begin", "write", "commit"}) {
    for (const bool posted : {false, true}) {
      Make();
      Enqueue(1, 200);
      Enqueue(2, 200);
      Settle();
      while (tier_.waiting.front().what != what) {
        tier_.Answer(0, absl::OkStatus());
        Settle();
      }
      if (posted) tier_.Answer(0, absl::OkStatus());
      flush_.reset();
      executor_ = sync::SimExecutor::Create(2);  // the old one is gone before the last answers come
      while (!tier_.waiting.empty()) tier_.Answer(0, absl::OkStatus());
      Settle();
      EXPECT_EQ(tier_.writers, 0) << what;
      EXPECT_THAT(done_, IsEmpty()) << what;
    }
  }
}

TEST_F(TierFlushTest, TimersThatFireAfterTheDestructionAreHarmless) {
  policy_.rate_bytes_per_s = 1000;
  tier_.answer_at_once = [](const ScriptedTier::Call& call) {
    return call.key == Key(1) ? Unavailable("no") : absl::OkStatus();
  };
  for (const uint64_t sequence : {1, 2}) {  // a pause before a retry, and a wait for the rate
    Make();
    Enqueue(sequence, 1000);
    for (int i = 0; i < 6; ++i) executor_->Step();
    const size_t calls = tier_.log.size();
    flush_.reset();
    Settle();
    EXPECT_EQ(tier_.log.size(), calls);
    EXPECT_THAT(done_, IsEmpty());
  }
}

// Whatever the order of answers and errors: done exactly once for each job, never two images at once, never beyond the
// depth.
TEST_F(TierFlushTest, RandomAnswersKeepTheInvariants) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    executor_ = sync::SimExecutor::Create(seed);
    done_.clear();
    policy_.timeout = 2 * sync::kSecond;
    Make();
    uint64_t enqueued = 0;
    while (enqueued < 20 || !flush_->Idle()) {
      const uint64_t dice = executor_->Random() % 10;
      if (enqueued < 20 && dice == 0) {
        Enqueue(++enqueued, executor_->Random() % 900);
      } else if (dice < 6 && !tier_.waiting.empty()) {
        tier_.Answer(executor_->Random() % tier_.waiting.size(),
                     executor_->Random() % 8 == 0 ? Unavailable("dice") : absl::OkStatus());
      } else {
        executor_->Step();
      }
      ASSERT_LE(tier_.waiting.size(), 3u);
      for (const auto& call : tier_.waiting) ASSERT_EQ(call.key, tier_.waiting.front().key);
    }
    ASSERT_EQ(done_.size(), 20u);
    for (const auto& [sequence, outcomes] : done_) ASSERT_EQ(outcomes.size(), 1u) << sequence;
    EXPECT_EQ(tier_.writers, 0);
  }
}

}  // namespace
}  // namespace neve::flush
