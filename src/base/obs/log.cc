#include "base/obs/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/sync/mutex.h"

namespace neve::obs {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};

int LevelOfEnvironment() {
  const char* text = std::getenv("NEVE_LOG");
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), text != nullptr ? text : "warning");
  return found != std::end(kNames) ? static_cast<int>(found - std::begin(kNames)) : static_cast<int>(Level::kWarning);
}

std::atomic<int>& CurrentLevel() {
  static std::atomic<int> level{LevelOfEnvironment()};
  return level;
}

// Read without a lock, so that a child forked while another thread was logging can log too.
std::atomic<const Sink*> current_sink{nullptr};

void WriteToStderr(Level level, const std::string& message) {
  // One write a line: lines of several threads and ranks do not mix.
  std::string line = "neve " + std::string(kNames[static_cast<int>(level)]) + ": " + message + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void Log(Level level, const std::string& message) {
  if (!Enabled(level)) return;
  std::string line = message;  // one event, one line, even when a file name in it holds a newline
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  const Sink* const sink = current_sink.load(std::memory_order_acquire);
  if (sink != nullptr) {
    (*sink)(level, line);
  } else {
    WriteToStderr(level, line);
  }
}

bool Enabled(Level level) {
  return level != Level::kOff && static_cast<int>(level) >= CurrentLevel().load(std::memory_order_relaxed);
}

void SetLevel(Level level) { CurrentLevel().store(static_cast<int>(level), std::memory_order_relaxed); }

void SetSink(Sink sink) {
  // Replaced sinks are kept: a thread may still be in one, and there are only ever a few.
  static sync::Mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<const Sink>>();
  sync::MutexLock lock(mutex);
  if (!sink) {
    current_sink.store(nullptr, std::memory_order_release);
    return;
  }
  kept.push_back(std::make_unique<const Sink>(std::move(sink)));
  current_sink.store(kept.back().get(), std::memory_order_release);
}

}  // namespace neve::obs
