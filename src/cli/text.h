// Text for people: sizes, ages, counts, and names from files, which may hold anything and must not drive a terminal.
#ifndef NEVE_CLI_TEXT_H_
#define NEVE_CLI_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "neve/types.h"

namespace neve::cli {

std::string HumanBytes(uint64_t bytes);            // "512 B", "1.2 GiB"
std::string HumanAge(int64_t seconds);             // "3s", "5m", "7h", "12d"; "0s" for what lies ahead
std::string Counted(uint64_t count, std::string_view noun);   // "1 tensor", "2 tensors"
std::string HumanShape(std::span<const int64_t> shape);       // "[2, 3]"
std::string HumanTag(const TagValue& value);

// Control characters, invalid UTF-8 and what reorders text are written as escapes; a backslash is doubled.
std::string Escaped(std::string_view text);
// As Escaped, but lines and tabs stay: for messages of our own that quote names.
std::string EscapedMessage(std::string_view text);

// Columns a terminal needs for it (escaped text; wide characters are not told apart).
size_t Width(std::string_view text);
size_t WidestLine(std::string_view lines);
// At most `width` columns, the middle replaced by "..." where it is longer.
std::string Shortened(std::string_view text, size_t width);

// Lines of at most `width` columns, broken at spaces, each indented; longer words stay whole. Ends with a line break.
std::string Wrapped(std::string_view text, size_t indent, size_t width);

// Rows of cells, aligned; the last column is never padded. `right`: column numbers that align to the right.
std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& right);

}  // namespace neve::cli

#endif  // NEVE_CLI_TEXT_H_
