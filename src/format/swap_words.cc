#include "format/swap_words.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace neve::format {

absl::Status ReadSwapped(const ReadBytes& read, uint32_t word, uint64_t offset, std::span<std::byte> target) {
  constexpr uint64_t kBlockBytes = 64u << 10;
  if (word == 1) return read(offset, target);
  std::vector<std::byte> block;
  while (!target.empty()) {
    const uint64_t within = offset % word;
    const uint64_t step = std::min<uint64_t>(target.size(), kBlockBytes - within);
    block.resize((within + step + word - 1) / word * word);  // storages are made of whole words
    NEVE_RETURN_IF_ERROR(read(offset - within, block));
    for (auto at = block.begin(); at != block.end(); at += word) std::reverse(at, at + word);
    std::memcpy(target.data(), block.data() + within, step);
    target = target.subspan(step);
    offset += step;
  }
  return absl::OkStatus();
}

}  // namespace neve::format
