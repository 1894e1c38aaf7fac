#include "device/cuda_device.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "base/sync/mutex.h"
#include "kernels/fatbin.h"

namespace neve::device {
namespace {

using cuda::Pointer;
using cuda::Result;

constexpr unsigned kBlockThreads = 256, kBlocksMax = 4096;

Pointer ToPointer(const void* address) { return static_cast<Pointer>(reinterpret_cast<uintptr_t>(address)); }
cuda::Stream ToStream(Stream stream) { return static_cast<cuda::Stream>(stream.handle); }
cuda::Event ToEvent(Event event) { return static_cast<cuda::Event>(event.handle); }

// Errors after which a context is of no use: they stay until the process ends.
bool IsSticky(Result result) {
  switch (result) {
    case 4:    // deinitialized: the process is going down
    case 214:  // ECC uncorrectable
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context is destroyed
    case 710:  // device-side assert
    case 714:
    case 715:
    case 716:
    case 717:
    case 718:
    case 719:
    case 720:  // hardware faults, launch failed
      return true;
    default:
      return false;
  }
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const cuda::Driver> driver, int ordinal, int handle, cuda::Context context)
      : driver_(std::move(driver)),
        ordinal_(ordinal),
        handle_(handle),
        context_(context),
        name_(absl::StrFormat("cuda:%d", ordinal)) {}
  ~CudaDevice() override { driver_->DevicePrimaryCtxRelease(handle_); }

  int ordinal() const override { return ordinal_; }
  std::string name() const override { return name_; }
  BatchForm batch_form() const override {
    if (driver_->batch_13000 != nullptr) return BatchForm::k13000;
    return driver_->batch_12080 != nullptr ? BatchForm::k12080 : BatchForm::kNone;
  }
  bool has_kernels() const override {
    sync::MutexLock lock(mutex_);
    LoadKernelsLocked();
    return gather_ != nullptr;
  }
  absl::Status Health() const override {
    sync::MutexLock lock(mutex_);
    return sticky_;
  }

  absl::StatusOr<MemoryKind> KindOf(const void* address) const override {
    const Scope scope(*this);
    unsigned type = 0;
    const Result result = driver_->PointerGetAttribute(&type, cuda::kAttributeMemoryType, ToPointer(address));
    if (result == cuda::kInvalidValue) return MemoryKind::kHost;  // memory that CUDA has never heard of
    NEVE_RETURN_IF_ERROR(Check(result, "cuPointerGetAttribute"));
    return type == cuda::kMemoryTypeHost ? MemoryKind::kRegistered : MemoryKind::kDevice;
  }
  absl::StatusOr<void*> Allocate(MemoryKind kind, uint64_t bytes) override {
    const Scope scope(*this);
    if (kind == MemoryKind::kDevice) {
      Pointer pointer = 0;
      NEVE_RETURN_IF_ERROR(Check(driver_->MemAlloc(&pointer, bytes), "cuMemAlloc"));
      return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
    }
    void* address = nullptr;
    NEVE_RETURN_IF_ERROR(Check(driver_->MemHostAlloc(&address, bytes, cuda::kHostPortable), "cuMemHostAlloc"));
    return address;
  }
  void Free(MemoryKind kind, void* address) override {
    const Scope scope(*this);
    if (kind == MemoryKind::kDevice) {
      Check(driver_->MemFree(ToPointer(address)), "cuMemFree").IgnoreError();
    } else {
      Check(driver_->MemFreeHost(address), "cuMemFreeHost").IgnoreError();
    }
  }
  absl::Status RegisterHost(std::span<std::byte> memory) override {
    const Scope scope(*this);
    return Check(driver_->MemHostRegister(memory.data(), memory.size(), cuda::kHostPortable), "cuMemHostRegister");
  }
  absl::Status UnregisterHost(std::byte* begin) override {
    const Scope scope(*this);
    return Check(driver_->MemHostUnregister(begin), "cuMemHostUnregister");
  }

