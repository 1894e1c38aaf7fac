// Small text encodings: hex, base64url without padding (RFC 4648 section 5).
#ifndef NEVE_BASE_CODEC_TEXT_H_
#define NEVE_BASE_CODEC_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace neve::codec {
std::string HexEncode(std::span<const uint8_t> bytes);
std::optional<std::string> HexDecode(std::string_view text);
std::string Base64UrlEncode(std::string_view bytes);
std::optional<std::string> Base64UrlDecode(std::string_view text);   // refuses padding and foreign characters
bool IsValidUtf8(std::string_view text);   // strict: no surrogates, no overlong forms, at most U+10FFFF
}  // namespace neve::codec

#endif  // NEVE_BASE_CODEC_TEXT_H_
