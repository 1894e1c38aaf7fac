// Up to 512 ranks in one thread: a store that is late, fails and forgets; ranks that come late, die and leave. Whoever gets an
// answer gets the same as everybody, made of messages of this very life and round.
//
// A failing history prints its seed; `SEED=<seed> group_test` runs it alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>

#include "absl/strings/str_format.h"
#include "group/exchange.h"
#include "support/sim_store.h"

namespace neve::group {
namespace {

struct Tally {
  uint64_t agreed = 0, failed = 0, deaths = 0, lives = 0, largest = 0;
};

class History {
 public:
  History(uint64_t seed, Tally* tally) : executor_(sync::SimExecutor::Create(seed)), tally_(*tally) {}

  std::string Run() {
    const uint32_t worlds[] = {2, 3, 4, 8, 17, 64, 512};
    const uint64_t pick = executor_->Random() % 100;
    const uint32_t world = worlds[pick < 95 ? pick % 6 : 6];
    tally_.largest = std::max<uint64_t>(tally_.largest, world);
    faults_.visible_after_max = Chance(70) ? sync::kSecond * static_cast<sync::Nanos>(1 + executor_->Random() % 5) : 0;
    faults_.failing_percent = Chance(40) ? executor_->Random() % 20 : 0;
    store_ = std::make_shared<testing::SimStoreState>(*executor_, faults_);
    const int lives = world > 64 ? 1 : 1 + static_cast<int>(executor_->Random() % 3);
    for (int life = 0; life < lives && failure_.empty(); ++life) Live(world, life);
    return failure_;
  }

 private:
  struct Rank {
    std::unique_ptr<testing::SimStore> store;
    std::unique_ptr<Exchange> exchange;
    int round = 0;
    bool dead = false;
  };
  static constexpr int kRounds = 3;
  static constexpr sync::Nanos kDeadline = 60 * sync::kSecond;

  bool Chance(uint64_t percent) { return executor_->Random() % 100 < percent; }
  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  std::string MessageOf(uint32_t rank, int round) const { return absl::StrFormat("life %d round %d rank %d", life_, round, rank); }

  void Live(uint32_t world, int life) {
    life_ = life;
    ++tally_.lives;
    ranks_.clear();
    ranks_.resize(world);
    results_.assign(kRounds, {});
    deaths_ = false;
    for (uint32_t rank = 0; rank < world; ++rank) {
      Rank& self = ranks_[rank];
      self.store = std::make_unique<testing::SimStore>(store_, ++processes_);
      self.exchange = std::make_unique<Exchange>(
          *self.store, Self{rank, world, absl::StrFormat("process %d", processes_), absl::StrFormat("%016x", processes_)},
          absl::StrFormat("%x", 0xabc0000 + processes_));
      executor_->PostAfter(static_cast<sync::Nanos>(executor_->Random() % (10 * sync::kSecond)), [this, rank] { Begin(rank); });
    }
    if (Chance(30)) {
      const uint32_t victim = static_cast<uint32_t>(executor_->Random() % world);
      executor_->PostAfter(static_cast<sync::Nanos>(executor_->Random() % (60 * sync::kSecond)), [this, victim] {
        ranks_[victim].dead = deaths_ = true;
        ++tally_.deaths;
      });
    }
    executor_->RunUntilIdle();
    for (int round = 0; round < kRounds && !deaths_ && failure_.empty(); ++round) {
      if (results_[round].size() != world) Fail(absl::StrFormat("round %d of life %d: not every rank came to an end", round, life));
    }
  }

  void Begin(uint32_t rank) {
    Rank& self = ranks_[rank];
    if (self.dead || self.round == kRounds) return;
    const sync::Nanos now = executor_->Now();
    self.exchange->Begin("what " + std::to_string(self.round), MessageOf(rank, self.round), now, now + kDeadline);
    Poll(rank);
  }

  void Poll(uint32_t rank) {
    Rank& self = ranks_[rank];
    if (self.dead) return;
    auto outcome = self.exchange->Poll(executor_->Now());
    if (!outcome.has_value()) {
      const sync::Nanos pause = sync::kSecond / 10 + static_cast<sync::Nanos>(executor_->Random() % sync::kSecond);
      executor_->PostAfter(pause, [this, rank] { Poll(rank); });
      return;
    }
    Ended(rank, *outcome);
    ++self.round;
    if (outcome->ok()) Begin(rank);   // a real rank raises else
  }

  void Ended(uint32_t rank, const absl::StatusOr<std::vector<std::string>>& outcome) {
    const int round = ranks_[rank].round;
    results_[round].insert(rank);
    if (!outcome.ok()) {
      ++tally_.failed;
      if (!deaths_) Fail(absl::StrFormat("life %d round %d rank %d: %s", life_, round, rank, outcome.status().ToString()));
      return;
    }
    ++tally_.agreed;
    if (outcome->size() != ranks_.size()) return Fail("an answer of another size");
    for (uint32_t other = 0; other < ranks_.size(); ++other) {
      if ((*outcome)[other] != MessageOf(other, round)) {
        return Fail(absl::StrFormat("life %d round %d: rank %d got \"%s\" for rank %d", life_, round, rank, (*outcome)[other], other));
      }
    }
  }

