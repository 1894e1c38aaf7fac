// HMAC-SHA256, by OpenSSL's libcrypto: found at run time, since every host that runs Python has it and nothing else here needs it.
//
// Thread: any. Where no libcrypto can be loaded, HmacAvailable says what was tried; nothing is equal to anything then.
#ifndef NEVE_BASE_CODEC_HMAC_H_
#define NEVE_BASE_CODEC_HMAC_H_

#include <string>
#include <string_view>

#include "base/error/status.h"

namespace neve::codec {

inline constexpr size_t kHmacBytes = 32;

absl::Status HmacAvailable();                                        // Unsupported, naming what is missing
// kHmacBytes (RFC 2104); empty where libcrypto is missing or refuses (a FIPS provider does not take every key).
std::string HmacSha256(std::string_view key, std::string_view text);
bool EqualInConstantTime(std::string_view a, std::string_view b);    // time depends on the sizes only

// The same for a library of that name; for tests of what happens without one.
absl::Status HmacAvailableIn(const char* library);

}  // namespace neve::codec

#endif  // NEVE_BASE_CODEC_HMAC_H_
