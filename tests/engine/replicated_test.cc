// State that all ranks hold alike: who keeps what, who is told what, and who may restore it.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "base/obs/log.h"
#include "base/sync/mutex.h"
#include "engine/many_ranks_fixture.h"

namespace neve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReplicatedTest : public ManyRanksTest {
 protected:
  void OpenReplicated(uint32_t world) {
    OpenWorld(world, [](uint32_t, EngineOptions& options) { options.replicated = true; });
    ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  }
  // The same state on every rank: rank 0's.
  std::shared_ptr<Ticket> SaveSame(uint32_t rank, uint64_t step, std::vector<std::string> to = {}) {
    ranks_[rank].state.Set(ValueOf(step, 0));
    SaveRequest request;
    request.step = step;
    request.state = ranks_[rank].state.state;
    request.addresses = ranks_[rank].state.addresses;
    request.to = std::move(to);
    auto ticket = ranks_[rank].engine->Save(request);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return nullptr;
    EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    return *ticket;
  }
  void SaveSameOnAll(uint64_t step) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) SaveSame(rank, step);
  }
  void ExpectSame(uint64_t step, const std::string& source, const FindRequest& request = {}) {
    OnEach([&](uint32_t rank) {
      auto image = ranks_[rank].engine->Find(request);
      ASSERT_TRUE(image.ok()) << image.status();
      EXPECT_EQ((*image)->info().step, step);
      TestState state(2, 5000);
      const absl::Status read = ReadAll(**image, state);
      EXPECT_TRUE(state.Holds(ValueOf(step, 0)));
      EXPECT_GT((*image)->Sources()[source], 0u);
      EXPECT_EQ(ranks_[rank].engine->Agree(read), absl::OkStatus());
    });
  }
  size_t Slots() const {
    size_t slots = 0;
    if (!std::filesystem::exists(ram_)) return 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(ram_)) slots += entry.is_regular_file() ? 1 : 0;
    return slots;
  }
  std::vector<std::string> Shards() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
      if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
    }
    return names;
  }
  static std::vector<std::string> StagesOf(const Ticket& ticket) {
    std::vector<std::string> names;
    for (const auto& [name, state] : ticket.Stages()) names.push_back(name);
    return names;
  }
};

TEST_F(ReplicatedTest, OneRankKeepsItInRamAndRankZeroWritesIt) {
  tiers_ = {"ram:?slots=2", "file:" + folder_};
  OpenReplicated(3);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (uint32_t rank = 0; rank < 3; ++rank) tickets.push_back(SaveSame(rank, 1));
  EXPECT_THAT(StagesOf(*tickets[0]), ElementsAre("captured", "ram", "file", "done", "complete"));
  EXPECT_THAT(StagesOf(*tickets[2]), ElementsAre("captured", "done", "complete"));
  for (const auto& ticket : tickets) {
    for (const char* stage : {"complete", "complete:file", "complete:ram"}) EXPECT_EQ(ticket->Wait(stage, 60), absl::OkStatus()) << stage;
    EXPECT_EQ(ticket->save_id(), tickets[0]->save_id());
  }
  const absl::Status not_here = tickets[1]->Wait("file", 60);
  EXPECT_TRUE(absl::IsInvalidArgument(not_here)) << not_here;
  EXPECT_THAT(std::string(not_here.message()), AllOf(HasSubstr("another rank's"), HasSubstr("\"complete:file\"")));
  EXPECT_THAT(Shards(), ElementsAre("shard-00000-of-00001.safetensors"));
  EXPECT_THAT(ranks_[0].engine->HealthJson(), HasSubstr(R"("keeps":["ram","file"])"));
  EXPECT_THAT(ranks_[1].engine->HealthJson(), AllOf(HasSubstr(R"("keeps":[])"), HasSubstr(R"("slots":0)")));
  ExpectSame(1, "ram");
}

TEST_F(ReplicatedTest, CompleteIsNotReachedBeforeRankZeroHasCommitted) {
  tiers_ = {"file:" + folder_};
  OpenReplicated(2);
  const auto second = SaveSame(1, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(second->Wait("complete", 0.1)));
  SaveSame(0, 1);
  EXPECT_EQ(second->Wait("complete", 60), absl::OkStatus());
}

TEST_F(ReplicatedTest, AnyNumberOfRanksRestoresIt) {
  tiers_ = {"ram:", "file:" + folder_};
  OpenReplicated(3);
  SaveSameOnAll(1);
  for (const uint32_t world : {5u, 1u}) {
    OpenReplicated(world);
    ExpectSame(1, "ram");
  }
  std::filesystem::remove_all(ram_);
  for (const uint32_t world : {2u, 3u, 1u}) {
    OpenReplicated(world);
    ExpectSame(1, "file");
    OpenWorld(world);   // ranks that say nothing of it
    ASSERT_NO_FATAL_FAILURE(ExpectOpen());
    ExpectSame(1, "file");
  }
}

TEST_F(ReplicatedTest, AJobGoesOverToItAndBack) {
  tiers_ = {"ram:", "file:" + folder_};
  OpenWorld(2);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  SaveOnAll(1);
  OpenReplicated(2);
  ExpectRestored(1);   // each rank its own
  SaveSameOnAll(2);
  ExpectSame(2, "ram");
  OpenWorld(2);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  ExpectSame(2, "ram");
  SaveOnAll(3);
  OpenReplicated(2);
  ExpectRestored(3);
}

TEST_F(ReplicatedTest, CloseWritesTheNewestAndFreesTheSlots) {
  tiers_ = {"ram:", "file:" + folder_ + "?every=100"};
  OpenReplicated(3);
  for (uint64_t step = 1; step <= 3; ++step) SaveSameOnAll(step);
  EXPECT_EQ(Slots(), 3u);
  OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 60), absl::OkStatus()); });
  EXPECT_EQ(Slots(), 0u);
  OpenReplicated(2);
  ExpectSame(3, "file");
}

