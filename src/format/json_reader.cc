#include "format/json_reader.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

constexpr size_t kNumberBytesMax = 4096;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
    return;
  }
  if (code < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code >> 6));
  } else {
    if (code < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | code >> 12));
    } else {
      out->push_back(static_cast<char>(0xF0 | code >> 18));
      out->push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
}

}  // namespace

JsonReader::JsonReader(std::string_view text, int depth_max, uint64_t origin)
    : text_(text), depth_max_(depth_max), origin_(origin) {
  if (!codec::IsValidUtf8(text)) status_ = Damaged("the text is not valid UTF-8");
}

bool JsonReader::FailAt(size_t position, const std::string& what) {
  if (status_.ok()) status_ = Damaged(absl::StrFormat("byte %d: %s", origin_ + position, what));
  return false;
}

void JsonReader::SkipSpace() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    ++position_;
  }
}

JsonReader::Kind JsonReader::Peek() {
  if (!ok()) return Kind::kBad;
  SkipSpace();
  if (position_ == text_.size()) return Kind::kBad;
  switch (const char c = text_[position_]) {
    case '{': return Kind::kObject;
    case '[': return Kind::kArray;
    case '"': return Kind::kString;
    case 't':
    case 'f': return Kind::kBool;
    case 'n': return Kind::kNull;
    default: return c == '-' || IsDigit(c) ? Kind::kNumber : Kind::kBad;
  }
}

bool JsonReader::Enter(char open) {
  if (!ok()) return false;
  SkipSpace();
  if (position_ == text_.size() || text_[position_] != open) {
    return Fail(open == '{' ? "expected an object" : "expected a list");
  }
  if (frames_.size() >= static_cast<size_t>(depth_max_)) {
    return Fail(absl::StrFormat("nested more than %d deep", depth_max_));
  }
  ++position_;
  frames_.push_back({open == '{', true, keys_.size()});
  return true;
}

bool JsonReader::EnterObject() { return Enter('{'); }
bool JsonReader::EnterArray() { return Enter('['); }

bool JsonReader::NextItem(char close) {
  if (!ok()) return false;
  SkipSpace();
  if (position_ == text_.size()) return Fail("the text ends within a list or an object");
  Frame& frame = frames_.back();
  if (text_[position_] == close) {
    ++position_;
    const size_t keys_begin = frame.keys_begin;
    frames_.pop_back();
    if (close == '}' && CheckKeysUnique(keys_begin)) keys_.resize(keys_begin);
    return false;
  }
  if (!frame.first) {
    if (text_[position_] != ',') return Fail("expected a comma or the end of the list or object");
    ++position_;
    SkipSpace();
  }
  frame.first = false;
  return true;
}

bool JsonReader::NextElement() { return NextItem(']'); }

bool JsonReader::NextKey(std::string_view* key) {
  if (!NextItem('}')) return false;
  const size_t begin = position_;
  if (position_ == text_.size() || text_[position_] != '"') return Fail("expected a name in quotes");
  std::string decoded;
  if (!ParseString(key, &decoded)) return false;
  if (key->data() == decoded.data()) *key = decoded_keys_.emplace_back(std::move(decoded));
  keys_.push_back({*key, begin});
  SkipSpace();
  if (position_ == text_.size() || text_[position_] != ':') return Fail("expected a colon after the name");
  ++position_;
  return true;
}

bool JsonReader::FailDuplicate(const Key& a, const Key& b) {
  const auto [first, second] = std::minmax(a.position, b.position);
  return FailAt(first, absl::StrFormat("the name %s stands twice in one object, at bytes %d and %d", Quoted(a.name),
                                       origin_ + first, origin_ + second));
}

