// Values of a state (format/values.h decodes them) as the command shows them: in its JSON and on a terminal.
#ifndef NEVE_CLI_INSPECT_VALUES_H_
#define NEVE_CLI_INSPECT_VALUES_H_

#include <string>
#include <utility>
#include <vector>

#include "cli/console.h"
#include "format/values.h"

namespace neve::cli {

// As inspect_tree.h says. Text that is no UTF-8 is replaced when the document is written.
Json JsonOf(const format::Value& value);

// A dictionary, in order: an object where every key is a string that can stand there for itself and there are no attributes
// (null), else {"$dict": [[KEY, VALUE], ..], "attributes": ..}.
Json DictJson(std::vector<std::pair<format::Value, Json>> pairs, Json attributes);

// Close to how Python would write it, escaped for terminals.
std::string TextOf(const format::Value& value);

}  // namespace neve::cli

#endif  // NEVE_CLI_INSPECT_VALUES_H_
