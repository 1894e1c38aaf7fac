// Where the command writes: people's text, the JSON document, notes, and a progress bar. One object a run, made by main.
//
//   Out        people's text: stdout, or stderr when --json was given; nothing with --quiet
//   Document   the one JSON document on stdout; a verb that fails before it has one leaves {"error":MESSAGE}
//   Note       what was met on the way: stderr; nothing with --quiet
//   Error      why the verb failed: stderr, always
//
// A pipe whose reader has gone is no error: what is left is dropped, the exit code stays the verb's.
#ifndef NEVE_CLI_CONSOLE_H_
#define NEVE_CLI_CONSOLE_H_

#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/sync/executor.h"

namespace neve::cli {

using Json = nlohmann::ordered_json;

enum class Style : uint8_t { kPlain, kBold, kDim, kGood, kBad, kWarn };

class Console {
 public:
  Console();
  ~Console();

  bool json = false;
  bool quiet = false;

  void Out(std::string_view text);
  void Document(const Json& document);
  void Note(std::string_view text);
  void Error(const absl::Status& status);

  // Marked up for the stream that Out writes to: a terminal without NO_COLOR.
  std::string Styled(std::string_view text, Style style) const;
  bool out_is_terminal() const;
  size_t columns() const;                  // of that terminal; 80 where there is none

  int64_t WallSeconds() const;

  // Draws on stderr, when that is a terminal, from the second second on: done, rate, time left. From any thread.
  std::function<void(uint64_t done, uint64_t total)> ProgressOf(std::string_view verb);
  void EndProgress();

  // OK, or why stdout could not take what was written (a full disk).
  absl::Status Flush();

 private:
  void Write(int fd, std::string_view text);
  void Draw();

  std::unique_ptr<sync::ThreadExecutor> executor_;   // clock of ages and drawer of the bar
  std::string pending_;                    // of stdout
  std::string error_;                      // the last that was told
  bool documented_ = false;
  absl::Status out_status_;
  bool out_closed_ = false;
  std::string progress_verb_;
  std::atomic<uint64_t> done_{0}, total_{0};
  std::atomic<bool> progress_on_{false};
  sync::Nanos progress_began_ = 0;
  bool bar_shown_ = false;
};

}  // namespace neve::cli

#endif  // NEVE_CLI_CONSOLE_H_
