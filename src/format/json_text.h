// The two things every writer of JSON here needs: a string as JSON, and a name as part of a message.
#ifndef NEVE_FORMAT_JSON_TEXT_H_
#define NEVE_FORMAT_JSON_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace neve::format {

// Appends `text` (valid UTF-8) as a JSON string with its quotes. Only what JSON demands is escaped; the result is the same
// for the same text, always.
void AppendJsonString(std::string_view text, std::string* out);
// The same without the quotes: for text that goes into a string already open.
void AppendJsonEscaped(std::string_view text, std::string* out);

// For text of unknown origin (host names, tags): what is not valid UTF-8 has its bytes over 0x7f replaced by U+FFFD, because
// a record that cannot be read back would lose its save.
void AppendJsonText(std::string_view text, std::string* out);

void AppendNumber(uint64_t value, std::string* out);
void AppendNumber(int64_t value, std::string* out);
void AppendNumbers(std::span<const int64_t> values, std::string* out);   // "[1,2,3]"

// A name for a message: quoted, control bytes and invalid UTF-8 escaped, cut after 200 bytes.
std::string Quoted(std::string_view name);

}  // namespace neve::format

#endif  // NEVE_FORMAT_JSON_TEXT_H_
