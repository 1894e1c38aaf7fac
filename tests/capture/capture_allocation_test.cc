// Counts what is allocated while a capture runs: operator new of this whole binary is replaced.
#include <atomic>
#include <cstdlib>
#include <new>

#include "capture/random_state.h"

namespace {
std::atomic<uint64_t> allocations{0};

void* Allocate(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}
void* AllocateAligned(size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto boundary = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(boundary, (bytes + boundary) / boundary * boundary)) return memory;
  std::abort();
}
}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) { return AllocateAligned(bytes, alignment); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return AllocateAligned(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace neve::capture {
namespace {

TEST(CaptureAllocationTest, RunAllocatesNothing) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::unique_ptr<sync::Crew> crew = sync::Crew::Create(1);
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<State> state = RandomState(random);
    const CapturePlan plan(state->layout(), 64 << 10);
    std::vector<std::byte> image(plan.layout().image_bytes());
    std::vector<codec::Digest> digests(plan.chunk_count());
    const CaptureInput input = state->input();
    for (int run = 0; run < 2; ++run) {
      const uint64_t before = allocations.load();
      const absl::Status status = plan.Run(input, image, digests, *crew);
      const uint64_t after = allocations.load();
      EXPECT_EQ(status, absl::OkStatus());
      EXPECT_EQ(after, before) << "round " << round << " run " << run;
    }
  }
}

TEST(CaptureAllocationTest, TheCountingCounts) {
  const uint64_t before = allocations.load();
  const auto number = std::make_unique<uint64_t>(before);
  EXPECT_GT(allocations.load(), before);
}

}  // namespace
}  // namespace neve::capture
