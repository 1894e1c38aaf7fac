// Numbers from a seed: xoshiro256** (Blackman and Vigna, public domain), its state filled by splitmix64. The same seed
// gives the same numbers on every machine, so a failing simulation can be run again. Not for secrets.
#ifndef NEVE_BASE_SYNC_SEEDED_RANDOM_H_
#define NEVE_BASE_SYNC_SEEDED_RANDOM_H_

#include <array>
#include <bit>
#include <cstdint>

namespace neve::sync {

class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) {
    for (uint64_t& word : state_) {
      seed += 0x9E3779B97F4A7C15u;
      uint64_t mixed = seed;
      mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
      mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
      word = mixed ^ (mixed >> 31);
    }
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // In [0, limit), limit > 0, every value equally likely: draws from the incomplete last round are thrown away.
  uint64_t Below(uint64_t limit) {
    const uint64_t surplus = (~uint64_t{0} % limit + 1) % limit;  // 2^64 mod limit
    uint64_t drawn;
    do {
      drawn = Next();
    } while (drawn > ~uint64_t{0} - surplus);
    return drawn % limit;
  }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_SEEDED_RANDOM_H_
