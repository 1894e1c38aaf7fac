#include "base/codec/hmac.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>

namespace neve::codec {
namespace {

// As <openssl/hmac.h>, <openssl/evp.h> and <openssl/crypto.h> declare them, in 1.1 and 3.
struct Crypto {
  const void* (*Sha256)() = nullptr;
  unsigned char* (*Hmac)(const void* digest, const void* key, int key_bytes, const unsigned char* data, size_t bytes, unsigned char* out,
                         unsigned int* out_bytes) = nullptr;
  int (*Compare)(const void* a, const void* b, size_t bytes) = nullptr;
  absl::Status status;
};

Crypto LoadFrom(const char* library) {
  Crypto crypto;
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    crypto.status = Unsupported(std::string("OpenSSL's libcrypto is needed and cannot be loaded: ") + (why == nullptr ? library : why));
    return crypto;
  }
  const auto resolve = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, name));
    if (*function == nullptr) crypto.status = Unsupported(std::string("OpenSSL's libcrypto is needed; ") + library + " has no " + name);
  };
  resolve("EVP_sha256", &crypto.Sha256);
  resolve("HMAC", &crypto.Hmac);
  resolve("CRYPTO_memcmp", &crypto.Compare);
  return crypto;
}

const Crypto& Loaded() {
  static const Crypto crypto = [] {
    Crypto found;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"}) {
      Crypto tried = LoadFrom(name);
      if (tried.status.ok()) return tried;
      if (found.status.ok()) found = tried;   // the first one's reason is told
    }
    return found;
  }();
  return crypto;
}

}  // namespace

absl::Status HmacAvailable() { return Loaded().status; }

absl::Status HmacAvailableIn(const char* library) { return LoadFrom(library).status; }

std::string HmacSha256(std::string_view key, std::string_view text) {
  const Crypto& crypto = Loaded();
  if (!crypto.status.ok()) return "";
  std::array<unsigned char, kHmacBytes> out{};
  unsigned int bytes = 0;
  // A key without a pointer would mean the one of an earlier call.
  const unsigned char* const made = crypto.Hmac(crypto.Sha256(), key.empty() ? "" : key.data(), static_cast<int>(key.size()),
                                                reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), &bytes);
  if (made == nullptr || bytes != kHmacBytes) return "";
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  const Crypto& crypto = Loaded();
  return crypto.status.ok() && a.size() == b.size() && crypto.Compare(a.data(), b.data(), a.size()) == 0;
}

}  // namespace neve::codec