bool JsonReader::CheckKeysUnique(size_t begin) {
  const size_t count = keys_.size() - begin;
  constexpr size_t kFew = 8;
  if (count <= kFew) {
    for (size_t i = begin; i < keys_.size(); ++i) {
      for (size_t j = begin; j < i; ++j) {
        if (keys_[i].name == keys_[j].name) return FailDuplicate(keys_[j], keys_[i]);
      }
    }
    return true;
  }
  // Sorted by hash: integers compare faster than names, and names that were made to collide cost a comparison more, not a
  // quadratic search.
  std::vector<std::pair<uint64_t, const Key*>> order(count);
  for (size_t i = 0; i < count; ++i) {
    const Key& key = keys_[begin + i];
    order[i] = {std::hash<std::string_view>()(key.name), &key};
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second->name < b.second->name;
  });
  for (size_t i = 1; i < count; ++i) {
    if (order[i].first == order[i - 1].first && order[i].second->name == order[i - 1].second->name) {
      return FailDuplicate(*order[i - 1].second, *order[i].second);
    }
  }
  return true;
}

bool JsonReader::ParseHex4(uint32_t* value) {
  if (text_.size() - position_ < 4) return Fail("the text ends within an escape");
  const char* begin = text_.data() + position_;
  *value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = begin[i];
    const int digit = IsDigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return Fail("expected four hexadecimal digits after \\u");
    *value = *value << 4 | static_cast<uint32_t>(digit);
  }
  position_ += 4;
  return true;
}

