#include "cli/inspect_values.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "cli/text.h"

namespace neve::cli {
namespace {

constexpr int kDepthMax = 200;

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";   // a float, not an int
  return text;
}

ShownValue ShownFloat(double value) {
  ShownValue shown{Json(value), FloatText(value)};
  if (!std::isfinite(value)) shown.json = {{"$float", shown.text}};   // JSON has no such numbers
  return shown;
}

ShownValue ShownBytes(std::string_view bytes, const char* name) {
  const std::string text = codec::Base64UrlEncode(bytes);
  return {Json{{name, text}},
          absl::StrFormat("%s of %d (%s)", std::string_view(name).substr(1), bytes.size(), Shortened(text, 40))};
}

std::optional<int64_t> SmallInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool IsDecimal(std::string_view text) {
  if (!text.empty() && text.front() == '-') text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

ShownValue ShownString(std::string value) {
  ShownValue shown;
  shown.json = value;   // bytes that are no UTF-8 are replaced when the document is written
  shown.text = "'" + Escaped(value) + "'";
  shown.is_string = true;
  shown.string = std::move(value);
  return shown;
}

absl::Status ValuesReader::Malformed(const char* why) const {
  return Damaged(absl::StrFormat("the values text is malformed at byte %d (%s): %s", at_, Escaped(text_.substr(at_, 24)), why));
}

absl::StatusOr<std::string_view> ValuesReader::Until(char end) {
  const size_t found = text_.find(end, at_);
  if (found == std::string_view::npos) return Malformed("it ends within a value");
  const std::string_view body = text_.substr(at_, found - at_);
  at_ = found + 1;
  return body;
}

absl::StatusOr<std::string_view> ValuesReader::Quoted() {
  if (at_ >= text_.size() || text_[at_] != '\'') return Malformed("a quoted name was expected");
  ++at_;
  return Until('\'');
}

absl::StatusOr<ShownValue> ValuesReader::Read(int depth) {
  if (depth > kDepthMax) return Malformed("nested too deep");
  if (at_ >= text_.size()) return Malformed("a value is missing");
  const char kind = text_[at_++];
  switch (kind) {
    case 'n': return ShownValue{Json(nullptr), "None"};
    case 't': return ShownValue{Json(true), "True"};
    case 'f': return ShownValue{Json(false), "False"};
    case 'i': {
      NEVE_ASSIGN_OR_RETURN(const std::string_view digits, Until(';'));
      if (!IsDecimal(digits)) return Malformed("not a decimal number");
      const std::optional<int64_t> small = SmallInt(digits);
      return ShownValue{small.has_value() ? Json(*small) : Json{{"$int", std::string(digits)}}, std::string(digits)};
    }
    case 'd': {
      NEVE_ASSIGN_OR_RETURN(const std::string_view body, Until(';'));
      const std::string digits(body);
      char* end = nullptr;
      const double value = std::strtod(digits.c_str(), &end);
      if (digits.empty() || end != digits.c_str() + digits.size()) return Malformed("not a float");
      return ShownFloat(value);
    }
    case 'x': {
      NEVE_ASSIGN_OR_RETURN(const std::string_view body, Until(';'));
      uint64_t bits = 0;
      const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), bits, 16);
      if (body.size() != 16 || error != std::errc() || end != body.data() + body.size()) return Malformed("not 16 hex digits");
      return ShownFloat(std::bit_cast<double>(bits));
    }
    case '\'': {
      NEVE_ASSIGN_OR_RETURN(const std::string_view body, Until('\''));
      return ShownString(std::string(body));
    }
    case 's':
    case 'y':
    case 'Y': {
      NEVE_ASSIGN_OR_RETURN(const std::string_view body, Until(';'));
      std::optional<std::string> bytes = codec::Base64UrlDecode(body);
      if (!bytes.has_value()) return Malformed("not base64url");
      if (kind == 's') return ShownString(*std::move(bytes));
      return ShownBytes(*bytes, kind == 'y' ? "$bytes" : "$bytearray");
    }
    case '[': return ReadItems("", "", ']', depth);
    case '(': return ReadItems("", "$tuple", ')', depth);
    case '{': return ReadPairs("", depth);
    case 'E':
      if (at_ >= text_.size() || text_[at_++] != '{') return Malformed("'{' was expected");
      return ReadPairs("OrderedDict", depth);
    case 'S':
    case 'F':
    case 'Z': {
      if (at_ >= text_.size() || text_[at_++] != '(') return Malformed("'(' was expected");
      if (kind == 'S') return ReadItems("set", "$set", ')', depth);
      if (kind == 'F') return ReadItems("frozenset", "$frozenset", ')', depth);
      return ReadItems("torch.Size", "$size", ')', depth);
    }
    case 'c':
    case 'N':
    case 'T':
    case 'D':
    case '@': return ReadNamed(kind, depth);
    default:
      --at_;
      return Malformed(kind == ' ' ? "a value is missing" : "no value begins so");
  }
}