  absl::StatusOr<Stream> CreateStream() override {
    const Scope scope(*this);
    cuda::Stream stream = nullptr;
    NEVE_RETURN_IF_ERROR(Check(driver_->StreamCreate(&stream, cuda::kStreamNonBlocking), "cuStreamCreate"));
    return Stream{stream};
  }
  void DestroyStream(Stream stream) override {
    const Scope scope(*this);
    Check(driver_->StreamDestroy(ToStream(stream)), "cuStreamDestroy").IgnoreError();
  }
  absl::StatusOr<bool> IsCapturing(Stream stream) override {
    const Scope scope(*this);
    int status = cuda::kCaptureNone;
    // The default stream answers with an error while another stream is captured in a way that forbids its use.
    NEVE_RETURN_IF_ERROR(Check(driver_->StreamIsCapturing(ToStream(stream), &status), "cuStreamIsCapturing"));
    return status != cuda::kCaptureNone;
  }
  absl::StatusOr<Event> CreateEvent() override {
    const Scope scope(*this);
    cuda::Event event = nullptr;
    NEVE_RETURN_IF_ERROR(
        Check(driver_->EventCreate(&event, cuda::kEventBlockingSync | cuda::kEventDisableTiming), "cuEventCreate"));
    return Event{event};
  }
  void DestroyEvent(Event event) override {
    const Scope scope(*this);
    Check(driver_->EventDestroy(ToEvent(event)), "cuEventDestroy").IgnoreError();
  }
  absl::Status Record(Event event, Stream stream) override {
    const Scope scope(*this);
    return Check(driver_->EventRecord(ToEvent(event), ToStream(stream)), "cuEventRecord");
  }
  absl::Status Wait(Stream stream, Event event) override {
    const Scope scope(*this);
    return Check(driver_->StreamWaitEvent(ToStream(stream), ToEvent(event), 0), "cuStreamWaitEvent");
  }
  absl::StatusOr<bool> Reached(Event event) override {
    const Scope scope(*this);
    const Result result = driver_->EventQuery(ToEvent(event));
    if (result == cuda::kNotReady) return false;
    NEVE_RETURN_IF_ERROR(Check(result, "cuEventQuery"));
    return true;
  }
  absl::Status Synchronize(Event event) override {
    const Scope scope(*this);
    return Check(driver_->EventSynchronize(ToEvent(event)), "cuEventSynchronize");
  }

  absl::Status Copy(Stream stream, const CopyRange& range) override {
    const Scope scope(*this);
    return Check(driver_->MemcpyAsync(ToPointer(range.target), ToPointer(range.source), range.bytes, ToStream(stream)),
                 "cuMemcpyAsync");
  }
  absl::Status CopyBatch(Stream stream, std::span<const CopyRange> ranges) override;
  absl::Status Gather(Stream stream, const kernels::GatherItem* items, uint32_t count, void* target) override;
  absl::Status GatherStrided(Stream stream, const kernels::StridedView& view, uint64_t first, uint64_t count,
                             void* target) override;

 private:
  // Makes the primary context the thread's current one, and lets calls be made while some other thread captures a graph: ours are
  // never part of it, and in the stricter modes they would break it. Both are put back at the end.
  class Scope {
   public:
    explicit Scope(const CudaDevice& device) : driver_(*device.driver_) {
      pushed_ = driver_.CtxPushCurrent(device.context_) == cuda::kSuccess;
      exchanged_ = driver_.ThreadExchangeStreamCaptureMode(&mode_) == cuda::kSuccess;
    }
    ~Scope() {
      if (exchanged_) driver_.ThreadExchangeStreamCaptureMode(&mode_);
      cuda::Context popped = nullptr;
      if (pushed_) driver_.CtxPopCurrent(&popped);
    }
    Scope(const Scope&) = delete;

   private:
    const cuda::Driver& driver_;
    bool pushed_ = false, exchanged_ = false;
    int mode_ = cuda::kCaptureModeRelaxed;
  };

  absl::Status Check(Result result, const char* call) const {
    absl::Status status = cuda::ToStatus(*driver_, result, name_, call);
    if (IsSticky(result)) {
      sync::MutexLock lock(mutex_);
      if (sticky_.ok()) sticky_ = status;
    }
    return status;
  }
  void LoadKernelsLocked() const NEVE_REQUIRES(mutex_);
  absl::Status Launch(cuda::Function function, uint64_t threads, Stream stream, void** arguments);

