// Decoder of the `neve.values` string and of blobs, for those who look at a checkpoint without Python. Runs nothing, imports
// nothing: a pickled blob is only named. The grammar is in docs/format.md, "values".
#ifndef NEVE_FORMAT_VALUES_H_
#define NEVE_FORMAT_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"

namespace neve::format {

// Containers, and the content of a typed object, nest at most so deep; a save that would go deeper is refused.
inline constexpr int kValuesDepthMax = 128;
// A decimal integer has at most so many digits, since reading one takes time by their square. Longer ones stand in hexadecimal.
inline constexpr size_t kDecimalDigitsMax = 4096;

struct Value {
  enum class Kind : uint8_t {
    kNone, kBool, kInteger, kFloat, kComplex, kText, kBytes, kByteArray, kList, kTuple, kDict, kOrderedDict, kCounter, kSet, kFrozenSet,
    kNumpyScalar, kTorchSize, kTorchDType, kTorchDevice, kTyped,
  };
  Kind kind = Kind::kNone;
  bool flag = false;
  double number = 0, imaginary = 0;
  std::string text;  // integer: decimal digits, or "0x" and hexadecimal ones, behind their sign; text (perhaps with lone
                     // surrogates) and bytes: themselves; numpy dtype, torch name, type name
  std::vector<Value> items;    // members; dicts: key, value, key, value; numpy scalar: its bytes; typed: one
};

// Reads values one after another. The first failure (Damaged, with the byte) sticks. Bounded: containers nest at most
// kValuesDepthMax deep, and one Next makes at most a million Values.
class ValuesReader {
 public:
  explicit ValuesReader(std::string_view text) : text_(text) {}
  bool AtEnd() const;   // only spaces, the padding, remain
  absl::StatusOr<Value> Next();
  absl::StatusOr<Value> NextKey();   // one that a dictionary can have as a key
  absl::Status Skip();               // the next value, checked as by Next but not kept, however large
  size_t position() const { return position_; }

 private:
  // `value` is null where nothing is kept.
  bool Read(Value* value, int depth);
  bool ReadItems(char close, Value::Kind kind, Value* value, int depth);
  bool ReadOpen(std::string_view open, Value::Kind kind, Value* value, int depth);
  bool ReadScalar(char tag, Value* value, int depth);
  bool ReadInteger(bool hexadecimal, std::string* text);
  bool ReadNumpyScalar(Value* value, int depth);
  bool ReadQuoted(std::string* text);
  bool ReadUntil(char end, std::string_view* text);
  bool ReadFloat(double* number);
  bool ReadBase64(std::string* bytes);
  bool Fail(const std::string& what);

  std::string_view text_;
  size_t position_ = 0;
  size_t left_ = 0;            // Values that this Next may still make
  bool hashable_ = true;       // whether the value read last can be a key, or a member of a set
  absl::Status status_;
};

// Whether it is text of Python's: UTF-8 in which lone surrogates may stand as they are.
bool IsPythonText(std::string_view text);

// The bytes of an item of a NumPy dtype that is written as "<f4", "|S12" or ">M8[ns]"; none: no dtype whose bytes can be read
// back.
std::optional<uint64_t> NumpyItemBytes(std::string_view dtype);

// Whether it names a device of torch, such as "cpu" or "cuda:1".
bool IsDeviceName(std::string_view name);

// What a person reads: close to Python's repr. Cut with "..." at about `bytes_max`.
std::string DescribeValue(const Value& value, size_t bytes_max = 200);

// The payload of a blob: its first byte tells what follows ('v' values, 'y' bytes, 's' text, 'p' a pickle).
std::string DescribeBlob(std::string_view payload, size_t bytes_max = 200);

}  // namespace neve::format

#endif  // NEVE_FORMAT_VALUES_H_
