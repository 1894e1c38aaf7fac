#include "engine/pickle_text.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace neve::engine {
namespace {

// The magnitude of digits without a sign, in words, the least first.
std::vector<uint32_t> WordsOf(std::string_view digits) {
  std::vector<uint32_t> words;
  if (digits.starts_with("0x")) {   // long numbers, eight digits a word
    for (digits.remove_prefix(2); !digits.empty(); digits.remove_suffix(std::min<size_t>(8, digits.size()))) {
      const std::string_view part = digits.substr(digits.size() - std::min<size_t>(8, digits.size()));
      uint32_t word = 0;
      std::from_chars(part.data(), part.data() + part.size(), word, 16);
      words.push_back(word);
    }
    return words;
  }
  for (const char c : digits) {
    uint64_t carry = static_cast<uint64_t>(c - '0');
    for (uint32_t& word : words) {
      carry += uint64_t{word} * 10;
      word = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry > 0) words.push_back(static_cast<uint32_t>(carry));
  }
  return words;
}

// Two's complement, little endian, as short as can be.
std::string LongBytes(const std::string& digits) {
  const bool negative = digits.starts_with('-');
  const std::vector<uint32_t> words = WordsOf(std::string_view(digits).substr(negative ? 1 : 0));
  std::string bytes;
  for (const uint32_t word : words) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(word >> (8 * i)));
  }
  bytes.push_back('\0');
  if (negative) {
    bool carry = true;
    for (char& byte : bytes) {
      const auto value = static_cast<uint8_t>(~static_cast<uint8_t>(byte));
      byte = static_cast<char>(value + (carry ? 1 : 0));
      carry = carry && byte == 0;
    }
  }
  const auto spare = [&] {   // the last byte only repeats the sign
    if (bytes.size() < 2) return false;
    const bool next_negative = (bytes[bytes.size() - 2] & '\x80') != 0;
    return next_negative ? bytes.back() == '\xff' : bytes.back() == '\0';
  };
  while (spare()) bytes.pop_back();
  return bytes;
}

}  // namespace

void PickleText::Integer(int64_t value) {
  if (value >= 0 && value < 256) {
    text_.push_back('K');
    return Little(static_cast<uint8_t>(value));
  }
  if (value >= INT32_MIN && value <= INT32_MAX) {
    text_.push_back('J');
    return Little(static_cast<uint32_t>(value));
  }
  Integer(std::to_string(value));
}

void PickleText::Integer(const std::string& digits) {
  int64_t small = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), small);
  if (error == std::errc() && end == digits.data() + digits.size() && small >= INT32_MIN && small <= INT32_MAX) {
    return Integer(small);
  }
  const std::string bytes = LongBytes(digits);
  if (bytes.size() < 256) {
    text_.push_back('\x8a');
    Little(static_cast<uint8_t>(bytes.size()));
  } else {
    text_.push_back('\x8b');
    Little(static_cast<uint32_t>(bytes.size()));
  }
  text_.append(bytes);
}

void PickleText::Float(double value) {
  text_.push_back('G');
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) text_.push_back(static_cast<char>(bits >> (8 * i)));
}

void PickleText::Text(std::string_view utf8) {
  text_.push_back('X');
  Little(static_cast<uint32_t>(utf8.size()));
  text_.append(utf8);
}

// Protocol 2 has no bytes: they go as the text of the same code points, encoded again by a codec.
void PickleText::Bytes(std::string_view bytes) {
  Global("_codecs", "encode");
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xc0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  Text(text);
  Text("latin1");
  Tuple(2);
  Reduce();
}

void PickleText::Global(const std::string& module, const std::string& name) {
  const std::string both = module + "\n" + name + "\n";
  const auto found = globals_.find(both);
  if (found != globals_.end()) return Get(found->second);
  text_.append("c").append(both);
  globals_[both] = Memoize();
}

void PickleText::Tuple(size_t items) {
  switch (items) {
    case 0: text_.push_back(')'); return;
    case 1: text_.push_back('\x85'); return;
    case 2: text_.push_back('\x86'); return;
    case 3: text_.push_back('\x87'); return;
    default: text_.push_back('t'); return;
  }
}

uint32_t PickleText::Memoize() {
  if (memoized_ < 256) {
    text_.push_back('q');
    Little(static_cast<uint8_t>(memoized_));
  } else {
    text_.push_back('r');
    Little(memoized_);
  }
  return memoized_++;
}

void PickleText::Get(uint32_t number) {
  if (number < 256) {
    text_.push_back('h');
    return Little(static_cast<uint8_t>(number));
  }
  text_.push_back('j');
  Little(number);
}

}  // namespace neve::engine
