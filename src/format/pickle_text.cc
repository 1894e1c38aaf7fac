#include "format/pickle_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"

namespace neve::format {
namespace {

constexpr size_t kDigitsMax = kLongBytesMax * 12 / 5;  // 2.41 digits a byte
constexpr uint64_t kChunk = 1'000'000'000;             // nine decimal digits at once
constexpr size_t kChunkDigits = 9;

bool HexNumber(std::string_view digits, uint32_t* value) {
  *value = 0;
  for (const char c : digits) {
    uint32_t digit;
    if (c >= '0' && c <= '9')
      digit = static_cast<uint32_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      digit = static_cast<uint32_t>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      digit = static_cast<uint32_t>(c - 'A' + 10);
    else
      return false;
    *value = *value << 4 | digit;
  }
  return true;
}

// Magnitude of a number as 32-bit words, least first.
using Words = std::vector<uint32_t>;

void Negate(std::string* twos) {
  bool carry = true;
  for (char& c : *twos) {
    const unsigned byte = static_cast<unsigned char>(~c) + (carry ? 1u : 0u);
    carry = byte > 255;
    c = static_cast<char>(byte);
  }
}

}  // namespace

bool IsUtf8WithSurrogates(std::string_view text) {
  // A surrogate is 0xED, 0xA0 to 0xBF, and one more byte; it is looked past, everything else has to be valid.
  while (!text.empty()) {
    size_t at = text.find('\xED');
    while (at != std::string_view::npos && (text.size() - at < 3 || static_cast<unsigned char>(text[at + 1]) < 0xA0)) {
      at = text.find('\xED', at + 1);
    }
    if (at == std::string_view::npos) return codec::IsValidUtf8(text);
    if (!codec::IsValidUtf8(text.substr(0, at)) || static_cast<unsigned char>(text[at + 1]) > 0xBF ||
        (static_cast<unsigned char>(text[at + 2]) & 0xC0) != 0x80) {
      return false;
    }
    text.remove_prefix(at + 3);
  }
  return true;
}

void AppendUtf8(uint32_t character, std::string* text) {
  if (character < 0x80) {
    text->push_back(static_cast<char>(character));
    return;
  }
  const int more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
  static constexpr uint32_t kFirst[] = {0, 0xC0, 0xE0, 0xF0};
  text->push_back(static_cast<char>(kFirst[more] | character >> 6 * more));
  for (int i = more; i-- > 0;) text->push_back(static_cast<char>(0x80 | (character >> 6 * i & 0x3F)));
}

bool DecodeQuoted(std::string_view line, std::string* bytes) {
  if (line.size() < 2 || (line[0] != '\'' && line[0] != '"') || line.back() != line[0]) return false;
  const std::string_view inner = line.substr(1, line.size() - 2);
  for (size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] != '\\') {
      bytes->push_back(inner[i]);
      continue;
    }
    if (++i == inner.size()) return false;
    uint32_t value;
    switch (inner[i]) {
      case 'n':
        bytes->push_back('\n');
        break;
      case 't':
        bytes->push_back('\t');
        break;
      case 'r':
        bytes->push_back('\r');
        break;
      case '\\':
      case '\'':
      case '"':
        bytes->push_back(inner[i]);
        break;
      case 'x':
        if (inner.size() - i < 3 || !HexNumber(inner.substr(i + 1, 2), &value)) return false;
        bytes->push_back(static_cast<char>(value));
        i += 2;
        break;
      default:
        return false;
    }
  }
  return true;
}

bool DecodeRawUnicode(std::string_view line, std::string* text) {
  for (size_t i = 0; i < line.size(); ++i) {
    const bool escape = line[i] == '\\' && i + 1 < line.size() && (line[i + 1] == 'u' || line[i + 1] == 'U');
    if (!escape) {
      AppendUtf8(static_cast<unsigned char>(line[i]), text);
      continue;
    }
    const size_t digits = line[i + 1] == 'u' ? 4 : 8;
    uint32_t character;
    if (line.size() - i - 2 < digits || !HexNumber(line.substr(i + 2, digits), &character) || character > 0x10FFFF) return false;
    AppendUtf8(character, text);
    i += 1 + digits;
  }
  return true;
}

bool Latin1FromUtf8(std::string_view text, std::string* bytes) {
  bytes->reserve(bytes->size() + text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      bytes->push_back(text[i]);
      continue;
    }
    if ((first != 0xC2 && first != 0xC3) || i + 1 == text.size()) return false;
    bytes->push_back(static_cast<char>((first & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F)));
  }
  return true;
}

bool DecimalToTwosComplement(std::string_view digits, std::string* twos) {
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  if (digits.empty() || digits.size() > kDigitsMax) return false;
  Words words;
  for (size_t at = 0; at < digits.size();) {
    const size_t take = (digits.size() - at - 1) % kChunkDigits + 1;
    uint64_t chunk = 0, scale = 1;
    for (size_t i = 0; i < take; ++i, scale *= 10) {
      const char c = digits[at + i];
      if (c < '0' || c > '9') return false;
      chunk = chunk * 10 + static_cast<uint64_t>(c - '0');
    }
    at += take;
    uint64_t carry = chunk;
    for (uint32_t& word : words) {
      carry += word * scale;
      word = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry > 0) words.push_back(static_cast<uint32_t>(carry));
  }
  twos->clear();
  for (const uint32_t word : words) {
    for (int i = 0; i < 4; ++i) twos->push_back(static_cast<char>(word >> 8 * i));
  }
  twos->push_back('\0');  // the sign
  if (negative) Negate(twos);
  return true;
}

std::string TwosComplementToHex(std::string_view twos) {
  std::string magnitude(twos);
  const bool negative = !twos.empty() && (twos.back() & 0x80) != 0;
  if (negative) Negate(&magnitude);
  std::string text;
  for (size_t i = magnitude.size(); i-- > 0;) text += absl::StrFormat("%02x", static_cast<unsigned char>(magnitude[i]));
  text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
  if (text.empty()) text = "0";
  return negative ? "-" + text : text;
}

bool TwosComplementToDecimal(std::string_view twos, std::string* digits) {
  if (twos.size() > kLongBytesMax) return false;
  std::string magnitude(twos);
  const bool negative = !twos.empty() && (twos.back() & 0x80) != 0;
  if (negative) Negate(&magnitude);
  // What was 0x80...0 is its own negative, and right when it is read without a sign.
  magnitude.resize((magnitude.size() + 3) / 4 * 4, '\0');
  Words words(magnitude.size() / 4);
  for (size_t i = 0; i < magnitude.size(); ++i) {
    words[i / 4] |= static_cast<uint32_t>(static_cast<unsigned char>(magnitude[i])) << 8 * (i % 4);
  }
  std::string reversed;
  while (!words.empty() && words.back() == 0) words.pop_back();
  while (!words.empty()) {
    uint64_t rest = 0;
    for (size_t i = words.size(); i-- > 0;) {
      const uint64_t value = rest << 32 | words[i];
      words[i] = static_cast<uint32_t>(value / kChunk);
      rest = value % kChunk;
    }
    while (!words.empty() && words.back() == 0) words.pop_back();
    for (size_t i = 0; i < kChunkDigits && (!words.empty() || rest > 0); ++i, rest /= 10) {
      reversed.push_back(static_cast<char>('0' + rest % 10));
    }
  }
  if (reversed.empty()) reversed = "0";
  if (negative) reversed.push_back('-');
  digits->assign(reversed.rbegin(), reversed.rend());
  return true;
}

}  // namespace neve::format
