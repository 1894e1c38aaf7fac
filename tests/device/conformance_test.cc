// What every device does: the suite that the host, the simulated device and CUDA pass.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "device/device.h"
#include "device/host_device.h"
#include "device/simulated.h"
#include "tests/device/fake_cuda.h"

namespace neve::device {
namespace {

struct DeviceCase {
  std::string name;
  std::function<std::shared_ptr<Device>()> make;  // null: skipped
};

class DeviceConformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = GetParam().make();
    if (device_ == nullptr) GTEST_SKIP() << "no such device here";
    stream_ = OwnedStream::Create(device_).value();
    event_ = OwnedEvent::Create(device_).value();
  }
  OwnedMemory Memory(MemoryKind kind, uint64_t bytes) { return OwnedMemory::Create(device_, kind, bytes).value(); }
  void Copy(void* target, const void* source, uint64_t bytes) {
    const absl::Status status = device_->Copy(stream_.get(), {target, source, bytes});
    ASSERT_TRUE(status.ok()) << status;
  }
  void Finish() {
    ASSERT_TRUE(device_->Record(event_.get(), stream_.get()).ok());
    const absl::Status status = device_->Synchronize(event_.get());
    ASSERT_TRUE(status.ok()) << status;
  }
  static void Number(OwnedMemory& memory, uint8_t first) {
    for (uint64_t i = 0; i < memory.bytes(); ++i) memory.get()[i] = static_cast<std::byte>(first + i * 7);
  }

  std::shared_ptr<Device> device_;
  OwnedStream stream_;
  OwnedEvent event_;
};

TEST_P(DeviceConformance, BytesGoThereAndBack) {
  constexpr uint64_t kBytes = 300'001;
  OwnedMemory there = Memory(MemoryKind::kDevice, kBytes), from = Memory(MemoryKind::kRegistered, kBytes);
  OwnedMemory to = Memory(MemoryKind::kRegistered, kBytes);
  Number(from, 3);
  Copy(there.get(), from.get(), kBytes);
  Copy(to.get(), there.get(), kBytes);
  Finish();
  EXPECT_EQ(std::memcmp(to.get(), from.get(), kBytes), 0);
}

TEST_P(DeviceConformance, ACopyToPlainMemoryIsThereToo) {
  OwnedMemory there = Memory(MemoryKind::kDevice, 1000), from = Memory(MemoryKind::kRegistered, 1000);
  Number(from, 9);
  std::vector<std::byte> to(1000);
  Copy(there.get(), from.get(), 1000);
  Copy(to.data(), there.get(), 1000);
  Finish();
  EXPECT_EQ(std::memcmp(to.data(), from.get(), 1000), 0);
}

TEST_P(DeviceConformance, ABatchCopiesEveryRange) {
  if (device_->batch_form() == BatchForm::kNone) GTEST_SKIP() << "without batched copies";
  OwnedMemory there = Memory(MemoryKind::kDevice, 4096), from = Memory(MemoryKind::kRegistered, 4096);
  OwnedMemory to = Memory(MemoryKind::kRegistered, 4096);
  Number(from, 1);
  std::memset(to.get(), 0, 4096);
  Copy(there.get(), from.get(), 4096);
  std::vector<CopyRange> ranges;
  for (uint64_t at = 0; at < 4096; at += 64) ranges.push_back({to.get() + at, there.get() + at, 60});
  const absl::Status status = device_->CopyBatch(stream_.get(), ranges);
  ASSERT_TRUE(status.ok()) << status;
  Finish();
  for (uint64_t at = 0; at < 4096; ++at) ASSERT_EQ(to.get()[at], at % 64 < 60 ? from.get()[at] : std::byte{0}) << at;
}

