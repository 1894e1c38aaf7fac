#include "format/values.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"

namespace neve::format {
namespace {

constexpr size_t kValuesMax = 1'000'000;
constexpr size_t kFloatTextMax = 40;   // float.hex() writes at most 24

bool IsDigits(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos; }

bool IsOneOf(uint64_t number, std::initializer_list<uint64_t> those) {
  return std::find(those.begin(), those.end(), number) != those.end();
}

}  // namespace

bool IsPythonText(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t count = lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
    if (count == 0) return false;
    for (size_t k = 1; k < count; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    const unsigned next = byte(i + 1);
    if ((lead == 0xe0 && next < 0xa0) || (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next >= 0x90)) return false;
    i += count;
  }
  return true;
}

std::optional<uint64_t> NumpyItemBytes(std::string_view dtype) {
  if (dtype.size() < 3 || std::string_view("<>|=").find(dtype[0]) == std::string_view::npos) return std::nullopt;
  const char kind = dtype[1];
  std::string_view digits = dtype.substr(2);
  if (const size_t unit = digits.find('['); unit != std::string_view::npos) {
    if ((kind != 'M' && kind != 'm') || !digits.ends_with(']') || digits.size() - unit > 24) return std::nullopt;
    digits = digits.substr(0, unit);
  }
  if (!IsDigits(digits) || digits.size() > 9) return std::nullopt;
  uint64_t size = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), size);
  switch (kind) {
    case 'b': return size == 1 ? std::optional(size) : std::nullopt;
    case 'i':
    case 'u': return IsOneOf(size, {1, 2, 4, 8}) ? std::optional(size) : std::nullopt;
    case 'f': return IsOneOf(size, {2, 4, 8, 12, 16}) ? std::optional(size) : std::nullopt;
    case 'c': return IsOneOf(size, {8, 16, 24, 32}) ? std::optional(size) : std::nullopt;
    case 'M':
    case 'm': return size == 8 ? std::optional(size) : std::nullopt;
    case 'S': return size;
    case 'U': return size * 4;
    default: return std::nullopt;
  }
}

bool IsDeviceName(std::string_view name) {
  const size_t colon = name.find(':');
  const std::string_view type = name.substr(0, colon);
  if (type.empty() || type[0] < 'a' || type[0] > 'z') return false;
  if (type.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string_view::npos) return false;
  return colon == std::string_view::npos || (IsDigits(name.substr(colon + 1)) && name.size() - colon <= 4);
}

bool ValuesReader::AtEnd() const { return text_.find_first_not_of(' ', position_) == std::string_view::npos; }

bool ValuesReader::Fail(const std::string& what) {
  if (status_.ok()) status_ = Damaged(absl::StrFormat("values: byte %d: %s", position_, what));
  return false;
}

absl::StatusOr<Value> ValuesReader::Next() {
  NEVE_RETURN_IF_ERROR(status_);
  left_ = kValuesMax;
  Value value;
  if (!Read(&value, 0)) return status_;
  return value;
}

absl::StatusOr<Value> ValuesReader::NextKey() {
  NEVE_ASSIGN_OR_RETURN(Value value, Next());
  if (!hashable_) {
    Fail("a list, a dictionary or a set cannot be a key");
    return status_;
  }
  return value;
}

absl::Status ValuesReader::Skip() {
  if (status_.ok()) Read(nullptr, 0);
  return status_;
}

bool ValuesReader::ReadUntil(char end, std::string_view* text) {
  const size_t at = text_.find(end, position_);
  if (at == std::string_view::npos) return Fail("a value without an end");
  *text = text_.substr(position_, at - position_);
  position_ = at + 1;
  return true;
}

bool ValuesReader::ReadQuoted(std::string* text) {
  std::string_view body;
  if (position_ >= text_.size() || text_[position_] != '\'') return Fail("expected a name in quotes");
  ++position_;
  if (!ReadUntil('\'', &body)) return false;
  for (const char c : body) {
    if (c < 0x20 || c == 0x7f || c == '"' || c == '\\') return Fail("a byte that may not stand in quotes");
  }
  text->assign(body);
  return true;
}

