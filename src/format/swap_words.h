// Bytes of another byte order: whole words are read and turned around, whatever part of them is asked for.
#ifndef NEVE_FORMAT_SWAP_WORDS_H_
#define NEVE_FORMAT_SWAP_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/error/status.h"

namespace neve::format {

using ReadBytes = std::function<absl::Status(uint64_t offset, std::span<std::byte> target)>;

// Bytes [offset, offset + target.size()) of what `read` reads, with the words of `word` bytes turned around. 1: as they are.
absl::Status ReadSwapped(const ReadBytes& read, uint32_t word, uint64_t offset, std::span<std::byte> target);

}  // namespace neve::format

#endif  // NEVE_FORMAT_SWAP_WORDS_H_
