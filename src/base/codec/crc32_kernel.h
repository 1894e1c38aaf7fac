// Arithmetic of the CRC's polynomial, and the loop in carry-less multiplications. Internal to this folder.
//
// Bits are reflected throughout: the highest bit of a word is the coefficient of x^0, as the checksum itself has it.
#ifndef NEVE_BASE_CODEC_CRC32_KERNEL_H_
#define NEVE_BASE_CODEC_CRC32_KERNEL_H_

#include <cstddef>
#include <cstdint>

namespace neve::codec::internal {

inline constexpr uint32_t kCrcPolynomial = 0xEDB88320U;
inline constexpr uint32_t kCrcOne = 0x80000000U;  // x^0

constexpr uint32_t CrcTimesX(uint32_t a) { return a & 1 ? a >> 1 ^ kCrcPolynomial : a >> 1; }

// a * b modulo the polynomial.
constexpr uint32_t CrcMultiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kCrcOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = CrcTimesX(b);
  }
  return product;
}

// x^n modulo the polynomial, n in bits.
constexpr uint32_t CrcPowerOfX(uint64_t n) {
  uint32_t power = kCrcOne, square = kCrcOne >> 1;
  for (; n != 0; n >>= 1) {
    if (n & 1) power = CrcMultiply(power, square);
    square = CrcMultiply(square, square);
  }
  return power;
}

// Folds `bytes` (a multiple of 64, at least 64) that follow what has the raw remainder `state`, and copies them to `target`
// unless that is null. The result: 16 bytes whose remainder, from state 0, is that of all of it.
inline constexpr uint64_t kCrcFoldBytes = 64;
inline constexpr uint64_t kCrcFoldedBytes = 16;
using CrcFold = void (*)(uint32_t state, const std::byte* source, std::byte* target, uint64_t bytes, std::byte* folded);

CrcFold PclmulCrcFold();  // null: not compiled in, or this CPU lacks PCLMULQDQ

}  // namespace neve::codec::internal

#endif  // NEVE_BASE_CODEC_CRC32_KERNEL_H_