// Lists and what is written like one. `name`: how the JSON tells them from a list; "": a list.
absl::StatusOr<ShownValue> ValuesReader::ReadItems(std::string_view open, std::string_view name, char closing, int depth) {
  ShownValue all{Json::array(), std::string(open) + (closing == ']' ? "[" : "(")};
  uint64_t count = 0;
  while (at_ < text_.size() && text_[at_] != closing) {
    NEVE_ASSIGN_OR_RETURN(ShownValue item, Read(depth + 1));
    all.text += (count++ == 0 ? "" : ", ") + item.text;
    all.json.push_back(std::move(item.json));
  }
  if (at_ >= text_.size()) return Malformed("it ends within a value");
  ++at_;
  if (count == 1 && name == "$tuple") all.text += ",";
  all.text += closing;
  if (!name.empty()) all.json = Json{{std::string(name), std::move(all.json)}};
  return all;
}

absl::StatusOr<ShownValue> ValuesReader::ReadPairs(std::string_view name, int depth) {
  Json object = Json::object(), pairs = Json::array();
  bool plain = true;   // all keys are strings that JSON can hold, each once
  std::string text = std::string(name) + "{";
  while (at_ < text_.size() && text_[at_] != '}') {
    NEVE_ASSIGN_OR_RETURN(ShownValue key, Read(depth + 1));
    if (at_ < text_.size() && text_[at_] == '}') return Malformed("a key without a value");
    NEVE_ASSIGN_OR_RETURN(ShownValue value, Read(depth + 1));
    text += (pairs.empty() ? "" : ", ") + key.text + ": " + value.text;
    plain = plain && key.is_string && codec::IsValidUtf8(key.string) && key.string.rfind('$', 0) != 0;
    pairs.push_back(Json::array({std::move(key.json), std::move(value.json)}));
  }
  if (at_ >= text_.size()) return Malformed("it ends within a value");
  ++at_;
  if (!plain) return ShownValue{Json{{"$dict", std::move(pairs)}}, text + "}"};
  // Insertion into an ordered object looks for the name each time: long ones stay pairs.
  constexpr size_t kObjectMax = 4096;
  if (pairs.size() > kObjectMax) return ShownValue{Json{{"$dict", std::move(pairs)}}, text + "}"};
  for (Json& pair : pairs) object[pair[0].get<std::string>()] = std::move(pair[1]);
  return ShownValue{std::move(object), text + "}"};
}

absl::StatusOr<ShownValue> ValuesReader::ReadNamed(char kind, int depth) {
  if (kind == 'c') {
    NEVE_ASSIGN_OR_RETURN(const ShownValue real, Read(depth + 1));
    NEVE_ASSIGN_OR_RETURN(const ShownValue imaginary, Read(depth + 1));
    return ShownValue{Json{{"$complex", Json::array({real.json, imaginary.json})}},
                      absl::StrFormat("complex(%s, %s)", real.text, imaginary.text)};
  }
  NEVE_ASSIGN_OR_RETURN(const std::string_view name, Quoted());
  if (kind == 'T') return ShownValue{Json{{"$dtype", std::string(name)}}, "torch." + Escaped(name)};
  if (kind == 'D') return ShownValue{Json{{"$device", std::string(name)}}, absl::StrFormat("device '%s'", Escaped(name))};
  NEVE_ASSIGN_OR_RETURN(ShownValue of, Read(depth + 1));
  Json json;
  json["$call"] = kind == 'N' ? "numpy." + std::string(name) : std::string(name);
  json["of"] = std::move(of.json);
  return ShownValue{std::move(json), absl::StrFormat("%s%s(%s)", kind == 'N' ? "numpy " : "", Escaped(name), of.text)};
}

}  // namespace neve::cli
