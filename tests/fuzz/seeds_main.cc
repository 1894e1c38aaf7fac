// Gives libFuzzer the seeds without a corpus of files: a fifth of the inputs are mutations of a seed.
#include <algorithm>
#include <cstring>

#include "fuzz/fuzz.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  static const std::vector<std::string>& seeds = *new std::vector<std::string>(neve::fuzz::FuzzSeeds());
  if (seed % 5 == 0) {
    const std::string& chosen = seeds[seed / 5 % seeds.size()];
    size = std::min(chosen.size(), max_size);
    std::memcpy(data, chosen.data(), size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