TEST_P(DeviceConformance, AnEventNeverRecordedIsWaitedForByNobody) {
  EXPECT_TRUE(device_->Wait(stream_.get(), event_.get()).ok());
  EXPECT_TRUE(device_->Synchronize(event_.get()).ok());
  EXPECT_TRUE(device_->Reached(event_.get()).value());
  OwnedEvent end = OwnedEvent::Create(device_).value();
  ASSERT_TRUE(device_->Record(end.get(), stream_.get()).ok());
  EXPECT_TRUE(device_->Synchronize(end.get()).ok());
}

TEST_P(DeviceConformance, AnEventIsReachedOnceItsStreamIsThere) {
  OwnedMemory there = Memory(MemoryKind::kDevice, 1 << 20), from = Memory(MemoryKind::kRegistered, 1 << 20);
  Copy(there.get(), from.get(), 1 << 20);
  Finish();
  EXPECT_TRUE(device_->Reached(event_.get()).value());
}

TEST_P(DeviceConformance, AStreamWaitsForAnEventOfAnother) {
  OwnedStream other = OwnedStream::Create(device_).value();
  OwnedMemory there = Memory(MemoryKind::kDevice, 1 << 20), from = Memory(MemoryKind::kRegistered, 1 << 20);
  OwnedMemory to = Memory(MemoryKind::kRegistered, 1 << 20);
  Number(from, 5);
  Copy(there.get(), from.get(), 1 << 20);
  ASSERT_TRUE(device_->Record(event_.get(), stream_.get()).ok());
  ASSERT_TRUE(device_->Wait(other.get(), event_.get()).ok());
  ASSERT_TRUE(device_->Copy(other.get(), {to.get(), there.get(), 1 << 20}).ok());
  OwnedEvent end = OwnedEvent::Create(device_).value();
  ASSERT_TRUE(device_->Record(end.get(), other.get()).ok());
  ASSERT_TRUE(device_->Synchronize(end.get()).ok());
  EXPECT_EQ(std::memcmp(to.get(), from.get(), 1 << 20), 0);
}

TEST_P(DeviceConformance, RegisteredMemoryIsToldFromOther) {
  std::unique_ptr<std::byte[]> block(new std::byte[3 * 4096]);
  std::byte* const page = block.get() + 4096 - reinterpret_cast<uintptr_t>(block.get()) % 4096;
  EXPECT_EQ(device_->KindOf(page).value(), MemoryKind::kHost);
  ASSERT_TRUE(device_->RegisterHost({page, 4096}).ok());
  EXPECT_EQ(device_->KindOf(page + 4000).value(), MemoryKind::kRegistered);
  EXPECT_TRUE(absl::IsAlreadyExists(device_->RegisterHost({page, 4096})));
  ASSERT_TRUE(device_->UnregisterHost(page).ok());
  EXPECT_EQ(device_->KindOf(page).value(), MemoryKind::kHost);
  EXPECT_FALSE(device_->UnregisterHost(page).ok());
  EXPECT_TRUE(device_->Health().ok());
}

TEST_P(DeviceConformance, TooMuchMemoryIsExhaustedAndHarmsNothing) {
  const auto much = device_->Allocate(MemoryKind::kDevice, uint64_t{1} << 62);
  EXPECT_TRUE(absl::IsResourceExhausted(much.status())) << much.status();
  EXPECT_TRUE(device_->Health().ok());
  OwnedMemory there = Memory(MemoryKind::kDevice, 16);
  std::byte bytes[16] = {};
  Copy(there.get(), bytes, 16);
  Finish();
}