bool ValuesReader::ReadBase64(std::string* bytes) {
  std::string_view body;
  if (!ReadUntil(';', &body)) return false;
  std::optional<std::string> decoded = codec::Base64UrlDecode(body);
  if (!decoded) return Fail("not base64url");
  *bytes = *std::move(decoded);
  return true;
}

// d and what Python's float.hex() writes, or x and the 16 digits of a NaN's bits.
bool ValuesReader::ReadFloat(double* number) {
  std::string_view text;
  const char tag = position_ < text_.size() ? text_[position_] : ' ';
  if (tag != 'd' && tag != 'x') return Fail("expected a number");
  ++position_;
  if (!ReadUntil(';', &text)) return false;
  if (tag == 'x') {
    uint64_t bits = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
    const bool lower = text.find_first_of("ABCDEF") == std::string_view::npos;
    if (text.size() != 16 || !lower || error != std::errc() || end != text.data() + text.size()) {
      return Fail("not the bits of a number");
    }
    *number = std::bit_cast<double>(bits);
    return true;
  }
  if (text.size() > kFloatTextMax) return Fail("not a number as float.hex() writes it");
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  double magnitude = 0;
  if (text == "inf") {
    magnitude = std::numeric_limits<double>::infinity();
  } else if (text == "nan") {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (!text.starts_with("0x")) return Fail("not a number as float.hex() writes it");
    text.remove_prefix(2);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), magnitude, std::chars_format::hex);
    if (text.starts_with('-') || error != std::errc() || end != text.data() + text.size()) {
      return Fail("not a number as float.hex() writes it");
    }
  }
  *number = negative ? -magnitude : magnitude;
  return true;
}

bool ValuesReader::ReadItems(char close, Value::Kind kind, Value* value, int depth) {
  const bool hashed = kind == Value::Kind::kSet || kind == Value::Kind::kFrozenSet;
  bool hashable = true;
  size_t count = 0;
  for (; position_ < text_.size() && text_[position_] != close; ++count) {
    if (kind == Value::Kind::kTorchSize && text_[position_] != 'i') return Fail("a torch.Size of other things than numbers");
    if (!Read(value == nullptr ? nullptr : &value->items.emplace_back(), depth + 1)) return false;
    hashable = hashable && hashable_;
    const bool is_key = close == '}' && count % 2 == 0;
    if ((hashed || is_key) && !hashable_) return Fail("a list, a dictionary or a set cannot be a key or a member of a set");
  }
  if (position_ == text_.size()) return Fail("a container without an end");
  ++position_;
  if (close == '}' && count % 2 != 0) return Fail("a dictionary with a key that has no value");
  hashable_ = hashable;
  return true;
}

bool ValuesReader::ReadOpen(std::string_view open, Value::Kind kind, Value* value, int depth) {
  if (text_.substr(position_, open.size()) != open) return Fail("an unknown kind of value");
  position_ += open.size();
  if (value != nullptr) value->kind = kind;
  const char last = open.back();
  if (!ReadItems(last == '[' ? ']' : last == '(' ? ')' : '}', kind, value, depth)) return false;
  hashable_ = kind == Value::Kind::kFrozenSet || (hashable_ && last == '(' && kind != Value::Kind::kSet);
  return true;
}

bool ValuesReader::ReadInteger(bool hexadecimal, std::string* text) {
  std::string_view body;
  if (!ReadUntil(';', &body)) return false;
  const bool negative = body.starts_with('-');
  const std::string_view digits = body.substr(negative ? 1 : 0);
  const std::string_view allowed = hexadecimal ? "0123456789abcdef" : "0123456789";
  if (digits.empty() || digits.find_first_not_of(allowed) != std::string_view::npos) return Fail("not a whole number");
  if (!hexadecimal && digits.size() > kDecimalDigitsMax) {
    return Fail(absl::StrFormat("a decimal number of %d digits, over the limit of %d", digits.size(), kDecimalDigitsMax));
  }
  *text = hexadecimal ? (negative ? "-0x" : "0x") + std::string(digits) : std::string(body);
  return true;
}

