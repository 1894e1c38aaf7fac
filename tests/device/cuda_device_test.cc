// The CUDA device against a stand-in for the driver, which holds it to a driver's rules.
#include "device/cuda_device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/fatbin.h"
#include "tests/device/fake_cuda.h"

namespace neve::device {
namespace {

class CudaDeviceTest : public ::testing::Test {
 protected:
  void Open(const FakeCudaFacts& facts = {}) {
    Set(facts);
    auto driver = cuda::LoadDriver(NEVE_FAKE_CUDA);
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *driver;
    auto device = MakeCudaDevice(driver_, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *device;
    stream_ = OwnedStream::Create(device_).value();
  }
  static void* Library() { return ::dlopen(NEVE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL); }
  static void Set(const FakeCudaFacts& facts) { reinterpret_cast<FakeCudaSet>(::dlsym(Library(), "fake_cuda_set"))(&facts); }
  static FakeCudaCounts Counts() {
    FakeCudaCounts counts;
    reinterpret_cast<FakeCudaGet>(::dlsym(Library(), "fake_cuda_counts"))(&counts);
    return counts;
  }
  absl::Status CopyTwo() {
    OwnedMemory there = OwnedMemory::Create(device_, MemoryKind::kDevice, 100).value();
    OwnedMemory here = OwnedMemory::Create(device_, MemoryKind::kRegistered, 100).value();
    const CopyRange ranges[] = {{here.get(), there.get(), 10}, {here.get() + 20, there.get() + 20, 30}};
    return device_->CopyBatch(stream_.get(), ranges);
  }

  std::shared_ptr<const cuda::Driver> driver_;
  std::shared_ptr<Device> device_;
  OwnedStream stream_;
};

TEST_F(CudaDeviceTest, TheNewestFormOfTheBatchIsCalledWithItsArguments) {
  Open({.version = 13000});
  EXPECT_EQ(device_->batch_form(), BatchForm::k13000);
  EXPECT_TRUE(CopyTwo().ok());
  EXPECT_EQ(Counts().batches_13000, 1u);
  EXPECT_EQ(Counts().batches_12080, 0u);
}

TEST_F(CudaDeviceTest, AnOlderDriverGetsTheOlderForm) {
  Open({.version = 12080});
  EXPECT_EQ(device_->batch_form(), BatchForm::k12080);
  EXPECT_TRUE(CopyTwo().ok());
  EXPECT_EQ(Counts().batches_12080, 1u);
  EXPECT_EQ(Counts().batches_13000, 0u);
}

TEST_F(CudaDeviceTest, ADriverBeforeBothHasNoBatch) {
  Open({.version = 12040});
  EXPECT_EQ(device_->batch_form(), BatchForm::kNone);
  EXPECT_TRUE(absl::IsUnimplemented(CopyTwo()));
}

TEST_F(CudaDeviceTest, NoCallChangesTheThreadsContextOrBreaksACapture) {
  Open();
  OwnedEvent event = OwnedEvent::Create(device_).value();
  EXPECT_TRUE(device_->Record(event.get(), stream_.get()).ok());
  EXPECT_TRUE(device_->Synchronize(event.get()).ok());
  EXPECT_TRUE(CopyTwo().ok());
  EXPECT_EQ(Counts().contexts, 0);
  EXPECT_EQ(Counts().strict_calls, 0u);
}

TEST_F(CudaDeviceTest, AnErrorOfTheDevicesOwnStays) {
  Open();
  EXPECT_TRUE(device_->Health().ok());
  OwnedEvent event = OwnedEvent::Create(device_).value();
  Set({.failing = "cuEventSynchronize", .failing_result = 700});
  const absl::Status status = device_->Synchronize(event.get());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("cuda:0: cuEventSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)"), std::string::npos) << status;
  EXPECT_EQ(device_->Health(), status);
}

TEST_F(CudaDeviceTest, MEM_04_ARefusedRegistrationIsOnlyThat) {
  Open();
  std::vector<std::byte> memory(4096);
  Set({.failing = "cuMemHostRegister", .failing_result = 304});
  EXPECT_TRUE(absl::IsUnavailable(device_->RegisterHost(memory)));
  EXPECT_TRUE(device_->Health().ok());
  Set({});
  EXPECT_TRUE(device_->RegisterHost(memory).ok());
  EXPECT_TRUE(device_->UnregisterHost(memory.data()).ok());
  EXPECT_EQ(Counts().registrations, 0u);
}

TEST_F(CudaDeviceTest, OutOfMemoryIsExhausted) {
  Open();
  Set({.failing = "cuMemAlloc", .failing_result = 2});
  EXPECT_TRUE(absl::IsResourceExhausted(device_->Allocate(MemoryKind::kDevice, 16).status()));
  EXPECT_TRUE(device_->Health().ok());
}

TEST_F(CudaDeviceTest, KernelsThatTheDriverCannotReadAreDoneWithout) {
  if (kernels::Fatbin().empty()) GTEST_SKIP() << "this build had no nvcc";
  Open();
  Set({.failing = "cuModuleLoadData", .failing_result = 222});  // unsupported PTX version
  EXPECT_FALSE(device_->has_kernels());
  EXPECT_TRUE(absl::IsUnimplemented(device_->Gather(stream_.get(), nullptr, 1, nullptr)));
}

TEST_F(CudaDeviceTest, AStreamThatIsCapturedIsTold) {
  Open();
  EXPECT_FALSE(device_->IsCapturing(stream_.get()).value());
  Set({.capturing = 1});
  EXPECT_TRUE(device_->IsCapturing(stream_.get()).value());
}

TEST_F(CudaDeviceTest, ADeviceThatIsNotThereIsNotFound) {
  Open();
  EXPECT_TRUE(absl::IsNotFound(MakeCudaDevice(driver_, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(MakeCudaDevice(driver_, -1).status()));
}

TEST_F(CudaDeviceTest, ALibraryThatIsNotThereOrNotTheDriverIsUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(cuda::LoadDriver("libcuda-of-nowhere.so.1").status()));
  const absl::Status other = cuda::LoadDriver("libm.so.6").status();
  EXPECT_TRUE(absl::IsUnavailable(other));
  EXPECT_NE(other.message().find("lacks cuInit"), std::string::npos) << other;
}

TEST_F(CudaDeviceTest, ADriverWithoutADeviceSaysSo) {
  Set({.init_result = 100});
  const absl::Status status = cuda::LoadDriver(NEVE_FAKE_CUDA).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("cuInit"), std::string::npos);
  Set({});
}

}  // namespace
}  // namespace neve::device
