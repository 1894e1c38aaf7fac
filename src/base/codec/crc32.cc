#include "base/codec/crc32.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/codec/crc32_kernel.h"

namespace neve::codec {
namespace {

using internal::CrcMultiply;
using internal::CrcPowerOfX;
using internal::CrcTimesX;

constexpr int kSlices = 8;
constexpr uint64_t kCopyBlockBytes = 4096;  // stays in the first cache between the checksum and the copy

std::atomic<bool> portable_forced{false};

// tables[k][b]: what byte b leaves when k more bytes follow it.
constexpr std::array<std::array<uint32_t, 256>, kSlices> MakeTables() {
  std::array<std::array<uint32_t, 256>, kSlices> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = CrcTimesX(remainder);
    tables[0][byte] = remainder;
  }
  for (int slice = 1; slice < kSlices; ++slice) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

uint32_t Advance(uint32_t state, const std::byte* source, uint64_t bytes) {
  if constexpr (std::endian::native == std::endian::little) {
    for (; bytes >= kSlices; bytes -= kSlices, source += kSlices) {
      uint64_t word;
      std::memcpy(&word, source, sizeof word);
      word ^= state;
      state = 0;
      for (int i = 0; i < kSlices; ++i) state ^= kTables[kSlices - 1 - i][word >> 8 * i & 255];
    }
  }
  for (; bytes > 0; --bytes, ++source) state = state >> 8 ^ kTables[0][(state ^ static_cast<uint32_t>(*source)) & 255];
  return state;
}

internal::CrcFold CurrentFold() {
  static const internal::CrcFold pclmul = internal::PclmulCrcFold();
  return portable_forced.load(std::memory_order_relaxed) ? nullptr : pclmul;
}

uint32_t Fold(internal::CrcFold fold, uint32_t state, const std::byte* source, std::byte* target, uint64_t bytes) {
  std::byte folded[internal::kCrcFoldedBytes];
  fold(state, source, target, bytes, folded);
  return Advance(0, folded, sizeof folded);
}

}  // namespace

uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes) {
  uint32_t state = ~crc;
  uint64_t whole = 0;
  if (const internal::CrcFold fold = CurrentFold(); fold != nullptr) {
    whole = bytes.size() / internal::kCrcFoldBytes * internal::kCrcFoldBytes;
    if (whole > 0) state = Fold(fold, state, bytes.data(), nullptr, whole);
  }
  return ~Advance(state, bytes.data() + whole, bytes.size() - whole);
}

uint32_t Crc32Copy(uint32_t crc, std::byte* target, std::span<const std::byte> bytes) {
  uint32_t state = ~crc;
  uint64_t done = 0;
  if (const internal::CrcFold fold = CurrentFold(); fold != nullptr) {
    done = bytes.size() / internal::kCrcFoldBytes * internal::kCrcFoldBytes;
    if (done > 0) state = Fold(fold, state, bytes.data(), target, done);
  }
  while (done < bytes.size()) {
    // Summed where it was copied to: the checksum is of what the target holds.
    const uint64_t step = std::min<uint64_t>(kCopyBlockBytes, bytes.size() - done);
    std::memcpy(target + done, bytes.data() + done, step);
    state = Advance(state, target + done, step);
    done += step;
  }
  return ~state;
}

uint32_t Crc32Combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  // The ones before and after cancel out; what is left is the first text moved up by the length of the second.
  uint32_t power = internal::kCrcOne, square = CrcPowerOfX(8);
  for (uint64_t n = second_bytes; n != 0; n >>= 1) {
    if (n & 1) power = CrcMultiply(power, square);
    square = CrcMultiply(square, square);
  }
  return CrcMultiply(first, power) ^ second;
}

std::string_view Crc32Code() { return CurrentFold() == nullptr ? "portable" : "pclmul"; }

void ForcePortableCrc32(bool force) { portable_forced.store(force, std::memory_order_relaxed); }

}  // namespace neve::codec
