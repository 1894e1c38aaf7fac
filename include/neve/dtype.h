// Element types. A superset of safetensors' names; what safetensors lacks is stored as U8 with the true type in the tree.
#ifndef NEVE_DTYPE_H_
#define NEVE_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace neve {

// Values are part of the C ABI: append only.
enum class DType : uint8_t {
  kBool = 1, kU8, kI8, kF8E5M2, kF8E4M3, kF8E8M0, kF8E4M3Fnuz, kF8E5M2Fnuz,
  kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kI64, kU64, kF64, kC64,
  kC128, kC32,            // no safetensors name
  kF4E2M1x2,              // two values a byte; torch's float4_e2m1fn_x2; safetensors "F4" counts values
  kBits8, kBits16,        // torch.bits8/bits1x8 and friends: raw bytes
  kQI8, kQU8, kQI32,      // quantized storages
};

// Bytes of one element (of one pair for kF4E2M1x2).
uint64_t ItemBytes(DType dtype);
// "F32", "BF16"; for those without a safetensors name our own ("C128"), which stands in the tree only.
std::string_view Name(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);
// Whether a header may name it. Otherwise it is stored as U8 with one more dimension of ItemBytes(dtype).
bool HasSafetensorsName(DType dtype);

}  // namespace neve

#endif  // NEVE_DTYPE_H_
