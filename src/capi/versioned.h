// Structs of the C API that begin with their own size, from programs built with an older or a newer neve.h.
//
//   - An older program's struct is shorter: what it lacks is 0, which asks for nothing.
//   - A newer one's is longer: what this library does not know must be 0, else the program asks for what cannot be done: Unsupported.
//   - Shorter than the struct ever was, or absurdly long: Invalid; the size was not set by the INIT macro.
#ifndef NEVE_CAPI_VERSIONED_H_
#define NEVE_CAPI_VERSIONED_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/error/status.h"

namespace neve::capi {

inline constexpr size_t kStructBytesMax = 4096;

// `first`: the size of the struct when it was first published. `macro`: what to tell the caller.
template <typename Struct>
absl::StatusOr<Struct> Adopt(const Struct* given, size_t first, const char* macro) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (given == nullptr) return Invalid(std::string("a struct made by ") + macro + " is needed, and null was given");
  const size_t size = given->struct_size;
  if (size < first || size > kStructBytesMax) {
    return Invalid("struct_size is " + std::to_string(size) + ": begin with " + macro + ", which sets it");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(Struct) && std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return Unsupported(std::string("a field of ") + macro + "'s struct is set that this library does not know: the program was built " +
                       "with a newer neve.h; install that libneve.so, or leave the field 0");
  }
  Struct adopted{};
  std::memcpy(static_cast<void*>(&adopted), given, std::min(size, sizeof(Struct)));
  adopted.struct_size = sizeof(Struct);
  return adopted;
}

}  // namespace neve::capi

#endif  // NEVE_CAPI_VERSIONED_H_