bool JsonReader::ParseEscape(std::string* decoded) {
  const size_t begin = position_;   // of the backslash
  if (++position_ == text_.size()) return Fail("the text ends within an escape");
  switch (text_[position_++]) {
    case '"': decoded->push_back('"'); return true;
    case '\\': decoded->push_back('\\'); return true;
    case '/': decoded->push_back('/'); return true;
    case 'b': decoded->push_back('\b'); return true;
    case 'f': decoded->push_back('\f'); return true;
    case 'n': decoded->push_back('\n'); return true;
    case 'r': decoded->push_back('\r'); return true;
    case 't': decoded->push_back('\t'); return true;
    case 'u': break;
    default: return FailAt(begin, "unknown escape");
  }
  uint32_t code = 0;
  if (!ParseHex4(&code)) return false;
  if (code >= 0xDC00 && code <= 0xDFFF) return FailAt(begin, "a lone surrogate");
  if (code >= 0xD800 && code <= 0xDBFF) {
    uint32_t low = 0;
    if (text_.substr(position_, 2) != "\\u") return FailAt(begin, "a lone surrogate");
    position_ += 2;
    if (!ParseHex4(&low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return FailAt(begin, "a lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  AppendUtf8(code, decoded);
  return true;
}

bool JsonReader::ParseString(std::string_view* value, std::string* decoded) {
  const size_t open = position_++;
  const size_t begin = position_;
  while (position_ < text_.size()) {
    const unsigned char c = static_cast<unsigned char>(text_[position_]);
    if (c == '"') {
      *value = text_.substr(begin, position_ - begin);
      ++position_;
      return true;
    }
    if (c == '\\') break;
    if (c < 0x20) return Fail("a control character within a string");
    ++position_;
  }
  decoded->assign(text_.substr(begin, position_ - begin));
  while (position_ < text_.size()) {
    const unsigned char c = static_cast<unsigned char>(text_[position_]);
    if (c == '"') {
      ++position_;
      *value = *decoded;
      return true;
    }
    if (c == '\\') {
      if (!ParseEscape(decoded)) return false;
    } else if (c < 0x20) {
      return Fail("a control character within a string");
    } else {
      decoded->push_back(static_cast<char>(c));
      ++position_;
    }
  }
  return FailAt(open, "a string without an end");
}

bool JsonReader::StringView(std::string_view* value) {
  if (Peek() != Kind::kString) return Fail("expected a string");
  return ParseString(value, &scratch_);
}

bool JsonReader::String(std::string* value) {
  std::string_view view;
  if (!StringView(&view)) return false;
  value->assign(view);
  return true;
}

bool JsonReader::ScanNumber(std::string_view* text, bool* integer) {
  if (Peek() != Kind::kNumber) return Fail("expected a number");
  const size_t begin = position_;
  const auto at = [&](size_t i) { return i < text_.size() ? text_[i] : '\0'; };
  size_t i = begin;
  if (at(i) == '-') ++i;
  if (!IsDigit(at(i))) return Fail("a minus without a number");
  if (at(i) == '0') {
    if (IsDigit(at(++i))) return Fail("a number with a leading zero");
  } else {
    while (IsDigit(at(i))) ++i;
  }
  *integer = true;
  if (at(i) == '.') {
    *integer = false;
    if (!IsDigit(at(++i))) return Fail("a number that ends with its point");
    while (IsDigit(at(i))) ++i;
  }
  if (at(i) == 'e' || at(i) == 'E') {
    *integer = false;
    ++i;
    if (at(i) == '+' || at(i) == '-') ++i;
    if (!IsDigit(at(i))) return Fail("a number without the digits of its exponent");
    while (IsDigit(at(i))) ++i;
  }
  if (i - begin > kNumberBytesMax) return Fail(absl::StrFormat("a number of %d characters", i - begin));
  *text = text_.substr(begin, i - begin);
  position_ = i;
  return true;
}

bool JsonReader::Unsigned(uint64_t* value) {
  std::string_view text;
  bool integer = false;
  if (!ScanNumber(&text, &integer)) return false;
  const size_t begin = position_ - text.size();
  if (!integer) return FailAt(begin, absl::StrFormat("expected a whole number, found %s", text.substr(0, 40)));
  if (text[0] == '-') return FailAt(begin, absl::StrFormat("the number %s is negative", text.substr(0, 40)));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc()) return FailAt(begin, absl::StrFormat("the number %s overflows", text.substr(0, 40)));
  return true;
}

bool JsonReader::Integer(int64_t* value) {
  std::string_view text;
  bool integer = false;
  if (!ScanNumber(&text, &integer)) return false;
  const size_t begin = position_ - text.size();
  if (!integer) return FailAt(begin, absl::StrFormat("expected a whole number, found %s", text.substr(0, 40)));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc()) return FailAt(begin, absl::StrFormat("the number %s overflows", text.substr(0, 40)));
  return true;
}

bool JsonReader::Double(double* value) {
  std::string_view text;
  bool integer = false;
  if (!ScanNumber(&text, &integer)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc()) return FailAt(position_ - text.size(), "a number out of the range of doubles");
  return true;
}

bool JsonReader::Number(std::string_view* text) {
  bool integer = false;
  return ScanNumber(text, &integer);
}

bool JsonReader::Literal(std::string_view word) {
  if (text_.substr(position_, word.size()) != word) return Fail("neither true, false nor null");
  position_ += word.size();
  return true;
}

bool JsonReader::Bool(bool* value) {
  if (Peek() != Kind::kBool) return Fail("expected true or false");
  *value = text_[position_] == 't';
  return Literal(*value ? "true" : "false");
}

bool JsonReader::Null() {
  if (Peek() != Kind::kNull) return Fail("expected null");
  return Literal("null");
}

bool JsonReader::Skip() {
  std::string_view view;
  bool flag = false;
  switch (Peek()) {
    case Kind::kObject:
      EnterObject();
      while (NextKey(&view)) Skip();
      return ok();
    case Kind::kArray:
      EnterArray();
      while (NextElement()) Skip();
      return ok();
    case Kind::kString: return StringView(&view);
    case Kind::kNumber: return Number(&view);
    case Kind::kBool: return Bool(&flag);
    case Kind::kNull: return Null();
    case Kind::kBad: break;
  }
  return Fail("expected a value");
}

bool JsonReader::Raw(std::string_view* text) {
  if (Peek() == Kind::kBad) return Fail("expected a value");
  const size_t begin = position_;
  if (!Skip()) return false;
  *text = text_.substr(begin, position_ - begin);
  return true;
}

absl::Status JsonReader::Finish() {
  if (ok()) {
    SkipSpace();
    if (position_ != text_.size()) Fail("something follows the end of the JSON");
  }
  return status_;
}

}  // namespace neve::format
