// The keys of dictionaries as components of names (docs/format.md, "names").
#ifndef NEVE_FORMAT_KEY_ESCAPES_H_
#define NEVE_FORMAT_KEY_ESCAPES_H_

#include <string>
#include <string_view>

#include "base/error/status.h"
#include "format/values.h"

namespace neve::format {

// The key that an escaped component stands for. Damaged: no escape that docs/format.md knows.
absl::StatusOr<Value> KeyOfComponent(std::string_view component);

// The component for a key that is this text.
std::string EscapeTextKey(std::string_view text);
// The component for a key. text: the key as values have it.
std::string ComponentOfKey(const Value& key, std::string_view text);

}  // namespace neve::format

#endif  // NEVE_FORMAT_KEY_ESCAPES_H_