TEST_P(DeviceConformance, SmallRangesAreGathered) {
  if (!device_->has_kernels()) GTEST_SKIP() << "without kernels";
  OwnedMemory memory = Memory(MemoryKind::kDevice, 1000), from = Memory(MemoryKind::kRegistered, 1000);
  OwnedMemory list = Memory(MemoryKind::kDevice, 2 * sizeof(kernels::GatherItem)), packed = Memory(MemoryKind::kDevice, 100);
  OwnedMemory to = Memory(MemoryKind::kRegistered, 100), items = Memory(MemoryKind::kRegistered, list.bytes());
  Number(from, 8);
  Copy(memory.get(), from.get(), 1000);
  const kernels::GatherItem wanted[] = {{reinterpret_cast<uint64_t>(memory.get()) + 17, 40, 0},
                                        {reinterpret_cast<uint64_t>(memory.get()) + 500, 33, 50}};
  std::memcpy(items.get(), wanted, sizeof wanted);
  Copy(list.get(), items.get(), list.bytes());
  ASSERT_TRUE(device_->Gather(stream_.get(), reinterpret_cast<const kernels::GatherItem*>(list.get()), 2, packed.get()).ok());
  Copy(to.get(), packed.get(), 100);
  Finish();
  EXPECT_EQ(std::memcmp(to.get(), from.get() + 17, 40), 0);
  EXPECT_EQ(std::memcmp(to.get() + 50, from.get() + 500, 33), 0);
}

TEST_P(DeviceConformance, AStridedViewIsGathered) {
  if (!device_->has_kernels()) GTEST_SKIP() << "without kernels";
  OwnedMemory memory = Memory(MemoryKind::kDevice, 24), from = Memory(MemoryKind::kRegistered, 24);
  OwnedMemory packed = Memory(MemoryKind::kDevice, 24), to = Memory(MemoryKind::kRegistered, 24);
  Number(from, 0);
  Copy(memory.get(), from.get(), 24);
  kernels::StridedView view{reinterpret_cast<uint64_t>(memory.get()), 2, 2, {3, 4}, {2, 6}};  // 4 x 3 items, transposed
  ASSERT_TRUE(device_->GatherStrided(stream_.get(), view, 0, 12, packed.get()).ok());
  Copy(to.get(), packed.get(), 24);
  Finish();
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(std::memcmp(to.get() + (i * 4 + j) * 2, from.get() + i * 2 + j * 6, 2), 0) << i << j;
  }
}

TEST_P(DeviceConformance, AStreamIsNotCapturingByItself) { EXPECT_FALSE(device_->IsCapturing(stream_.get()).value()); }

std::shared_ptr<Device> Make(uint64_t seed, BatchForm batch, bool kernels) {
  SimulatedOptions options;
  options.seed = seed;
  options.batch = batch;
  options.kernels = kernels;
  return Simulated::Create(options);
}

// The CUDA device on the stand-in for its driver.
std::shared_ptr<Device> MakeOnFakeDriver(int version) {
  void* const library = ::dlopen(NEVE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  const FakeCudaFacts facts{.version = version};
  reinterpret_cast<FakeCudaSet>(::dlsym(library, "fake_cuda_set"))(&facts);
  return MakeCudaDevice(cuda::LoadDriver(NEVE_FAKE_CUDA).value(), 0).value();
}

std::shared_ptr<Device> MakeOnRealDriver() {
  const auto driver = cuda::LoadDriver();
  return driver.ok() && (*driver)->device_count > 0 ? MakeCudaDevice(*driver, 0).value() : nullptr;
}

INSTANTIATE_TEST_SUITE_P(All, DeviceConformance,
                         ::testing::Values(DeviceCase{"host", MakeHostDevice},
                                           DeviceCase{"simulated_batch13000", [] { return Make(1, BatchForm::k13000, true); }},
                                           DeviceCase{"simulated_batch12080", [] { return Make(2, BatchForm::k12080, true); }},
                                           DeviceCase{"simulated_bare", [] { return Make(3, BatchForm::kNone, false); }},
                                           DeviceCase{"cuda", MakeOnRealDriver},
                                           DeviceCase{"cuda_fake13000", [] { return MakeOnFakeDriver(13000); }},
                                           DeviceCase{"cuda_fake12080", [] { return MakeOnFakeDriver(12080); }},
                                           DeviceCase{"cuda_fake12040", [] { return MakeOnFakeDriver(12040); }},
                                           DeviceCase{"simulated_seed4", [] { return Make(4, BatchForm::k13000, true); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace neve::device
