// What a steady save allocates on the caller's thread: a fixed handful of small things (the ticket, the record, a queue entry for
// each tier), however large the state. Operator new of this whole binary is replaced to count.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/engine/engine_fixture.h"

namespace {
thread_local uint64_t allocations = 0, allocated_bytes = 0;

void* Allocate(size_t bytes, size_t boundary) {
  ++allocations;
  allocated_bytes += bytes;
  void* memory = boundary == 0 ? std::malloc(bytes == 0 ? 1 : bytes)
                               : std::aligned_alloc(boundary, (bytes + boundary) / boundary * boundary);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, 0); }
void* operator new[](size_t bytes) { return Allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) { return Allocate(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return Allocate(bytes, static_cast<size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace neve {
namespace {

struct Cost {
  uint64_t count = 0, bytes = 0;
};

class EngineAllocationTest : public EngineTest {
 protected:
  // The most that one of several saves costs, once the slots are made and the layout is known.
  Cost SteadySave(TestState& state) {
    Cost most;
    for (uint64_t step = 0; step < 12; ++step) {
      const uint64_t count = allocations, bytes = allocated_bytes;
      auto ticket = Save(state, step);
      if (step >= 6) most = {std::max(most.count, allocations - count), std::max(most.bytes, allocated_bytes - bytes)};
      EXPECT_TRUE(ticket.ok() && (*ticket)->Wait("done", -1).ok());
    }
    return most;
  }
};

TEST_F(EngineAllocationTest, ASteadySaveAllocatesAHandfulHoweverLargeTheState) {
  TestState small(3, 1000), large(60, 100'000);   // 12 KB, 24 MB
  ASSERT_TRUE(Open({"ram:?slots=3", "file:" + folder_ + "?keep=2"}).ok());
  const Cost little = SteadySave(small);
  ASSERT_TRUE(Open({"ram:?slots=3", "file:" + folder_ + "?keep=2"}).ok());
  const Cost much = SteadySave(large);
  EXPECT_LE(little.count, 64u);
  EXPECT_LE(little.bytes, 8192u);
  EXPECT_EQ(much.count, little.count);
  EXPECT_LE(much.bytes, little.bytes + 2 * 16 * 6);   // the digests of its 6 chunks, in the record
  std::printf("a steady save allocates %llu times, %llu bytes in all\n", static_cast<unsigned long long>(little.count),
              static_cast<unsigned long long>(little.bytes));
}

}  // namespace
}  // namespace neve
