// A fuzzer as a test: its seeds, and mutations of them from a fixed seed. Usage: PROGRAM [count [seed]]
#include <cstdio>
#include <cstdlib>
#include <random>

#include "fuzz/fuzz.h"

namespace {

// Changes one to four places: flips, insertions, removals, doubled stretches, and numbers that are hard on parsers.
std::string Mutate(std::string text, std::mt19937_64& random) {
  static const char* const kWords[] = {"-1", "18446744073709551615", "1e400", "\"\"", "[]", "{", "}", "\\ud800", "\xff", "null", ":"};
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes; ++i) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    switch (random() % 6) {
      case 0: if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8))); break;
      case 1: text.insert(at, 1, static_cast<char>(random())); break;
      case 2: text.erase(at, 1 + random() % 8); break;
      case 3: text.insert(at, text.substr(at, 1 + random() % 32)); break;
      case 4: text.insert(at, kWords[random() % std::size(kWords)]); break;
      default: text.resize(at); break;
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_long = std::getenv("NEVE_LONG") != nullptr;
  const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : is_long ? 2'000'000 : 50'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::printf("%llu mutations, seed %llu\n", static_cast<unsigned long long>(count), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  const std::vector<std::string> seeds = neve::fuzz::FuzzSeeds();
  std::mt19937_64 random(seed);
  for (const std::string& text : seeds) LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  for (uint64_t i = 0; i < count; ++i) {
    const std::string text = Mutate(seeds[random() % seeds.size()], random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  return 0;
}
