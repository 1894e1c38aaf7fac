#include "tensor/number_codes.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace neve::tensor {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the codes with the largest exponent mean.
enum class Top : uint8_t {
  kIeee,      // infinity, and NaN where the mantissa is not 0
  kNumbers,   // numbers, but for a mantissa of ones: NaN
  kAll,       // numbers; minus zero is the NaN
};

float DecodeSmall(uint32_t code, int exponent_bits, int mantissa_bits, int bias, Top top) {
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const uint32_t exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const bool negative = (code >> (mantissa_bits + exponent_bits)) != 0;
  const bool is_top = exponent == (1u << exponent_bits) - 1;
  if (top == Top::kIeee && is_top) return mantissa != 0 ? kNan : negative ? -kInfinity : kInfinity;
  if (top == Top::kNumbers && is_top && mantissa == (1u << mantissa_bits) - 1) return kNan;
  if (top == Top::kAll && negative && exponent == 0 && mantissa == 0) return kNan;
  const int power = (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - mantissa_bits;
  const float size = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa | 1u << mantissa_bits), power);
  return negative ? -size : size;
}

float DecodeScale(uint32_t code) { return code == 0xff ? kNan : std::ldexp(1.0f, static_cast<int>(code) - 127); }

template <size_t kCount, typename Decode>
std::array<float, kCount> TableOf(Decode decode) {
  std::array<float, kCount> table;
  for (uint32_t code = 0; code < kCount; ++code) table[code] = decode(code);
  return table;
}

// Of a type of one byte.
const float* ByteTable(DType dtype) {
  static const auto e5m2 = TableOf<256>([](uint32_t code) { return DecodeSmall(code, 5, 2, 15, Top::kIeee); });
  static const auto e4m3 = TableOf<256>([](uint32_t code) { return DecodeSmall(code, 4, 3, 7, Top::kNumbers); });
  static const auto e8m0 = TableOf<256>(DecodeScale);
  static const auto e4m3_fnuz = TableOf<256>([](uint32_t code) { return DecodeSmall(code, 4, 3, 8, Top::kAll); });
  static const auto e5m2_fnuz = TableOf<256>([](uint32_t code) { return DecodeSmall(code, 5, 2, 16, Top::kAll); });
  switch (dtype) {
    case DType::kF8E5M2: return e5m2.data();
    case DType::kF8E4M3: return e4m3.data();
    case DType::kF8E8M0: return e8m0.data();
    case DType::kF8E4M3Fnuz: return e4m3_fnuz.data();
    default: return e5m2_fnuz.data();
  }
}

const float* HalfTable() {
  static const auto table = TableOf<65536>([](uint32_t code) { return DecodeSmall(code, 5, 10, 15, Top::kIeee); });
  return table.data();
}

const float* NibbleTable() {
  static constexpr std::array<float, 16> kTable = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  return kTable.data();
}

template <typename Item, typename Real>
void Copy(const std::byte* from, size_t count, Real* to) {
  for (size_t i = 0; i < count; ++i) {
    Item item;
    std::memcpy(&item, from + i * sizeof(Item), sizeof(Item));
    to[i] = static_cast<Real>(item);
  }
}

template <typename Code, typename Real>
void LookUp(const float* table, const std::byte* from, size_t count, Real* to) {
  for (size_t i = 0; i < count; ++i) {
    Code code;
    std::memcpy(&code, from + i * sizeof(Code), sizeof(Code));
    to[i] = static_cast<Real>(table[code]);
  }
}

template <typename Real>
void Decode(DType dtype, const std::byte* from, size_t items, Real* to) {
  switch (dtype) {
    case DType::kBool:
      for (size_t i = 0; i < items; ++i) to[i] = from[i] != std::byte{0} ? Real{1} : Real{0};
      return;
    case DType::kI8:
    case DType::kQI8: return Copy<int8_t>(from, items, to);
    case DType::kU8:
    case DType::kQU8:
    case DType::kBits8: return Copy<uint8_t>(from, items, to);
    case DType::kI16: return Copy<int16_t>(from, items, to);
    case DType::kU16:
    case DType::kBits16: return Copy<uint16_t>(from, items, to);
    case DType::kI32:
    case DType::kQI32: return Copy<int32_t>(from, items, to);
    case DType::kU32: return Copy<uint32_t>(from, items, to);
    case DType::kI64: return Copy<int64_t>(from, items, to);
    case DType::kU64: return Copy<uint64_t>(from, items, to);
    case DType::kF32: return Copy<float>(from, items, to);
    case DType::kF64: return Copy<double>(from, items, to);
    case DType::kC64: return Copy<float>(from, 2 * items, to);
    case DType::kC128: return Copy<double>(from, 2 * items, to);
    case DType::kF16: return LookUp<uint16_t>(HalfTable(), from, items, to);
    case DType::kC32: return LookUp<uint16_t>(HalfTable(), from, 2 * items, to);
    case DType::kBF16:
      for (size_t i = 0; i < items; ++i) {
        uint16_t code;
        std::memcpy(&code, from + 2 * i, sizeof(code));
        to[i] = static_cast<Real>(std::bit_cast<float>(uint32_t{code} << 16));
      }
      return;
    case DType::kF8E5M2:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kF8E4M3Fnuz:
    case DType::kF8E5M2Fnuz: return LookUp<uint8_t>(ByteTable(dtype), from, items, to);
    case DType::kF4E2M1x2:
      for (size_t i = 0; i < items; ++i) {
        const auto pair = std::to_integer<uint32_t>(from[i]);
        to[2 * i] = NibbleTable()[pair & 15];
        to[2 * i + 1] = NibbleTable()[pair >> 4];
      }
      return;
  }
}

}  // namespace

bool NeedsLongDouble(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kC128 || dtype == DType::kI64 || dtype == DType::kU64;
}

bool IsComplex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128 || dtype == DType::kC32; }

void DecodeNumbers(DType dtype, const std::byte* from, size_t items, double* to) { Decode(dtype, from, items, to); }
void DecodeNumbers(DType dtype, const std::byte* from, size_t items, long double* to) { Decode(dtype, from, items, to); }

}  // namespace neve::tensor
