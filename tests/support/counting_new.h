// Counts what a test binary allocates: its operator new is replaced. Include it in one source file of the binary.
#ifndef NEVE_TESTS_SUPPORT_COUNTING_NEW_H_
#define NEVE_TESTS_SUPPORT_COUNTING_NEW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace neve::testing {

struct Allocated {
  uint64_t count = 0, bytes = 0;
};
inline thread_local Allocated by_this_thread;
inline std::atomic<uint64_t> allocations_of_all_threads{0};

// Neither is inlined: compilers take malloc with operator delete, or operator new with free, for a mistake otherwise.
__attribute__((noinline)) inline void* CountedAllocation(size_t bytes, size_t boundary) {
  ++by_this_thread.count;
  by_this_thread.bytes += bytes;
  allocations_of_all_threads.fetch_add(1, std::memory_order_relaxed);
  void* memory = boundary == 0 ? std::malloc(bytes == 0 ? 1 : bytes)
                               : std::aligned_alloc(boundary, (bytes + boundary) / boundary * boundary);
  if (memory == nullptr) std::abort();
  return memory;
}

__attribute__((noinline)) inline void Release(void* memory) noexcept { std::free(memory); }

}  // namespace neve::testing

void* operator new(size_t bytes) { return neve::testing::CountedAllocation(bytes, 0); }
void* operator new[](size_t bytes) { return neve::testing::CountedAllocation(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t boundary) {
  return neve::testing::CountedAllocation(bytes, static_cast<size_t>(boundary));
}
void* operator new[](size_t bytes, std::align_val_t boundary) {
  return neve::testing::CountedAllocation(bytes, static_cast<size_t>(boundary));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return neve::testing::CountedAllocation(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return neve::testing::CountedAllocation(bytes, 0); }
void operator delete(void* memory) noexcept { neve::testing::Release(memory); }
void operator delete[](void* memory) noexcept { neve::testing::Release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { neve::testing::Release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { neve::testing::Release(memory); }
void operator delete(void* memory, size_t) noexcept { neve::testing::Release(memory); }
void operator delete[](void* memory, size_t) noexcept { neve::testing::Release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { neve::testing::Release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { neve::testing::Release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { neve::testing::Release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { neve::testing::Release(memory); }

#endif  // NEVE_TESTS_SUPPORT_COUNTING_NEW_H_
