#include "format/json_text.h"

#include <charconv>

#include "base/codec/text.h"

namespace neve::format {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void AppendEscape(unsigned char c, std::string* out) {
  switch (c) {
    case '"': out->append("\\\""); return;
    case '\\': out->append("\\\\"); return;
    case '\b': out->append("\\b"); return;
    case '\f': out->append("\\f"); return;
    case '\n': out->append("\\n"); return;
    case '\r': out->append("\\r"); return;
    case '\t': out->append("\\t"); return;
    default:
      out->append("\\u00");
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
  }
}

template <typename Integer>
void AppendInteger(Integer value, std::string* out) {
  char digits[24];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  out->append(digits, end);
}

}  // namespace

void AppendJsonEscaped(std::string_view text, std::string* out) {
  size_t plain = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text.substr(plain, i - plain));
    AppendEscape(c, out);
    plain = i + 1;
  }
  out->append(text.substr(plain));
}

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendJsonEscaped(text, out);
  out->push_back('"');
}

void AppendJsonText(std::string_view text, std::string* out) {
  if (codec::IsValidUtf8(text)) return AppendJsonString(text, out);
  out->push_back('"');
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80) {
      AppendJsonEscaped(std::string_view(&c, 1), out);
    } else {
      out->append("\\ufffd");
    }
  }
  out->push_back('"');
}

void AppendNumber(uint64_t value, std::string* out) { AppendInteger(value, out); }
void AppendNumber(int64_t value, std::string* out) { AppendInteger(value, out); }

void AppendNumbers(std::span<const int64_t> values, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendInteger(values[i], out);
  }
  out->push_back(']');
}

std::string Quoted(std::string_view name) {
  constexpr size_t kShown = 200;
  const bool cut = name.size() > kShown;
  std::string_view shown = name.substr(0, kShown);
  // Do not cut within a character: the continuation bytes of the last one go with it.
  if (cut) {
    while (!shown.empty() && (static_cast<unsigned char>(name[shown.size()]) & 0xC0) == 0x80) shown.remove_suffix(1);
  }
  std::string out;
  if (codec::IsValidUtf8(shown)) {
    AppendJsonString(shown, &out);
  } else {
    out.push_back('"');
    for (const char c : shown) {
      const unsigned char byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        AppendJsonEscaped(std::string_view(&c, 1), &out);
      } else {
        out.append("\\x");
        out.push_back(kHex[byte >> 4]);
        out.push_back(kHex[byte & 15]);
      }
    }
    out.push_back('"');
  }
  if (cut) out.append("...");
  return out;
}

}  // namespace neve::format