  const std::shared_ptr<const cuda::Driver> driver_;
  const int ordinal_, handle_;
  const cuda::Context context_;
  const std::string name_;
  mutable sync::Mutex mutex_;
  mutable absl::Status sticky_ NEVE_GUARDED_BY(mutex_);
  mutable bool looked_for_kernels_ NEVE_GUARDED_BY(mutex_) = false;
  mutable cuda::Function gather_ NEVE_GUARDED_BY(mutex_) = nullptr, gather_strided_ NEVE_GUARDED_BY(mutex_) = nullptr;
};

void CudaDevice::LoadKernelsLocked() const {
  if (looked_for_kernels_) return;
  looked_for_kernels_ = true;
  const std::span<const std::byte> fatbin = kernels::Fatbin();
  if (fatbin.empty()) return;
  const Scope scope(*this);
  // Loaded into the context for good. An older driver does not know what a newer nvcc has made: copies go without the kernels
  // then.
  cuda::Module module = nullptr;
  cuda::Function gather = nullptr, gather_strided = nullptr;
  Result result = driver_->ModuleLoadData(&module, fatbin.data());
  if (result == cuda::kSuccess) result = driver_->ModuleGetFunction(&gather, module, "neve_gather");
  if (result == cuda::kSuccess) result = driver_->ModuleGetFunction(&gather_strided, module, "neve_gather_strided");
  if (result != cuda::kSuccess) {
    obs::Log(obs::Level::kInfo,
             absl::StrFormat("event=no_kernels error=\"%s\"",
                             std::string(cuda::ToStatus(*driver_, result, name_, "cuModuleLoadData").message())));
    return;
  }
  gather_ = gather;
  gather_strided_ = gather_strided;
}

absl::Status CudaDevice::CopyBatch(Stream stream, std::span<const CopyRange> ranges) {
  if (ranges.empty()) return absl::OkStatus();
  std::vector<Pointer> targets(ranges.size()), sources(ranges.size());
  std::vector<size_t> bytes(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    targets[i] = ToPointer(ranges[i].target);
    sources[i] = ToPointer(ranges[i].source);
    bytes[i] = ranges[i].bytes;
  }
  cuda::CopyAttributes attributes;
  attributes.source_order = cuda::kAccessOrderStream;
  attributes.flags = cuda::kPreferOverlap;
  size_t first = 0, failed = SIZE_MAX;
  const Scope scope(*this);
  if (driver_->batch_13000 != nullptr) {
    return Check(driver_->batch_13000(targets.data(), sources.data(), bytes.data(), ranges.size(), &attributes, &first, 1,
                                      ToStream(stream)),
                 "cuMemcpyBatchAsync");
  }
  if (driver_->batch_12080 == nullptr) return Unsupported(name_ + ": this driver has no batched copy");
  const absl::Status status = Check(driver_->batch_12080(targets.data(), sources.data(), bytes.data(), ranges.size(), &attributes,
                                                         &first, 1, &failed, ToStream(stream)),
                                    "cuMemcpyBatchAsync");
  return status.ok() || failed == SIZE_MAX ? status : Annotate(status, absl::StrFormat("range %d of %d", failed, ranges.size()));
}

absl::Status CudaDevice::Launch(cuda::Function function, uint64_t threads, Stream stream, void** arguments) {
  if (function == nullptr) return Unsupported(name_ + ": the kernels were not loaded");
  const auto blocks = static_cast<unsigned>(std::clamp<uint64_t>((threads + kBlockThreads - 1) / kBlockThreads, 1, kBlocksMax));
  const Scope scope(*this);
  return Check(driver_->LaunchKernel(function, blocks, 1, 1, kBlockThreads, 1, 1, 0, ToStream(stream), arguments, nullptr),
               "cuLaunchKernel");
}

absl::Status CudaDevice::Gather(Stream stream, const kernels::GatherItem* items, uint32_t count, void* target) {
  constexpr uint64_t kWarp = 32;  // threads an item
  cuda::Function function;
  {
    sync::MutexLock lock(mutex_);
    LoadKernelsLocked();
    function = gather_;
  }
  void* arguments[] = {&items, &count, &target};
  return Launch(function, count * kWarp, stream, arguments);
}

absl::Status CudaDevice::GatherStrided(Stream stream, const kernels::StridedView& view, uint64_t first, uint64_t count,
                                       void* target) {
  cuda::Function function;
  {
    sync::MutexLock lock(mutex_);
    LoadKernelsLocked();
    function = gather_strided_;
  }
  void* arguments[] = {const_cast<kernels::StridedView*>(&view), &first, &count, &target};
  return Launch(function, count, stream, arguments);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> MakeCudaDevice(std::shared_ptr<const cuda::Driver> driver, int ordinal) {
  if (ordinal < 0 || ordinal >= driver->device_count) {
    return NotFound(absl::StrFormat("cuda:%d: the driver shows %d devices", ordinal, driver->device_count));
  }
  const std::string name = absl::StrFormat("cuda:%d", ordinal);
  int handle = 0;
  cuda::Context context = nullptr;
  NEVE_RETURN_IF_ERROR(cuda::ToStatus(*driver, driver->DeviceGet(&handle, ordinal), name, "cuDeviceGet"));
  NEVE_RETURN_IF_ERROR(
      cuda::ToStatus(*driver, driver->DevicePrimaryCtxRetain(&context, handle), name, "cuDevicePrimaryCtxRetain"));
  return std::make_shared<CudaDevice>(std::move(driver), ordinal, handle, context);
}

}  // namespace neve::device
