// What every fuzzer defines.
#ifndef NEVE_TESTS_FUZZ_FUZZ_H_
#define NEVE_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace neve::fuzz {

// Inputs worth changing: good ones, and some that are nearly so.
std::vector<std::string> FuzzSeeds();

}  // namespace neve::fuzz

#endif  // NEVE_TESTS_FUZZ_FUZZ_H_
