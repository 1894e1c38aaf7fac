// The nesting that `neve.tree` and `neve.values` describe, for the eye and as JSON. Nothing in it is run or imported:
// classes are names.
//
// As JSON, a dict with string keys is an object, a list an array, numbers, strings, booleans and None themselves. All else is
// an object with one name that begins with `$`:
//   {"$tensor": NAME}   {"$tuple": [..]}   {"$dict": [[KEY, VALUE], ..]} (keys that are no strings)   {"$bytes": BASE64URL}
//   {"$float": "nan"}   {"$int": DIGITS} (over 64 bits)   {"$blob": NAME}   {"$object": CLASS}   {"$call": CLASS, "of": ..}
#ifndef NEVE_CLI_INSPECT_TREE_H_
#define NEVE_CLI_INSPECT_TREE_H_

#include <string>
#include <vector>

#include "base/error/status.h"
#include "cli/console.h"
#include "cli/inspect_file.h"

namespace neve::cli {

struct OpaqueLeaf {
  std::string path;    // of keys, dotted
  std::string type;    // its class, by the name that the writer gave
  std::string blob;    // the tensor that holds its pickle
};

struct InspectedTree {
  Json json;                           // null: the file has no tree
  std::vector<std::string> lines;      // indented, escaped
  std::vector<OpaqueLeaf> objects;
};

// Damaged: the tree or the values text is not as docs/format.md says, or they name what the header has not.
absl::StatusOr<InspectedTree> ReadTree(const InspectedFile& file);

}  // namespace neve::cli

#endif  // NEVE_CLI_INSPECT_TREE_H_
