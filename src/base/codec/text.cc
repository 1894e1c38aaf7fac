#include "base/codec/text.h"

#include <array>

namespace neve::codec {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";
constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

constexpr std::array<int8_t, 256> kBase64Values = [] {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kBase64Digits.size(); ++i) values[static_cast<uint8_t>(kBase64Digits[i])] = static_cast<int8_t>(i);
  return values;
}();

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string HexEncode(std::span<const uint8_t> bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

std::optional<std::string> HexDecode(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = HexValue(text[i]), low = HexValue(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

std::string Base64UrlEncode(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() * 4 + 2) / 3);
  uint32_t pending = 0;
  int pending_bits = 0;
  for (const char c : bytes) {
    pending = pending << 8 | static_cast<uint8_t>(c);
    pending_bits += 8;
    while (pending_bits >= 6) {
      pending_bits -= 6;
      text += kBase64Digits[pending >> pending_bits & 63];
    }
  }
  if (pending_bits > 0) text += kBase64Digits[pending << (6 - pending_bits) & 63];
  return text;
}

std::optional<std::string> Base64UrlDecode(std::string_view text) {
  if (text.size() % 4 == 1) return std::nullopt;  // six bits make no byte
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t pending = 0;
  int pending_bits = 0;
  for (const char c : text) {
    const int value = kBase64Values[static_cast<uint8_t>(c)];
    if (value < 0) return std::nullopt;
    pending = pending << 6 | static_cast<uint32_t>(value);
    pending_bits += 6;
    if (pending_bits >= 8) {
      pending_bits -= 8;
      bytes += static_cast<char>(pending >> pending_bits & 255);
    }
  }
  // The bits left over have to be zero, so that each byte string has one text only.
  if ((pending & ((1u << pending_bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    // Number of bytes that follow, and the allowed range of the first of them: it alone excludes overlong forms,
    // surrogates and what lies above U+10FFFF (table 3-7 of the Unicode standard).
    size_t following;
    uint8_t low = 0x80, high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      following = 1;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      following = 2;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      following = 3;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return false;
    }
    if (text.size() - i <= following) return false;
    for (size_t k = 1; k <= following; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      if (byte < low || byte > high) return false;
      low = 0x80;
      high = 0xBF;
    }
    i += following + 1;
  }
  return true;
}

}  // namespace neve::codec
