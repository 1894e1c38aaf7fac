// The ways in which old pickles write texts and long numbers.
#ifndef NEVE_FORMAT_PICKLE_TEXT_H_
#define NEVE_FORMAT_PICKLE_TEXT_H_

#include <string>
#include <string_view>

namespace neve::format {

// UTF-8 in which Python's lone surrogates stand as three bytes.
bool IsUtf8WithSurrogates(std::string_view text);

// 'it\'s\n' with its quotes, as Python 2's repr of a string. False: not so written.
bool DecodeQuoted(std::string_view line, std::string* bytes);
// Text with \uXXXX and \UXXXXXXXX, other bytes being Latin-1. UTF-8 comes out.
bool DecodeRawUnicode(std::string_view line, std::string* text);

// Texts whose characters are all below U+0100, as bytes: how protocol 2 writes bytes. False: another character.
bool Latin1FromUtf8(std::string_view text, std::string* bytes);

void AppendUtf8(uint32_t character, std::string* text);

// Whole numbers of any size: little-endian two's complement, of at most kLongBytesMax bytes, and decimal digits. Both take
// time that grows with the square of the length, which the limit makes milliseconds.
inline constexpr size_t kLongBytesMax = 8192;
bool DecimalToTwosComplement(std::string_view digits, std::string* twos);
bool TwosComplementToDecimal(std::string_view twos, std::string* digits);

// The same in hexadecimal, without leading zeros, behind a minus where it is negative. Takes time that grows with the length.
std::string TwosComplementToHex(std::string_view twos);

}  // namespace neve::format

#endif  // NEVE_FORMAT_PICKLE_TEXT_H_
