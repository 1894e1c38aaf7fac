// Steps over JSON that a JsonReader has read to its end: members and elements as text, without building a document. Nothing
// is checked again, so each byte is looked at once for every level that somebody steps into.
#ifndef NEVE_FORMAT_CHECKED_JSON_H_
#define NEVE_FORMAT_CHECKED_JSON_H_

#include <string>
#include <string_view>

namespace neve::format {

// The members of an object, or the elements of an array, one after another. The text outlives the object.
class CheckedJson {
 public:
  explicit CheckedJson(std::string_view value) : text_(value) {}

  // An object's next member; false at its end. `key` is unescaped, and holds until the next call.
  bool NextMember(std::string_view* key, std::string_view* value);
  // An array's next element; false at its end.
  bool NextElement(std::string_view* value);

 private:
  bool AtEnd();          // behind the bracket or comma, at what follows
  void SkipSpace();
  std::string_view Take();   // the value that begins here

  std::string_view text_;
  size_t at_ = 0;
  std::string key_;
};

inline bool IsObject(std::string_view value) { return value.starts_with('{'); }
inline bool IsArray(std::string_view value) { return value.starts_with('['); }
inline bool IsString(std::string_view value) { return value.starts_with('"'); }
inline bool IsNumber(std::string_view value) {
  return !value.empty() && (value[0] == '-' || (value[0] >= '0' && value[0] <= '9'));
}

}  // namespace neve::format

#endif  // NEVE_FORMAT_CHECKED_JSON_H_
