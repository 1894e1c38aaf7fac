// Reads values text (docs/format.md, "values"): the numbers, strings and small containers of a state. Classes stay names.
#ifndef NEVE_CLI_INSPECT_VALUES_H_
#define NEVE_CLI_INSPECT_VALUES_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "cli/console.h"

namespace neve::cli {

struct ShownValue {
  Json json;          // as inspect_tree.h says
  std::string text;   // as Python would write it, escaped for terminals
  bool is_string = false;
  std::string string; // when it is one
};

// Reads one value after another. Damaged names the byte; nesting is bounded, nothing is allocated by a number in the text.
class ValuesReader {
 public:
  explicit ValuesReader(std::string_view text) : text_(text) {}
  absl::StatusOr<ShownValue> Next() { return Read(0); }
  bool AtEnd() const { return text_.find_first_not_of(' ', at_) == std::string_view::npos; }

 private:
  absl::StatusOr<ShownValue> Read(int depth);
  absl::StatusOr<ShownValue> ReadItems(std::string_view open, std::string_view name, char closing, int depth);
  absl::StatusOr<ShownValue> ReadPairs(std::string_view name, int depth);
  absl::StatusOr<ShownValue> ReadNamed(char kind, int depth);
  absl::StatusOr<std::string_view> Until(char end);
  absl::StatusOr<std::string_view> Quoted();
  absl::Status Malformed(const char* why) const;

  std::string_view text_;
  size_t at_ = 0;
};

ShownValue ShownString(std::string value);

}  // namespace neve::cli

#endif  // NEVE_CLI_INSPECT_VALUES_H_
