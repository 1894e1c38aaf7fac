// A stand-in for libcuda.so.1: the functions that neve calls, done by the host at once, with the rules that a driver holds its
// callers to. A wrong argument is a wrong result, which the tests of the conformance suite then meet.
#include "tests/device/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/gather.h"
#include "kernels/strided.h"

namespace {

using neve::device::cuda::Context;
using neve::device::cuda::CopyAttributes;
using neve::device::cuda::Event;
using neve::device::cuda::Function;
using neve::device::cuda::Module;
using neve::device::cuda::Pointer;
using neve::device::cuda::Result;
using neve::device::cuda::Stream;

constexpr Result kOk = 0, kInvalid = 1, kNoMemory = 2, kInvalidContext = 201, kBadHandle = 400, kAlready = 712, kNotThere = 713;

std::mutex mutex;
FakeCudaFacts facts = {.version = 13000, .devices = 1};
FakeCudaCounts counts;
std::map<uintptr_t, size_t> device_memory, host_memory, registered;
std::set<void*> streams, events, modules;
thread_local int contexts = 0;
thread_local int capture_mode = 0;  // global, as a thread begins

// Handles are places in memory that is kept: one that is destroyed is never given out again, so that its later use is noticed.
std::vector<std::unique_ptr<char>> handles;

template <typename T>
T* Make(std::set<void*>* known) {
  handles.push_back(std::make_unique<char>());
  void* const made = handles.back().get();
  known->insert(made);
  return static_cast<T*>(made);
}

bool Holds(const std::map<uintptr_t, size_t>& memory, uintptr_t at, size_t bytes) {
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}
bool Pinned(uintptr_t at, size_t bytes) { return Holds(host_memory, at, bytes) || Holds(registered, at, bytes); }
bool Known(uintptr_t at, size_t bytes) { return Holds(device_memory, at, bytes) || Pinned(at, bytes); }

// What nearly every call needs: a current context, and a mode in which it does not break another thread's capture.
Result Enter(const char* name) {
  ++counts.calls;
  if (facts.failing == name && facts.failing_result != 0) return facts.failing_result;
  if (contexts == 0) return kInvalidContext;
  if (capture_mode != 2) ++counts.strict_calls;
  return kOk;
}

Result Batch(Pointer* targets, Pointer* sources, size_t* bytes, size_t count, CopyAttributes* attributes, size_t* first,
             size_t attribute_count, Stream stream) {
  if (Result entered = Enter("cuMemcpyBatchAsync"); entered != kOk) return entered;
  if (stream == nullptr || streams.count(stream) == 0) return kInvalid;
  if (count == 0 || attribute_count != 1 || first == nullptr || first[0] != 0 || attributes == nullptr) return kInvalid;
  if (attributes->source_order != 1 || (attributes->flags & ~1u) != 0) return kInvalid;
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] == 0 || !Known(targets[i], bytes[i]) || !Known(sources[i], bytes[i])) return kInvalid;
    std::memcpy(reinterpret_cast<void*>(targets[i]), reinterpret_cast<void*>(sources[i]), bytes[i]);
  }
  return kOk;
}

Result Batch13000(Pointer* targets, Pointer* sources, size_t* bytes, size_t count, CopyAttributes* attributes, size_t* first,
                  size_t attribute_count, Stream stream) {
  std::lock_guard lock(mutex);
  ++counts.batches_13000;
  return Batch(targets, sources, bytes, count, attributes, first, attribute_count, stream);
}

Result Batch12080(Pointer* targets, Pointer* sources, size_t* bytes, size_t count, CopyAttributes* attributes, size_t* first,
                  size_t attribute_count, size_t* failed, Stream stream) {
  std::lock_guard lock(mutex);
  ++counts.batches_12080;
  if (failed == nullptr) return kInvalid;
  const Result result = Batch(targets, sources, bytes, count, attributes, first, attribute_count, stream);
  if (result != kOk) *failed = 0;
  return result;
}

}  // namespace

