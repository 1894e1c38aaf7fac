// Kills, forks and signals: what is promised after the process is gone.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "engine/engine_fixture.h"

namespace neve {
namespace {

class LifecycleTest : public EngineTest {
 protected:
  // Runs `body` in a child and gives its wait status. The child leaves by _exit, so no destructor of the test runs there.
  template <typename Body>
  static pid_t Fork(Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      ::_exit(0);
    }
    return child;
  }
  static int WaitFor(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
};

TEST_F(LifecycleTest, DUR_01_AKilledTrainerComesBackFromRam) {
  constexpr int kRounds = 5;
  std::mt19937_64 random(std::random_device{}());
  const uint64_t seed = random();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  random.seed(seed);
  uint64_t last_seen = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string progress = folder_ + "/progress";
    const pid_t child = Fork([&] {
      if (!Open().ok()) ::_exit(9);
      TestState state(3, 200'000);
      uint64_t step = 0;
      if (auto image = engine_->Find({}); image.ok()) step = (*image)->info().step;
      while (true) {
        ++step;
        state.Set(static_cast<float>(step));
        auto ticket = Save(state, step);
        if (!ticket.ok() || !(*ticket)->Wait("ram", 60).ok()) ::_exit(8);
        std::ofstream(progress) << step << "\n";
      }
    });
    // Killed once it has made some progress; where it stands then is up to the scheduler.
    uint64_t reached = 0;
    const uint64_t wanted = last_seen + 1 + random() % 5;
    while (reached < wanted) {
      std::ifstream in(progress);
      uint64_t now = 0;
      if (in >> now) reached = now;
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "the trainer ended by itself: " << status;
      ::usleep(1000);
    }
    ::kill(child, SIGKILL);
    WaitFor(child);
    ASSERT_TRUE(Open().ok());
    auto image = engine_->Find({});
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_GE((*image)->info().step, reached);   // what was said to be in RAM is
    last_seen = (*image)->info().step;
    TestState state(3, 200'000);
    ASSERT_TRUE(ReadAll(**image, state).ok());
    EXPECT_TRUE(state.Holds(static_cast<float>(last_seen)));
    EXPECT_GT((*image)->Sources().at("ram"), 0u);
    image->reset();
    engine_.reset();
  }
}

TEST_F(LifecycleTest, ASY_03_AfterExitWithoutCloseTheSaveIsWholeOrAbsent) {
  const pid_t child = Fork([&] {
    if (!Open().ok()) ::_exit(9);
    TestState state(3, 500'000);
    state.Set(1);
    auto first = Save(state, 1);
    if (!first.ok() || !(*first)->Wait("done", 60).ok()) ::_exit(8);
    state.Set(2);
    if (!Save(state, 2).ok()) ::_exit(7);   // left in flight
  });
  EXPECT_EQ(WaitFor(child), 0);
  ASSERT_TRUE(Open().ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  const auto step = (*image)->info().step;
  EXPECT_TRUE(step == 1 || step == 2);
  TestState state(3, 500'000);
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(static_cast<float>(step)));
}

TEST_F(LifecycleTest, TheNextLifePersistsWhatTheKilledOneOwed) {
  const pid_t child = Fork([&] {
    if (!Open({"ram:", "file:" + folder_ + "?rate=1K"}).ok()) ::_exit(9);   // the file tier never gets there in time
    TestState state(3, 100'000);
    state.Set(5);
    auto ticket = Save(state, 5);
    if (!ticket.ok() || !(*ticket)->Wait("ram", 60).ok()) ::_exit(8);
  });
  EXPECT_EQ(WaitFor(child), 0);
  ASSERT_TRUE(Open({"ram:", "file:" + folder_}).ok());
  TestState state(3, 100'000);
  state.Set(6);
  SaveDone(state, 6);   // begins the life: adopts, and owes step 5 to the file tier
  ASSERT_TRUE(engine_->Drain(60).ok());
  auto old = engine_->Find({.step = 5});
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_TRUE((*old)->info().tiers.at("file").complete);
  ASSERT_TRUE(ReadAll(**old, state).ok());
  EXPECT_TRUE(state.Holds(5));
}

TEST_F(LifecycleTest, ASY_07_AForkedChildNeitherHangsNorWrites) {
  ASSERT_TRUE(Open({"ram:", "file:" + folder_ + "?rate=8M"}).ok());
  TestState state(3, 500'000);
  state.Set(1);
  auto ticket = Save(state, 1);
  ASSERT_TRUE(ticket.ok());
  for (int i = 0; i < 4; ++i) {
    const pid_t child = Fork([&] {
      ::alarm(30);
      auto refused = Save(state, 2);
      if (!absl::IsFailedPrecondition(refused.status())) ::_exit(3);
      if (!absl::IsFailedPrecondition(engine_->Close(true, 1))) ::_exit(4);
      engine_.reset();   // as an interpreter's exit would
    });
    EXPECT_EQ(WaitFor(child), 0);
  }
  EXPECT_TRUE((*ticket)->Wait("file", 60).ok()) << (*ticket)->Error();
}

TEST_F(LifecycleTest, ASY_08_SigtermPersistsTheNewestThenTheEarlierHandlerRuns) {
  const std::string told = folder_ + "/handler-ran";
  for (const bool with_handler : {true, false}) {
    const pid_t child = Fork([&] {
      static std::string path;
      path = told;
      if (with_handler) {
        ::signal(SIGTERM, [](int) {
          ::_exit(::open(path.c_str(), O_CREAT | O_WRONLY, 0600) >= 0 ? 42 : 9);
        });
      }
      EngineOptions options;
      options.folder = job();
      options.grace_s = 30;
      options.tiers = {ParseTier("ram:").value(), ParseTier("file:" + folder_ + "?every=1000").value()};
      engine_ = Engine::Open(options).value();
      TestState state;
      state.Set(with_handler ? 7 : 8);
      auto ticket = Save(state, with_handler ? 7 : 8);   // due in RAM only
      if (!ticket.ok() || !(*ticket)->Wait("ram", 60).ok()) ::_exit(8);
      ::kill(::getpid(), SIGTERM);
      while (true) ::pause();
    });
    const int status = WaitFor(child);
    if (with_handler) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
      EXPECT_TRUE(std::filesystem::exists(told));
    } else {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
    }
    std::filesystem::remove_all(ram_);   // only what was persisted is left
    ASSERT_TRUE(Open({"file:" + folder_}).ok());
    auto image = engine_->Find({});
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ((*image)->info().step, with_handler ? 7u : 8u);
    image->reset();
    engine_.reset();
  }
}

}  // namespace
}  // namespace neve
