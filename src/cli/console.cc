#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "cli/text.h"

namespace neve::cli {
namespace {

constexpr size_t kPendingMax = 64u << 10;
constexpr sync::Nanos kFirstDraw = sync::kSecond, kRedraw = 200 * sync::kMillisecond;
constexpr const char* kEraseLine = "\r\x1b[K";

const char* CodeOf(Style style) {
  switch (style) {
    case Style::kPlain: return "";
    case Style::kBold: return "\x1b[1m";
    case Style::kDim: return "\x1b[2m";
    case Style::kGood: return "\x1b[32m";
    case Style::kBad: return "\x1b[31m";
    case Style::kWarn: return "\x1b[33m";
  }
  return "";
}

bool WantsColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

}  // namespace

Console::Console() : executor_(sync::ThreadExecutor::Create({.name = "neve-console", .background = false})) {
  std::signal(SIGPIPE, SIG_IGN);   // a reader that has gone shows as EPIPE
}

Console::~Console() {
  EndProgress();
  executor_->Stop();
}

void Console::Out(std::string_view text) {
  if (quiet) return;
  if (json) return Write(STDERR_FILENO, text);
  pending_ += text;
  if (pending_.size() >= kPendingMax) {
    const std::string full = std::exchange(pending_, {});
    Write(STDOUT_FILENO, full);
  }
}

void Console::Document(const Json& document) {
  documented_ = true;
  // Names of files need not be UTF-8; such bytes are shown as U+FFFD rather than refused.
  Write(STDOUT_FILENO, document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Console::Note(std::string_view text) {
  if (quiet) return;
  Write(STDERR_FILENO, absl::StrFormat("note: %s\n", EscapedMessage(text)));
}

void Console::Error(const absl::Status& status) {
  EndProgress();
  error_ = EscapedMessage(std::string(status.message()));
  Write(STDERR_FILENO, absl::StrFormat("neve: %s\n", error_));
}

bool Console::out_is_terminal() const { return ::isatty(json ? STDERR_FILENO : STDOUT_FILENO) == 1; }

size_t Console::columns() const {
  struct ::winsize size {};
  if (out_is_terminal() && ::ioctl(json ? STDERR_FILENO : STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) {
    return size.ws_col;
  }
  return 80;
}

std::string Console::Styled(std::string_view text, Style style) const {
  static const bool wants = WantsColour();
  if (style == Style::kPlain || !wants || !out_is_terminal()) return std::string(text);
  return std::string(CodeOf(style)) + std::string(text) + "\x1b[0m";
}

int64_t Console::WallSeconds() const { return executor_->WallSeconds(); }

std::function<void(uint64_t, uint64_t)> Console::ProgressOf(std::string_view verb) {
  if (quiet || ::isatty(STDERR_FILENO) != 1) return {};
  progress_verb_ = verb;
  done_ = 0;
  total_ = 0;
  progress_began_ = executor_->Now();
  progress_on_ = true;
  executor_->PostAfter(kFirstDraw, [this] { Draw(); });
  return [this](uint64_t done, uint64_t total) {
    total_.store(total, std::memory_order_relaxed);
    done_.store(done, std::memory_order_relaxed);
  };
}

void Console::EndProgress() {
  if (!progress_on_.exchange(false)) return;
  executor_->Run([this] {
    if (bar_shown_) Write(STDERR_FILENO, kEraseLine);
    bar_shown_ = false;
  });
}

// Runs on the executor only.
void Console::Draw() {
  if (!progress_on_) return;
  const uint64_t total = total_.load(std::memory_order_relaxed);
  const uint64_t done = std::min(done_.load(std::memory_order_relaxed), total);
  const double seconds = static_cast<double>(executor_->Now() - progress_began_) / sync::kSecond;
  if (total > 0 && done > 0 && seconds > 0) {
    constexpr size_t kBar = 24;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const double rate = static_cast<double>(done) / seconds;
    const size_t filled = static_cast<size_t>(share * kBar);
    Write(STDERR_FILENO, absl::StrFormat("%s%s [%s%s] %3d%%  %s of %s  %s/s  %s left", kEraseLine, progress_verb_,
                                         std::string(filled, '#'), std::string(kBar - filled, '.'),
                                         static_cast<int>(share * 100), HumanBytes(done), HumanBytes(total),
                                         HumanBytes(static_cast<uint64_t>(rate)),
                                         HumanAge(static_cast<int64_t>(static_cast<double>(total - done) / rate) + 1)));
    bar_shown_ = true;
  }
  executor_->PostAfter(kRedraw, [this] { Draw(); });
}

absl::Status Console::Flush() {
  if (json && !documented_) Document({{"error", error_}});
  const std::string rest = std::exchange(pending_, {});
  if (!rest.empty()) Write(STDOUT_FILENO, rest);
  return out_status_;
}

void Console::Write(int fd, std::string_view text) {
  if (fd == STDOUT_FILENO && out_closed_) return;
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      if (fd != STDOUT_FILENO) return;   // nobody is left to be told
      out_closed_ = true;
      if (errno != EPIPE) out_status_ = Unavailable(absl::StrFormat("cannot write the output (errno %d)", errno), errno);
      return;
    }
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace neve::cli
