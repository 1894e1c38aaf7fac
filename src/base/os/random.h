// Random bytes from the system (getrandom). Simulations do not use this: they take their randomness from the executor.
#ifndef NEVE_BASE_OS_RANDOM_H_
#define NEVE_BASE_OS_RANDOM_H_

#include <cstdint>
#include <span>
#include <string>

namespace neve::os {
void FillRandom(std::span<uint8_t> bytes);
std::string RandomHex(int digits);
}  // namespace neve::os

#endif  // NEVE_BASE_OS_RANDOM_H_
