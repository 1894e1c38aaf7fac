#include "format/values.h"

#include <bit>
#include <charconv>
#include <limits>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"

namespace neve::format {
namespace {

constexpr size_t kValuesMax = 1'000'000;

}  // namespace

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
    if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) return Fail("not the bits of a number");
    *number = std::bit_cast<double>(bits);
    return true;
  }
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

bool ValuesReader::ReadItems(char close, Value* value, int depth) {
  while (position_ < text_.size() && text_[position_] != close) {
    if (!Read(&value->items.emplace_back(), depth + 1)) return false;
  }
  if (position_ == text_.size()) return Fail("a container without an end");
  ++position_;
  if (close == '}' && value->items.size() % 2 != 0) return Fail("a dictionary with a key that has no value");
  return true;
}

bool ValuesReader::ReadOpen(std::string_view open, Value::Kind kind, Value* value, int depth) {
  if (text_.substr(position_, open.size()) != open) return Fail("an unknown kind of value");
  position_ += open.size();
  value->kind = kind;
  const char last = open.back();
  return ReadItems(last == '[' ? ']' : last == '(' ? ')' : '}', value, depth);
}

bool ValuesReader::Read(Value* value, int depth) {
  using Kind = Value::Kind;
  if (position_ >= text_.size()) return Fail("a value is missing");
  if (depth > kValuesDepthMax) return Fail(absl::StrFormat("nested more than %d deep", kValuesDepthMax));
  if (left_-- == 0) return Fail("more values than are decoded at once");
  std::string_view body;
  const char tag = text_[position_];
  switch (tag) {
    case '[': return ReadOpen("[", Kind::kList, value, depth);
    case '(': return ReadOpen("(", Kind::kTuple, value, depth);
    case '{': return ReadOpen("{", Kind::kDict, value, depth);
    case 'E': return ReadOpen("E{", Kind::kOrderedDict, value, depth);
    case 'S': return ReadOpen("S(", Kind::kSet, value, depth);
    case 'F': return ReadOpen("F(", Kind::kFrozenSet, value, depth);
    case 'Z': return ReadOpen("Z(", Kind::kTorchSize, value, depth);
    case '\'': value->kind = Kind::kText; return ReadQuoted(&value->text);
    default: break;
  }
  ++position_;
  switch (tag) {
    case 'n': value->kind = Kind::kNone; return true;
    case 't':
    case 'f':
      value->kind = Kind::kBool;
      value->flag = tag == 't';
      return true;
    case 'i': {
      value->kind = Kind::kInteger;
      if (!ReadUntil(';', &body)) return false;
      const std::string_view digits = body.substr(body.starts_with('-') ? 1 : 0);
      if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return Fail("not a whole number");
      value->text = body;
      return true;
    }
    case 'd':
    case 'x':
      value->kind = Kind::kFloat;
      --position_;
      return ReadFloat(&value->number);
    case 'c':
      value->kind = Kind::kComplex;
      return ReadFloat(&value->number) && ReadFloat(&value->imaginary);
    case 's':
      value->kind = Kind::kText;   // Python's strings may hold lone surrogates, so this need not be valid UTF-8
      return ReadBase64(&value->text);
    case 'y':
    case 'Y':
      value->kind = tag == 'y' ? Kind::kBytes : Kind::kByteArray;
      return ReadBase64(&value->text);
    case 'N':
      value->kind = Kind::kNumpyScalar;
      if (!ReadQuoted(&value->text)) return false;
      if (position_ >= text_.size() || text_[position_] != 'y') return Fail("a numpy scalar without its bytes");
      return Read(&value->items.emplace_back(), depth);   // bytes, in which nothing nests
    case 'T': value->kind = Kind::kTorchDType; return ReadQuoted(&value->text);
    case 'D': value->kind = Kind::kTorchDevice; return ReadQuoted(&value->text);
    case '@':
      value->kind = Kind::kTyped;
      return ReadQuoted(&value->text) && Read(&value->items.emplace_back(), depth + 1);
    default: --position_; return Fail(absl::StrFormat("an unknown kind of value, byte 0x%02x", static_cast<unsigned char>(tag)));
  }
}

}  // namespace neve::format