  std::unique_ptr<sync::SimExecutor> executor_;
  Tally& tally_;
  testing::SimStoreFaults faults_;
  std::shared_ptr<testing::SimStoreState> store_;
  std::string failure_;
  std::vector<Rank> ranks_;
  std::vector<std::set<uint32_t>> results_;
  uint32_t processes_ = 0;
  int life_ = 0;
  bool deaths_ = false;
};

// Ranks that begin their next life as soon as they have the last answer of this one, whoever still waits for it.
class HastyLives {
 public:
  explicit HastyLives(uint64_t seed) : executor_(sync::SimExecutor::Create(seed)) {
    faults_.visible_after_max = executor_->Random() % 2 == 0 ? 0 : static_cast<sync::Nanos>(executor_->Random() % (5 * sync::kSecond));
    store_ = std::make_shared<testing::SimStoreState>(*executor_, faults_);
    const uint32_t worlds[] = {2, 3, 8};
    world_ = worlds[executor_->Random() % 3];
  }

  std::string Run() {
    ranks_.resize(world_);
    for (uint32_t rank = 0; rank < world_; ++rank) NextLife(rank);
    executor_->RunUntilIdle();
    for (uint32_t rank = 0; rank < world_ && failure_.empty(); ++rank) {
      if (ranks_[rank].life != kLives) failure_ = absl::StrFormat("rank %d ended in life %d", rank, ranks_[rank].life);
    }
    return failure_;
  }
  // How often rank 0 was a life ahead of another rank.
  uint64_t ahead() const { return ahead_; }

 private:
  static constexpr int kLives = 4, kRounds = 2;
  struct Rank {
    std::unique_ptr<testing::SimStore> store;
    std::unique_ptr<Exchange> exchange;
    int life = 0, round = 0;
  };

  void NextLife(uint32_t rank) {
    Rank& self = ranks_[rank];
    self.exchange.reset();
    self.store = std::make_unique<testing::SimStore>(store_, ++processes_);
    self.exchange = std::make_unique<Exchange>(
        *self.store, Self{rank, world_, absl::StrFormat("process %d", processes_), absl::StrFormat("%016x", processes_)},
        absl::StrFormat("%x", 0xabc0000 + processes_));
    self.round = 0;
    if (rank == 0) {
      for (const Rank& other : ranks_) ahead_ += &other != &self && other.life < self.life ? 1 : 0;
    }
    Begin(rank);
  }
  void Begin(uint32_t rank) {
    const sync::Nanos now = executor_->Now();
    ranks_[rank].exchange->Begin("what", absl::StrFormat("life %d round %d rank %d", ranks_[rank].life, ranks_[rank].round, rank), now,
                                 now + 120 * sync::kSecond);
    Poll(rank);
  }
  void Poll(uint32_t rank) {
    Rank& self = ranks_[rank];
    const auto outcome = self.exchange->Poll(executor_->Now());
    if (!outcome.has_value()) {
      executor_->PostAfter(sync::kSecond / 100 + static_cast<sync::Nanos>(executor_->Random() % (3 * sync::kSecond)),
                           [this, rank] { Poll(rank); });
      return;
    }
    if (!outcome->ok()) {
      failure_ = absl::StrFormat("life %d round %d rank %d: %s", self.life, self.round, rank, outcome->status().ToString());
      return;
    }
    for (uint32_t other = 0; other < world_; ++other) {
      if ((**outcome)[other] == absl::StrFormat("life %d round %d rank %d", self.life, self.round, other)) continue;
      failure_ = absl::StrFormat("rank %d in life %d got \"%s\"", rank, self.life, (**outcome)[other]);
      return;
    }
    if (++self.round < kRounds) return Begin(rank);
    if (++self.life < kLives) NextLife(rank);
  }

  std::unique_ptr<sync::SimExecutor> executor_;
  testing::SimStoreFaults faults_;
  std::shared_ptr<testing::SimStoreState> store_;
  uint32_t world_ = 0, processes_ = 0;
  std::vector<Rank> ranks_;
  uint64_t ahead_ = 0;
  std::string failure_;
};

TEST(ExchangeSimulation, ALifeThatBeginsAtOnceLeavesSlowerRanksTheLastAnswerOfTheOneBefore) {
  const uint64_t first = (uint64_t{std::random_device{}()} << 20) + 1;
  std::printf("200 histories from seed %llu on\n", static_cast<unsigned long long>(first));
  uint64_t ahead = 0;
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    HastyLives lives(seed);
    ASSERT_EQ(lives.Run(), "") << "seed " << seed;
    ahead += lives.ahead();
  }
  EXPECT_GT(ahead, 0u);
}

TEST(ExchangeSimulation, WhoeverGetsAnAnswerGetsTheSameOfThisLife) {
  Tally tally;
  if (const char* seed = std::getenv("SEED"); seed != nullptr) {
    EXPECT_EQ(History(std::strtoull(seed, nullptr, 10), &tally).Run(), "");
    return;
  }
  const uint64_t histories = std::getenv("NEVE_LONG") != nullptr ? 20'000 : 200;
  const uint64_t first = (uint64_t{std::random_device{}()} << 20) + 1;
  std::printf("%llu histories from seed %llu on\n", static_cast<unsigned long long>(histories), static_cast<unsigned long long>(first));
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    ASSERT_EQ(History(seed, &tally).Run(), "") << "replay this history alone with SEED=" << seed;
  }
  EXPECT_GT(tally.agreed, 0u);
  EXPECT_GT(tally.failed, 0u);
  EXPECT_GT(tally.deaths, 0u);
  EXPECT_EQ(tally.largest, 512u);
  std::printf("  lives %llu, agreed %llu, failed %llu, deaths %llu\n", static_cast<unsigned long long>(tally.lives),
              static_cast<unsigned long long>(tally.agreed), static_cast<unsigned long long>(tally.failed),
              static_cast<unsigned long long>(tally.deaths));
}

}  // namespace
}  // namespace neve::group
