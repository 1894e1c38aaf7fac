// Memory of tensors that neve allocates for the program.
#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/error/status.h"
#include "base/sync/mutex.h"
#include "capi/handles.h"
#include "neve/neve.h"

namespace neve::capi {
namespace {

void Free(void* memory, size_t, void*) { std::free(memory); }

struct Functions {
  neve_allocate_fn allocate = nullptr;
  neve_release_fn release = Free;
  void* context = nullptr;
};
struct Chosen {
  sync::Mutex mutex;
  Functions functions NEVE_GUARDED_BY(mutex);
};
Chosen& TheChosen() {
  static auto* const chosen = new Chosen;   // never destroyed: images may be used at exit
  return *chosen;
}

}  // namespace

absl::StatusOr<TensorMemory> TensorMemory::Allocate(size_t bytes) {
  Functions functions;
  {
    sync::MutexLock lock(TheChosen().mutex);
    functions = TheChosen().functions;
  }
  void* memory = nullptr;
  if (functions.allocate != nullptr) {
    memory = functions.allocate(bytes, kAlignment, functions.context);
  } else if (bytes <= SIZE_MAX - kAlignment) {
    memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  if (memory == nullptr) return Exhausted("no memory for a tensor of " + std::to_string(bytes) + " bytes", ENOMEM);
  TensorMemory made(memory, bytes, functions.release, functions.context);
  if (reinterpret_cast<uintptr_t>(memory) % kAlignment != 0) {
    return Invalid("the function of neve_memory_set gave memory that is not aligned to " + std::to_string(kAlignment));
  }
  return made;
}

TensorMemory::~TensorMemory() {
  if (memory_ != nullptr) release_(memory_, bytes_, context_);
}

absl::StatusOr<const void*> OpenImage::Data(size_t index) {
  sync::MutexLock lock(mutex_);
  NEVE_ASSIGN_OR_RETURN(const ImageTensors* tensors, TensorsLocked());
  if (index >= tensors->count()) {
    return Invalid("tensor " + std::to_string(index) + " of " + std::to_string(tensors->count()));
  }
  const uint64_t bytes = tensors->at(index).bytes;
  if (bytes == 0) return nullptr;
  const auto found = data_.find(index);
  if (found != data_.end()) return found->second.data();
  NEVE_ASSIGN_OR_RETURN(TensorMemory memory, TensorMemory::Allocate(bytes));
  const TensorTarget target{index, memory.data(), nullptr};
  NEVE_RETURN_IF_ERROR(tensors->Read({&target, 1}));
  return data_.emplace(index, std::move(memory)).first->second.data();
}

}  // namespace neve::capi

extern "C" neve_code neve_memory_set(neve_allocate_fn allocate, neve_release_fn release, void* context, neve_error** error) {
  using neve::capi::TheChosen;
  return neve::capi::Guarded(error, [&]() -> absl::Status {
    if ((allocate == nullptr) != (release == nullptr)) return neve::Invalid("allocate and release come together, or neither");
    neve::sync::MutexLock lock(TheChosen().mutex);
    TheChosen().functions = allocate == nullptr ? neve::capi::Functions{} : neve::capi::Functions{allocate, release, context};
    return absl::OkStatus();
  });
}
