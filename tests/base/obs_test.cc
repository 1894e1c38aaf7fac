#include <stdlib.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/obs/log.h"
#include "base/obs/metrics.h"

namespace neve::obs {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using ::testing::Pair;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    SetSink(nullptr);
    SetLevel(Level::kWarning);
  }
  void Capture() {
    SetSink([this](Level level, const std::string& message) {
      std::lock_guard<std::mutex> lock(mutex_);
      lines_.emplace_back(level, message);
    });
  }
  std::mutex mutex_;
  std::vector<std::pair<Level, std::string>> lines_;
};

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  Capture();
  SetLevel(Level::kWarning);
  Log(Level::kInfo, "info");
  Log(Level::kWarning, "warning");
  Log(Level::kError, "error");
  EXPECT_THAT(lines_, ElementsAre(Pair(Level::kWarning, "warning"), Pair(Level::kError, "error")));
  EXPECT_FALSE(Enabled(Level::kInfo));
  EXPECT_TRUE(Enabled(Level::kError));
}

TEST_F(LogTest, OffDropsAll) {
  Capture();
  SetLevel(Level::kOff);
  Log(Level::kError, "error");
  EXPECT_FALSE(Enabled(Level::kOff));
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, OneEventStaysOneLine) {
  Capture();
  Log(Level::kError, "file=a\nb\rc");
  EXPECT_THAT(lines_, ElementsAre(Pair(Level::kError, "file=a b c")));
}

TEST_F(LogTest, WithoutASinkLinesGoToStderr) {
  Capture();
  SetSink(nullptr);
  ::testing::internal::CaptureStderr();
  Log(Level::kError, "event=test rank=3");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "neve error: event=test rank=3\n");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, SinkMayBeReplacedWhileOthersLog) {
  Capture();
  std::vector<std::thread> loggers;
  for (int i = 0; i < 3; ++i) {
    loggers.emplace_back([] {
      for (int k = 0; k < 200; ++k) Log(Level::kError, "x");
    });
  }
  for (int k = 0; k < 20; ++k) Capture();
  for (std::thread& logger : loggers) logger.join();
  EXPECT_EQ(lines_.size(), 600u);
}

// The level of the environment is read once in a process, so each case asks a fresh one: this style of death test starts
// the binary anew.
TEST_F(LogTest, LevelComesFromTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"debug", "DIWE"}, {"info", "IWE"}, {"warning", "WE"},  {"error", "E"},
      {"off", ""},       {nullptr, "WE"}, {"nonsense", "WE"},
  };
  for (const auto& [value, enabled] : cases) {
    EXPECT_EXIT(
        {
          if (value != nullptr) {
            ::setenv("NEVE_LOG", value, 1);
          } else {
            ::unsetenv("NEVE_LOG");
          }
          std::string text = "levels=";
          if (Enabled(Level::kDebug)) text += "D";
          if (Enabled(Level::kInfo)) text += "I";
          if (Enabled(Level::kWarning)) text += "W";
          if (Enabled(Level::kError)) text += "E";
          text += ".\n";
          [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
          ::_exit(0);
        },
        ::testing::ExitedWithCode(0), "levels=" + enabled + "\\.");
  }
}

TEST(Metrics, CountWhatIsAdded) {
  Metrics metrics;
  EXPECT_EQ(metrics.Get(Metric::kCaptureBytes), 0u);
  metrics.Add(Metric::kCaptureBytes, 40);
  metrics.Add(Metric::kCaptureBytes);
  EXPECT_EQ(metrics.Get(Metric::kCaptureBytes), 41u);
  EXPECT_EQ(metrics.Get(Metric::kSavesStarted), 0u);
}

TEST(Metrics, LoseNothingUnderThreads) {
  Metrics metrics;
  std::vector<std::thread> adders;
  for (int i = 0; i < 4; ++i) {
    adders.emplace_back([&] {
      for (int k = 0; k < 10'000; ++k) metrics.Add(Metric::kFileRetries);
    });
  }
  for (std::thread& adder : adders) adder.join();
  EXPECT_EQ(metrics.Get(Metric::kFileRetries), 40'000u);
}

TEST(Metrics, EachHasANameOfItsOwnThatEndsInItsUnit) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(Metric::kCount); ++i) {
    const std::string name(Name(static_cast<Metric>(i)));
    EXPECT_THAT(name, MatchesRegex("[a-z_]+_(count|bytes_total|ns_total)"));
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(Name(Metric::kCount), "");
  EXPECT_EQ(Name(Metric::kSavesStarted), "saves_started_count");
  EXPECT_EQ(Name(Metric::kCaptureBytes), "capture_bytes_total");
}

}  // namespace
}  // namespace neve::obs
