#include "base/os/random.h"

#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "base/error/check.h"

namespace neve::os {

void FillRandom(std::span<uint8_t> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    // Names and identities made of bytes that are not random could meet those of another job.
    NEVE_CHECK(got > 0 || (got < 0 && errno == EINTR));
    if (got > 0) done += static_cast<size_t>(got);
  }
}

std::string RandomHex(int digits) {
  std::vector<uint8_t> bytes((static_cast<size_t>(digits) + 1) / 2);
  FillRandom(bytes);
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  text.resize(static_cast<size_t>(digits));
  return text;
}

}  // namespace neve::os
