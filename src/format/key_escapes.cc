#include "format/key_escapes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

Value TextValue(std::string text) {
  Value value;
  value.kind = Value::Kind::kText;
  value.text = std::move(text);
  return value;
}

// A JSON string in which, as Python has it, lone surrogates may stand as bytes of their own: JSON readers refuse those.
std::optional<std::string> JsonKey(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string key;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') return std::nullopt;
    if (text[i] != '\\') {
      key.push_back(text[i]);
      continue;
    }
    if (++i >= text.size()) return std::nullopt;
    constexpr std::string_view kNames = "\"\\/bfnrt", kBytes = "\"\\/\b\f\n\r\t";
    if (const size_t known = kNames.find(text[i]); known != std::string_view::npos) {
      key.push_back(kBytes[known]);
      continue;
    }
    unsigned code = 0;
    if (text[i] != 'u' || i + 4 >= text.size()) return std::nullopt;
    for (int digit = 0; digit < 4; ++digit) {
      const char c = text[++i];
      const size_t nibble = std::string_view("0123456789abcdef").find(c);   // as Python writes them
      if (nibble == std::string_view::npos) return std::nullopt;
      code = code * 16 + static_cast<unsigned>(nibble);
    }
    if (code >= 0x80) return std::nullopt;   // only control characters are escaped by number
    key.push_back(static_cast<char>(code));
  }
  return key;
}

// Keys of no names: control characters, and the surrogates that UTF-8 cannot hold.
bool NeedsJson(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }) ||
         !codec::IsValidUtf8(text);
}

}  // namespace

absl::StatusOr<Value> KeyOfComponent(std::string_view component) {
  if (component.empty()) return Damaged("a name has an empty component");
  if (component[0] != '~') return TextValue(std::string(component));
  const char kind = component.size() > 1 ? component[1] : '\0';
  const std::string_view rest = component.substr(component.size() > 1 ? 2 : 1);
  std::optional<std::string> text;
  switch (kind) {
    case '~': return TextValue(std::string(component.substr(1)));
    case 'e':
      if (rest.empty()) return TextValue("");
      break;
    case 'j':
      if (const std::optional<std::string> json = codec::Base64UrlDecode(rest); json.has_value() && IsPythonText(*json)) {
        if (std::optional<std::string> key = JsonKey(*json); key.has_value()) return TextValue(*std::move(key));
      }
      break;
    case 'p': text = codec::Base64UrlDecode(rest); break;
    case 'i':
    case 'd': text = std::string(1, kind) + std::string(rest) + ";"; break;
    case 'y': text = "y" + std::string(rest) + ";"; break;
    case 't':
    case 'f':
    case 'n':
      if (rest.empty()) text = std::string(1, kind);
      break;
    default: break;
  }
  if (text.has_value()) {
    ValuesReader reader(*text);
    absl::StatusOr<Value> key = reader.NextKey();
    if (key.ok() && reader.position() == text->size()) return *std::move(key);
  }
  return Damaged(absl::StrFormat("the escaped key %s is malformed", Quoted(component.substr(0, 80))));
}

std::string EscapeTextKey(std::string_view text) {
  if (text.empty()) return "~e";
  if (NeedsJson(text)) {   // as Python's json.dumps(ensure_ascii=False)
    std::string json;
    AppendJsonString(text, &json);
    return "~j" + codec::Base64UrlEncode(json);
  }
  return text.front() == '~' ? "~" + std::string(text) : std::string(text);
}

std::string ComponentOfKey(const Value& key, std::string_view text) {
  if (key.kind == Value::Kind::kText) return EscapeTextKey(key.text);
  switch (text.front()) {
    case 't':
    case 'f':
    case 'n': return "~" + std::string(text);
    case 'i':
    case 'd':
    case 'y': return "~" + std::string(text.substr(0, text.size() - 1));   // without its semicolon
    default: return "~p" + codec::Base64UrlEncode(text);
  }
}

}  // namespace neve::format
