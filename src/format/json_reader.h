// A strict JSON reader for headers and records: pulls one value at a time, builds no document.
//
//   JsonReader in(text);
//   std::string_view key;
//   if (in.EnterObject()) {
//     while (in.NextKey(&key)) {
//       if (key == "step") in.Unsigned(&step); else in.Skip();
//     }
//   }
//   NEVE_RETURN_IF_ERROR(in.Finish());
//
// The first failure sticks: every later call returns false at once, so only the end needs a check. All failures are Damaged
// and name the byte.
//
// Stricter than most: the text must be valid UTF-8; escapes must not be lone surrogates; a name may stand once in an object
// (compared after unescaping; the failure names both positions); numbers follow the grammar to the letter and integers are
// exact or refused, and have at most 4096 characters, since other readers take time by their square; containers nest at most
// `depth_max` deep. Memory: 24 bytes a name of the open objects.
#ifndef NEVE_FORMAT_JSON_READER_H_
#define NEVE_FORMAT_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"

namespace neve::format {

class JsonReader {
 public:
  enum class Kind : uint8_t { kObject, kArray, kString, kNumber, kBool, kNull, kBad };

  // `text` is borrowed. `origin` is added to the byte positions of messages.
  explicit JsonReader(std::string_view text, int depth_max = 64, uint64_t origin = 0);

  Kind Peek();   // of the next value; kBad: none, or a failure

  // Objects and arrays: Enter, then Next until it returns false (at the end, which it consumes, or on a failure).
  bool EnterObject();
  bool NextKey(std::string_view* key);   // the view holds until its object ends
  bool EnterArray();
  bool NextElement();

  bool String(std::string* value);
  bool StringView(std::string_view* value);   // holds until the next call of String or StringView
  bool Unsigned(uint64_t* value);
  bool Integer(int64_t* value);
  bool Double(double* value);
  bool Bool(bool* value);
  bool Null();
  bool Number(std::string_view* text);   // the number as it stands
  bool Skip();                           // any value, checked all the same
  bool Raw(std::string_view* text);      // Skip, and the text of what was skipped

  absl::Status Finish();                 // only white space may follow
  absl::Status status() const { return status_; }
  bool ok() const { return status_.ok(); }
  size_t position() const { return position_; }   // in `text`
  std::string_view Rest() const { return text_.substr(position_); }
  bool Fail(const std::string& what) { return FailAt(position_, what); }
  bool FailAt(size_t position, const std::string& what);

 private:
  struct Frame {
    bool object;
    bool first;
    size_t keys_begin;
  };
  struct Key {
    std::string_view name;
    size_t position;
  };
  void SkipSpace();
  bool Enter(char open);
  bool NextItem(char close);
  bool Literal(std::string_view word);
  // The string that begins at position_; the view is of the text itself, or of `decoded` where escapes stand in it.
  bool ParseString(std::string_view* value, std::string* decoded);
  bool ParseEscape(std::string* decoded);
  bool ParseHex4(uint32_t* value);
  bool ScanNumber(std::string_view* text, bool* integer);
  bool CheckKeysUnique(size_t begin);
  bool FailDuplicate(const Key& a, const Key& b);

  std::string_view text_;
  size_t position_ = 0;
  int depth_max_;
  uint64_t origin_;
  absl::Status status_;
  std::vector<Frame> frames_;
  std::vector<Key> keys_;                 // of all open objects
  std::deque<std::string> decoded_keys_;  // those with escapes; a deque does not move them
  std::string scratch_;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_JSON_READER_H_