extern "C" {

void fake_cuda_set(const FakeCudaFacts* given) {
  std::lock_guard lock(mutex);
  facts = *given;
  counts = {};
}
void fake_cuda_counts(FakeCudaCounts* given) {
  std::lock_guard lock(mutex);
  *given = counts;
  given->device_allocations = device_memory.size();
  given->registrations = registered.size();
  given->contexts = contexts;
}

Result cuInit(unsigned flags) { return flags == 0 ? facts.init_result : kInvalid; }
Result cuDriverGetVersion(int* version) {
  *version = facts.version;
  return kOk;
}
Result cuGetErrorName(Result result, const char** name) {
  *name = result == kNoMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
  return kOk;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "as the stand-in says";
  return kOk;
}
Result cuDeviceGetCount(int* count) {
  *count = facts.devices;
  return kOk;
}
Result cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 40;  // a handle is not the ordinal
  return ordinal < facts.devices ? kOk : 101;
}
Result cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Stand-in", static_cast<size_t>(size));
  return kOk;
}
Result cuDevicePrimaryCtxRetain(Context* context, int device) {
  if (device < 40) return 101;
  *context = reinterpret_cast<Context>(static_cast<uintptr_t>(device));
  return kOk;
}
Result cuDevicePrimaryCtxRelease_v2(int device) { return device >= 40 ? kOk : 101; }
Result cuCtxPushCurrent_v2(Context context) {
  if (context == nullptr) return kInvalidContext;
  ++contexts;
  return kOk;
}
Result cuCtxPopCurrent_v2(Context* context) {
  if (contexts == 0) return kInvalidContext;
  *context = reinterpret_cast<Context>(uintptr_t{40});
  --contexts;
  return kOk;
}
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kOk;
}
Result cuPointerGetAttribute(void* value, int attribute, Pointer pointer) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuPointerGetAttribute"); entered != kOk) return entered;
  if (attribute != 2 || !Known(pointer, 1)) return kInvalid;
  *static_cast<unsigned*>(value) = Holds(device_memory, pointer, 1) ? 2 : 1;
  return kOk;
}
Result cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemAlloc"); entered != kOk) return entered;
  if (bytes > size_t{1} << 40) return kNoMemory;
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  device_memory[reinterpret_cast<uintptr_t>(made)] = bytes;
  *pointer = reinterpret_cast<uintptr_t>(made);
  return kOk;
}
Result cuMemFree_v2(Pointer pointer) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemFree"); entered != kOk) return entered;
  if (device_memory.erase(pointer) != 1) return kInvalid;
  std::free(reinterpret_cast<void*>(pointer));
  return kOk;
}
Result cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemHostAlloc"); entered != kOk) return entered;
  if (flags != 1) return kInvalid;
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  host_memory[reinterpret_cast<uintptr_t>(*address)] = bytes;
  return kOk;
}
Result cuMemFreeHost(void* address) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemFreeHost"); entered != kOk) return entered;
  if (host_memory.erase(reinterpret_cast<uintptr_t>(address)) != 1) return kInvalid;
  std::free(address);
  return kOk;
}
Result cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemHostRegister"); entered != kOk) return entered;
  if (flags != 1) return kInvalid;
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const auto& [begin, size] : registered) {
    if (at < begin + size && begin < at + bytes) return kAlready;
  }
  registered[at] = bytes;
  return kOk;
}
Result cuMemHostUnregister(void* address) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemHostUnregister"); entered != kOk) return entered;
  return registered.erase(reinterpret_cast<uintptr_t>(address)) == 1 ? kOk : kNotThere;
}
Result cuStreamCreate(Stream* stream, unsigned flags) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuStreamCreate"); entered != kOk) return entered;
  if (flags != 1) return kInvalid;
  *stream = reinterpret_cast<Stream>(Make<char>(&streams));
  return kOk;
}
Result cuStreamDestroy_v2(Stream stream) {
  std::lock_guard lock(mutex);
  return streams.erase(stream) == 1 ? kOk : kBadHandle;
}
Result cuStreamIsCapturing(Stream stream, int* status) {
  std::lock_guard lock(mutex);
  if (stream != nullptr && streams.count(stream) == 0) return kBadHandle;
  *status = facts.capturing;
  return kOk;
}
Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuStreamWaitEvent"); entered != kOk) return entered;
  if (stream != nullptr && streams.count(stream) == 0) return kBadHandle;
  return flags == 0 && events.count(event) == 1 ? kOk : kBadHandle;
}
Result cuEventCreate(Event* event, unsigned flags) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuEventCreate"); entered != kOk) return entered;
  if (flags != 3) return kInvalid;  // blocking, without timing
  *event = reinterpret_cast<Event>(Make<char>(&events));
  return kOk;
}
Result cuEventDestroy_v2(Event event) {
  std::lock_guard lock(mutex);
  return events.erase(event) == 1 ? kOk : kBadHandle;
}
Result cuEventRecord(Event event, Stream stream) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuEventRecord"); entered != kOk) return entered;
  if (stream != nullptr && streams.count(stream) == 0) return kBadHandle;
  return events.count(event) == 1 ? kOk : kBadHandle;
}
Result cuEventQuery(Event event) {
  std::lock_guard lock(mutex);
  if (facts.failing == std::string("cuEventQuery")) return facts.failing_result;
  return events.count(event) == 1 ? kOk : kBadHandle;
}
Result cuEventSynchronize(Event event) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuEventSynchronize"); entered != kOk) return entered;
  return events.count(event) == 1 ? kOk : kBadHandle;
}
Result cuMemcpyAsync(Pointer target, Pointer source, size_t bytes, Stream stream) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuMemcpyAsync"); entered != kOk) return entered;
  if (stream != nullptr && streams.count(stream) == 0) return kBadHandle;
  ++counts.copies;
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes);
  return kOk;
}
Result cuModuleLoadData(Module* module, const void* image) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuModuleLoadData"); entered != kOk) return entered;
  uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != 0xba55ed50u) return kInvalid;
  *module = reinterpret_cast<Module>(Make<char>(&modules));
  return kOk;
}
Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  std::lock_guard lock(mutex);
  if (modules.count(module) == 0) return kBadHandle;
  if (std::strcmp(name, "neve_gather") == 0) {
    *function = reinterpret_cast<Function>(uintptr_t{1});
  } else if (std::strcmp(name, "neve_gather_strided") == 0) {
    *function = reinterpret_cast<Function>(uintptr_t{2});
  } else {
    return 500;  // not found
  }
  return kOk;
}
// The body for every thread of the grid would do the same as for one thread of one.
Result cuLaunchKernel(Function function, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned block, unsigned block_y,
                      unsigned block_z, unsigned shared, Stream stream, void** arguments, void** extra) {
  std::lock_guard lock(mutex);
  if (Result entered = Enter("cuLaunchKernel"); entered != kOk) return entered;
  if (grid == 0 || block == 0 || block > 1024 || grid_y * grid_z * block_y * block_z != 1) return kInvalid;
  if (shared != 0 || extra != nullptr) return kInvalid;
  if (streams.count(stream) == 0) return kBadHandle;
  ++counts.launches;
  if (function == reinterpret_cast<Function>(uintptr_t{1})) {
    const auto* const items = *static_cast<const neve::kernels::GatherItem**>(arguments[0]);
    auto* const target = *static_cast<uint8_t**>(arguments[2]);
    for (unsigned i = 0; i < *static_cast<unsigned*>(arguments[1]); ++i) neve::kernels::GatherShare(items[i], target, 0, 1);
  } else {
    neve::kernels::GatherStridedShare(*static_cast<neve::kernels::StridedView*>(arguments[0]),
                                      *static_cast<uint64_t*>(arguments[1]), *static_cast<uint64_t*>(arguments[2]),
                                      *static_cast<uint8_t**>(arguments[3]), 0, 1);
  }
  return kOk;
}
Result cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* found) {
  *function = nullptr;
  *found = 1;
  if (flags != 0 || version > facts.version || std::strcmp(symbol, "cuMemcpyBatchAsync") != 0 || version < 12080) return kOk;
  *function = version >= 13000 ? reinterpret_cast<void*>(&Batch13000) : reinterpret_cast<void*>(&Batch12080);
  *found = 0;
  return kOk;
}

}  // extern "C"
