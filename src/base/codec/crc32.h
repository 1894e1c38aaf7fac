// CRC-32 as zip, gzip and PNG have it: polynomial 0x04C11DB7, reflected, all ones before and after. By carry-less
// multiplication where the CPU has it (one core: faster than memory), else eight tables. The choice is made at run time.
#ifndef NEVE_BASE_CODEC_CRC32_H_
#define NEVE_BASE_CODEC_CRC32_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace neve::codec {

// The checksum of what `crc` is the checksum of, followed by `bytes`. Begin with 0; any cut into pieces gives the same value.
uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes);

// The checksum of two texts in a row from those of each: parts may be summed in parallel, in any order.
uint32_t Crc32Combine(uint32_t first, uint32_t second, uint64_t second_bytes);

// Crc32, and a copy of the bytes to `target` on the way.
uint32_t Crc32Copy(uint32_t crc, std::byte* target, std::span<const std::byte> bytes);

// "pclmul" or "portable": which code runs. ForcePortableCrc32 is for the tests that compare both.
std::string_view Crc32Code();
void ForcePortableCrc32(bool force);

}  // namespace neve::codec

#endif  // NEVE_BASE_CODEC_CRC32_H_