TEST_F(ReplicatedTest, RankZeroAloneRetires) {
  tiers_ = {"file:" + folder_ + "?keep=1"};
  OpenReplicated(2);
  for (uint64_t step = 1; step <= 4; ++step) SaveSameOnAll(step);
  for (Rank& rank : ranks_) ASSERT_TRUE(rank.engine->Drain(60).ok());
  EXPECT_THAT(StepsWithRank(0), ElementsAre(4));
  ASSERT_EQ(ranks_[1].engine->SetPinned(4, true), absl::OkStatus());
  SaveSameOnAll(5);
  SaveSameOnAll(6);
  for (Rank& rank : ranks_) ASSERT_TRUE(rank.engine->Drain(60).ok());
  EXPECT_THAT(StepsWithRank(0), ElementsAre(4, 6));
}

TEST_F(ReplicatedTest, ASaveWithoutRankZeroIsNone) {
  tiers_ = {"file:" + folder_};
  OpenReplicated(2);
  SaveSameOnAll(1);
  SaveSame(1, 2);   // rank 0 died before it
  OpenReplicated(2);
  ExpectSame(1, "file");
  EXPECT_EQ(SaveSame(0, 2)->save_id(), SaveSame(1, 2)->save_id());
}

TEST_F(ReplicatedTest, NothingIsMadeByARankThatKeepsNothing) {
  tiers_ = {"ram:", "file:" + folder_};
  OpenReplicated(2);
  EXPECT_EQ(ranks_[1].engine->Prepare(ranks_[1].state.state, ranks_[1].state.addresses, 0, {}), absl::OkStatus());
  SaveSame(1, 1);
  EXPECT_EQ(Slots(), 0u);
  EXPECT_FALSE(std::filesystem::exists(job()));
}

TEST_F(ReplicatedTest, PiecesAreRefusedByName) {
  OpenReplicated(2);
  RowState rows(kRows, 1, 2);
  SaveRequest request;
  request.step = 1;
  request.state = rows.state;
  request.addresses = rows.addresses;
  const absl::Status refused = ranks_[1].engine->Save(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("\"rows\""), HasSubstr("replicated")));
  RowState whole(kRows, 0, 1);   // a piece that is all of it
  request.state = whole.state;
  request.addresses = whole.addresses;
  EXPECT_TRUE(ranks_[0].engine->Save(request).ok());
}

TEST_F(ReplicatedTest, RanksThatOpenOtherwiseAreNamed) {
  OpenWorld(3, [](uint32_t rank, EngineOptions& options) { options.replicated = rank != 2; });
  for (const Rank& rank : ranks_) {
    EXPECT_TRUE(absl::IsInvalidArgument(rank.opened)) << rank.opened;
    EXPECT_THAT(std::string(rank.opened.message()), HasSubstr("rank 0 opens with replicated, rank 2 without"));
  }
}

// What was logged, for a test to wait for.
class Logged {
 public:
  Logged() {
    obs::SetSink([this](obs::Level, const std::string& message) {
      sync::MutexLock lock(mutex_);
      lines_.push_back(message);
      changed_.NotifyAll();
    });
  }
  ~Logged() { obs::SetSink(nullptr); }
  // The first line with that text; "" after a minute without one.
  std::string WaitFor(const std::string& text) {
    sync::MutexLock lock(mutex_);
    if (!changed_.WaitFor(mutex_, 60, [&]() NEVE_REQUIRES(mutex_) { return CountLocked(text) > 0; })) return "";
    return *std::find_if(lines_.begin(), lines_.end(), [&](const std::string& line) { return line.find(text) != line.npos; });
  }
  size_t Count(const std::string& text) {
    sync::MutexLock lock(mutex_);
    return CountLocked(text);
  }

 private:
  size_t CountLocked(const std::string& text) const NEVE_REQUIRES(mutex_) {
    size_t count = 0;
    for (const std::string& line : lines_) count += line.find(text) != line.npos ? 1 : 0;
    return count;
  }

  sync::Mutex mutex_;
  sync::Condition changed_;
  std::vector<std::string> lines_ NEVE_GUARDED_BY(mutex_);
};

TEST_F(ReplicatedTest, RanksOfOneHostThatSaveTheSameAreToldOfItOnce) {
  static Logged logged;   // outlives the engines' threads
  tiers_ = {"ram:"};
  OpenWorld(3);
  ASSERT_NO_FATAL_FAILURE(ExpectOpen());
  SaveOn(1, 1);   // its own
  for (const uint32_t rank : {0u, 2u}) SaveSame(rank, 1);
  EXPECT_THAT(logged.WaitFor("event=replicas_saved"), AllOf(HasSubstr("ranks=0,2"), HasSubstr("replicated=True")));
  for (uint64_t step = 2; step <= 3; ++step) SaveSameOnAll(step);
  OnEach([&](uint32_t rank) { EXPECT_EQ(ranks_[rank].engine->Close(true, 60), absl::OkStatus()); });
  EXPECT_EQ(logged.Count("event=replicas_saved"), 1u);
  ranks_.clear();
  obs::SetSink(nullptr);
}

TEST_F(ReplicatedTest, OneRankAloneIsLikeAnyOther) {
  OpenReplicated(1);
  EXPECT_THAT(StagesOf(*SaveSame(0, 1)), ElementsAre("captured", "ram", "file", "done", "complete"));
  ExpectSame(1, "ram");
}

}  // namespace
}  // namespace neve
