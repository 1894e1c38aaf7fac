// The values of a pickle, in the forms that an image has for them: values text, keys of names, NumPy dtypes. Nothing is looked
// up: a class is its name.
#ifndef NEVE_FORMAT_PICKLE_VALUES_H_
#define NEVE_FORMAT_PICKLE_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/pickle_graph.h"

namespace neve::format {

class PickleValues {
 public:
  explicit PickleValues(const PickleGraph& graph) : graph_(graph), classes_(graph.size(), Class::kUnknown) {}

  // Whether the node and all below it are values: no tensor, no object, no circle, and not too deep. Each node is looked at once.
  bool IsValue(PickleNode node) { return Classify(node, 0); }

  // Appends the values text of a node that is a value. Exhausted: `out` would have more than `bytes_max` bytes.
  absl::Status Encode(PickleNode node, uint64_t bytes_max, std::string* out) const;

  // The part of a name for a key of a dictionary; nullopt: no value.
  std::optional<std::string> EscapeKey(PickleNode key);

  // Bytes, however the protocol writes them: as such, or as a call that makes them of a text.
  bool IsBytes(PickleNode node) const;
  bool BytesOf(PickleNode node, std::string* bytes) const;

  // "<f8", ">i4", "<M8[ns]" of a call of numpy.dtype, with the size of an item; nullopt for objects, records and sub-arrays.
  struct NumpyDType {
    std::string text;
    uint64_t item_bytes;
  };
  std::optional<NumpyDType> DTypeOf(PickleNode node) const;

  bool IsOrderedDict(PickleNode node) const { return graph_.IsCallOf(node, "collections", "OrderedDict"); }
  bool IsCounter(PickleNode node) const { return graph_.IsCallOf(node, "collections", "Counter"); }
  // Key, value, key, value of an OrderedDict, however it was pickled. False: not so.
  bool OrderedPairs(PickleNode node, std::vector<PickleNode>* pairs) const;

 private:
  enum class Class : uint8_t { kUnknown, kVisiting, kValue, kOther };
  bool Classify(PickleNode node, int depth);
  bool ClassifyUncached(PickleNode node, int depth);
  bool ClassifyCall(PickleNode node, int depth);
  absl::Status EncodeCall(PickleNode node, uint64_t bytes_max, std::string* out) const;
  absl::Status EncodeItems(std::string_view open, std::span<const PickleNode> items, char close, uint64_t bytes_max,
                           std::string* out) const;
  bool IsBuiltin(PickleNode node, std::string_view name) const;
  std::span<const PickleNode> Args(PickleNode call) const;

  const PickleGraph& graph_;
  std::vector<Class> classes_;
};

// As Python's float.hex().
std::string FloatHex(double number);
void AppendFloatValue(double number, std::string* out);
void AppendTextValue(std::string_view text, std::string* out);

}  // namespace neve::format

#endif  // NEVE_FORMAT_PICKLE_VALUES_H_