bool ValuesReader::ReadNumpyScalar(Value* value, int depth) {
  if (!ReadQuoted(&value->text)) return false;
  const std::optional<uint64_t> item_bytes = NumpyItemBytes(value->text);
  if (!item_bytes.has_value()) return Fail("no dtype whose bytes can be read back");
  if (position_ >= text_.size() || text_[position_] != 'y') return Fail("a numpy scalar without its bytes");
  if (!Read(&value->items.emplace_back(), depth)) return false;   // bytes, in which nothing nests
  return value->items[0].text.size() == *item_bytes || Fail("a numpy scalar that does not have the bytes of its dtype");
}

bool ValuesReader::Read(Value* value, int depth) {
  using Kind = Value::Kind;
  if (position_ >= text_.size()) return Fail("a value is missing");
  if (depth > kValuesDepthMax) return Fail(absl::StrFormat("nested more than %d deep", kValuesDepthMax));
  if (value != nullptr && left_-- == 0) return Fail("more values than are decoded at once");
  const char tag = text_[position_];
  switch (tag) {
    case '[': return ReadOpen("[", Kind::kList, value, depth);
    case '(': return ReadOpen("(", Kind::kTuple, value, depth);
    case '{': return ReadOpen("{", Kind::kDict, value, depth);
    case 'E': return ReadOpen("E{", Kind::kOrderedDict, value, depth);
    case 'C': return ReadOpen("C{", Kind::kCounter, value, depth);
    case 'S': return ReadOpen("S(", Kind::kSet, value, depth);
    case 'F': return ReadOpen("F(", Kind::kFrozenSet, value, depth);
    case 'Z': return ReadOpen("Z(", Kind::kTorchSize, value, depth);
    default: break;
  }
  hashable_ = true;
  if (tag == '@') {
    std::string name;
    ++position_;
    if (!ReadQuoted(&name)) return false;
    if (value != nullptr) {
      value->kind = Kind::kTyped;
      value->text = std::move(name);
    }
    if (!Read(value == nullptr ? nullptr : &value->items.emplace_back(), depth + 1)) return false;
    hashable_ = true;   // only the class can tell
    return true;
  }
  if (value != nullptr) return ReadScalar(tag, value, depth);
  Value dropped;
  left_ = kValuesMax;
  return ReadScalar(tag, &dropped, depth);
}

bool ValuesReader::ReadScalar(char tag, Value* value, int depth) {
  using Kind = Value::Kind;
  if (tag != '\'') ++position_;
  switch (tag) {
    case '\'': value->kind = Kind::kText; return ReadQuoted(&value->text);
    case 'n': value->kind = Kind::kNone; return true;
    case 't':
    case 'f':
      value->kind = Kind::kBool;
      value->flag = tag == 't';
      return true;
    case 'i':
    case 'h': value->kind = Kind::kInteger; return ReadInteger(tag == 'h', &value->text);
    case 'd':
    case 'x':
      value->kind = Kind::kFloat;
      --position_;
      return ReadFloat(&value->number);
    case 'c':
      value->kind = Kind::kComplex;
      return ReadFloat(&value->number) && ReadFloat(&value->imaginary);
    case 's':
      value->kind = Kind::kText;
      if (!ReadBase64(&value->text)) return false;
      return IsPythonText(value->text) || Fail("text that is no UTF-8");
    case 'y':
    case 'Y':
      value->kind = tag == 'y' ? Kind::kBytes : Kind::kByteArray;
      hashable_ = tag == 'y';
      return ReadBase64(&value->text);
    case 'N': value->kind = Kind::kNumpyScalar; return ReadNumpyScalar(value, depth);
    case 'T': value->kind = Kind::kTorchDType; return ReadQuoted(&value->text);
    case 'D':
      value->kind = Kind::kTorchDevice;
      if (!ReadQuoted(&value->text)) return false;
      return IsDeviceName(value->text) || Fail("no name of a device");
    default: --position_; return Fail(absl::StrFormat("an unknown kind of value, byte 0x%02x", static_cast<unsigned char>(tag)));
  }
}

}  // namespace neve::format
