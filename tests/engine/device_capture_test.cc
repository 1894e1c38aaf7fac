// Saves from a simulated device through the whole engine, and back.
#include <sys/wait.h>
#include <unistd.h>

#include "base/sync/pause.h"
#include "capture/orders.h"
#include "device/simulated.h"
#include "engine/engine_fixture.h"

namespace neve {
namespace {

using device::Fault;
using device::MemoryKind;
using device::Pace;

// A flat state of U8 tensors on the device, each filled with one number, and one in host memory.
class DeviceState {
 public:
  DeviceState(device::Simulated& device, std::vector<uint64_t> sizes, device::Stream stream)
      : device_(device), sizes_(std::move(sizes)), stream_(stream) {
    std::vector<std::string_view> views;
    std::vector<int64_t> extents;
    std::vector<int32_t> devices;
    names_.reserve(sizes_.size() + 1);
    for (size_t i = 0; i <= sizes_.size(); ++i) {
      const bool host = i == sizes_.size();
      names_.push_back("t" + std::to_string(i));
      views.push_back(names_.back());
      extents.push_back(host ? kHostBytes : static_cast<int64_t>(sizes_[i]));
      devices.push_back(host ? -1 : 0);
      addresses_.push_back(host ? host_ : nullptr);
    }
    Renew();
    const std::vector<DType> dtypes(names_.size(), DType::kU8);
    const std::vector<uint8_t> ranks(names_.size(), 1);
    state_ = DescribeState(
                 {.names = views, .dtypes = dtypes, .ranks = ranks, .extents = extents, .strides = {}, .devices = devices}, "", 0)
                 .value();
  }
  ~DeviceState() { FreeAll(); }
  // Other memory for each tensor, as after off-loading and back.
  void Renew() {
    FreeAll();
    for (size_t i = 0; i < sizes_.size(); ++i) addresses_[i] = device_.Allocate(MemoryKind::kDevice, sizes_[i]).value();
  }
  void FreeAll() {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (addresses_[i] != nullptr) device_.Free(MemoryKind::kDevice, const_cast<void*>(addresses_[i]));
      addresses_[i] = nullptr;
    }
  }
  void Update(uint8_t value) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      device_.Fill(stream_, const_cast<void*>(addresses_[i]), sizes_[i], static_cast<uint8_t>(value + i)).IgnoreError();
    }
  }
  void UpdateHost(uint8_t value) { std::memset(host_, value, sizeof host_); }
  SaveRequest Request(uint64_t step, bool fence) const {
    SaveRequest request;
    request.step = step;
    request.state = state_;
    request.addresses = addresses_;
    request.streams = {&caller_, 1};
    request.fence = fence;
    return request;
  }
  std::span<const DeviceStream> streams() const { return {&caller_, 1}; }
  // "" when the image holds `value` in every tensor.
  std::string Fault(Image& image, uint8_t value) const {
    const std::unique_ptr<ImageTensors> tensors = ImageTensors::Of(&image).value();
    for (size_t i = 0; i < names_.size(); ++i) {
      const bool host = i == sizes_.size();
      std::vector<uint8_t> bytes(host ? kHostBytes : sizes_[i]);
      const TensorTarget target{*tensors->Find(names_[i]), bytes.data(), nullptr};
      const absl::Status read = tensors->Read({&target, 1});
      if (!read.ok()) return read.ToString();
      const auto wanted = static_cast<uint8_t>(host ? value : value + i);
      for (size_t at = 0; at < bytes.size(); ++at) {
        if (bytes[at] != wanted) return names_[i] + " byte " + std::to_string(at) + ": " + std::to_string(bytes[at]);
      }
    }
    return "";
  }

 private:
  static constexpr int64_t kHostBytes = 1000;
  device::Simulated& device_;
  std::vector<uint64_t> sizes_;
  device::Stream stream_;
  DeviceStream caller_{0, stream_.handle};
  std::vector<std::string> names_;
  std::vector<const void*> addresses_;
  uint8_t host_[kHostBytes] = {};
  std::shared_ptr<State> state_;
};

class DeviceCaptureTest : public EngineTest {
 protected:
  void Start(Pace caller = Pace::kEager, device::SimulatedOptions options = {.paces = {Pace::kLate, Pace::kLate}}) {
    device_ = device::Simulated::Create(options);
    ASSERT_NE(device_, nullptr);
    device::Use(device_);
    stream_ = device_->NewStream(caller);
    state_ = std::make_unique<DeviceState>(*device_, std::vector<uint64_t>{3 << 20, 200'000, 70'000, 1000, 1001, 17, 1}, stream_);
  }
  void TearDown() override {
    engine_.reset();
    capture::Omit(capture::Order::kCount);
    if (device_ != nullptr) {
      device_->Break("the test is over");
      device_->Settle();
    }
    state_.reset();
    device::Use(nullptr);
    device_.reset();
    EngineTest::TearDown();
  }
  std::shared_ptr<Ticket> SaveNow(uint64_t step, bool fence) {
    auto ticket = engine_->Save(state_->Request(step, fence));
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return ticket.ok() ? *ticket : nullptr;
  }
  std::string FaultOfNewest(uint8_t value) {
    auto image = engine_->Find({});
    if (!image.ok()) return image.status().ToString();
    const absl::Status verified = (*image)->VerifyAll();
    return verified.ok() ? state_->Fault(**image, value) : verified.ToString();
  }

  std::shared_ptr<device::Simulated> device_;
  device::Stream stream_;
  std::unique_ptr<DeviceState> state_;
};

// Update to 10, save, update to 20 as soon as that is allowed.
std::string FencedRound(DeviceCaptureTest&, Engine& engine, DeviceState& state, device::Simulated& device, bool fence) {
  device.Hold();
  state.Update(10);
  state.UpdateHost(10);
  auto ticket = engine.Save(state.Request(1, fence));
  if (!ticket.ok()) return ticket.status().ToString();
  state.UpdateHost(20);  // always allowed
  if (fence) {
    if (absl::Status fenced = (*ticket)->Fence(state.streams(), 60); !fenced.ok()) return fenced.ToString();
  }
  state.Update(20);
  device.Settle();
  device.Release();
  return std::string((*ticket)->Wait("done", 60).message());
}

TEST_F(DeviceCaptureTest, MEM_06_AFencedSaveIsOfItsMoment) {
  Start();
  ASSERT_TRUE(Open().ok());
  ASSERT_EQ(FencedRound(*this, *engine_, *state_, *device_, true), "");
  EXPECT_EQ(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, MEM_06_AnUnfencedSaveFencesItself) {
  Start();
  ASSERT_TRUE(Open().ok());
  ASSERT_EQ(FencedRound(*this, *engine_, *state_, *device_, false), "");
  EXPECT_EQ(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, WithoutItsOwnFenceAnUnfencedSaveIsTorn) {
  Start();
  ASSERT_TRUE(Open().ok());
  capture::Omit(capture::Order::kUnfencedSaveFences);
  ASSERT_EQ(FencedRound(*this, *engine_, *state_, *device_, false), "");
  EXPECT_NE(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, SaidToBeCapturedBeforeTheEndAnImageIsTorn) {
  Start();
  ASSERT_TRUE(Open().ok());
  capture::Omit(capture::Order::kCapturedAfterEnd);
  state_->Update(10);
  state_->UpdateHost(10);
  device_->Settle();
  auto ticket = SaveNow(1, false);
  ASSERT_TRUE(ticket->Wait("done", 60).ok());
  EXPECT_NE(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, TheMemoryMayGoOnceCaptured) {
  Start();
  ASSERT_TRUE(Open().ok());
  state_->Update(10);
  state_->UpdateHost(10);
  auto ticket = SaveNow(1, true);
  ASSERT_TRUE(ticket->Wait("captured", 60).ok());
  state_->FreeAll();
  ASSERT_TRUE(ticket->Wait("done", 60).ok());
  EXPECT_TRUE(device_->Health().ok());
  EXPECT_EQ(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, ASaveWithAFenceReturnsBeforeTheDeviceHasRun) {
  Start();
  ASSERT_TRUE(Open().ok());
  device_->Hold();
  state_->Update(10);
  auto ticket = SaveNow(1, true);
  EXPECT_EQ(ticket->Stages()[0].second, StageState::kPending);
  EXPECT_TRUE(ticket->Fence(state_->streams(), 60).ok());
  EXPECT_EQ(ticket->Stages()[0].second, StageState::kPending);  // the host waited for no copy
  device_->Release();
  EXPECT_TRUE(ticket->Wait("done", 60).ok());
}

TEST_F(DeviceCaptureTest, WhatTheFenceDoesNotProtectMayChangeAfterTheSave) {
  Start();
  ASSERT_TRUE(Open().ok());
  device_->Hold();
  state_->Update(10);
  state_->UpdateHost(10);
  const std::vector<uint8_t> fenced(8, 0);
  SaveRequest request = state_->Request(1, true);
  request.fenced = fenced;
  auto ticket = engine_->Save(request).value();
  state_->Update(20);
  device_->Settle();
  device_->Release();
  ASSERT_TRUE(ticket->Wait("done", 60).ok());
  EXPECT_EQ(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, ASY_02_EachSaveReadsTheTensorsOfItsCall) {
  Start(Pace::kSeeded, {});
  ASSERT_TRUE(Open().ok());
  for (uint8_t round = 1; round <= 3; ++round) {
    state_->Renew();
    state_->Update(round * 10);
    state_->UpdateHost(round * 10);
    auto ticket = SaveNow(round, round % 2 == 0);
    ASSERT_TRUE(ticket->Wait("done", 60).ok());
    EXPECT_EQ(FaultOfNewest(round * 10), "") << static_cast<int>(round);
  }
}

TEST_F(DeviceCaptureTest, ADeviceThatBreaksFailsTheTicketAndTheNextSaves) {
  Start();
  ASSERT_TRUE(Open().ok());
  device_->Hold();
  auto ticket = SaveNow(1, true);
  device_->Break("simulated: Xid 79, the device has fallen off the bus");
  device_->Release();
  const absl::Status status = ticket->Wait("done", 60);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("Xid 79"), std::string::npos);
  EXPECT_TRUE(ticket->Fence(state_->streams(), 1).ok());  // training is not held up
  auto next = SaveNow(2, false);
  EXPECT_TRUE(absl::IsUnavailable(next->Wait("done", 60)));
  EXPECT_TRUE(absl::IsUnavailable(engine_->Close(true, 60)));
}

TEST_F(DeviceCaptureTest, AStreamBeingCapturedIntoAGraphIsMisuse) {
  Start();
  ASSERT_TRUE(Open().ok());
  device_->SetCapturing(stream_, true);
  const auto ticket = engine_->Save(state_->Request(1, false));
  EXPECT_TRUE(absl::IsInvalidArgument(ticket.status())) << ticket.status();
  device_->SetCapturing(stream_, false);
  EXPECT_TRUE(SaveNow(1, false)->Wait("done", 60).ok());
}

TEST_F(DeviceCaptureTest, MEM_03_SlotsAreRegisteredWhileTheyAreMappedOnly) {
  Start(Pace::kSeeded, {});
  for (int round = 0; round < 100; ++round) {
    ASSERT_TRUE(Open({"ram:?slots=1"}).ok());
    state_->Update(10);
    state_->UpdateHost(10);
    ASSERT_TRUE(SaveNow(static_cast<uint64_t>(round), false)->Wait("captured", 60).ok());
    EXPECT_GT(device_->counts().registered_bytes, uint64_t{3} << 20);
    ASSERT_TRUE(engine_->Close(false, 60).ok());
    engine_.reset();
    ASSERT_EQ(device_->counts().registered_bytes, 0u) << round;
  }
}

TEST_F(DeviceCaptureTest, MEM_04_WithoutRegisteredMemoryTheSaveIsSlowerAndRight) {
  Start(Pace::kSeeded, {});
  device_->FailAlways(Fault::kRegister);
  ASSERT_TRUE(Open().ok());
  state_->Update(10);
  state_->UpdateHost(10);
  ASSERT_TRUE(SaveNow(1, false)->Wait("done", 60).ok());
  EXPECT_EQ(FaultOfNewest(10), "");
  EXPECT_EQ(device_->counts().registered_bytes, 0u);  // nothing half done
  EXPECT_TRUE(device_->Health().ok());
}

TEST_F(DeviceCaptureTest, CloseWaitsForCopiesInFlight) {
  Start(Pace::kSeeded, {});
  ASSERT_TRUE(Open().ok());
  state_->Update(10);
  state_->UpdateHost(10);
  auto ticket = SaveNow(1, true);
  ASSERT_TRUE(engine_->Close(true, 60).ok());
  EXPECT_TRUE(ticket->Wait("file", 0).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, ASY_07_ForkedChildrenNeitherHangNorTouchTheDevice) {
  Start();
  ASSERT_TRUE(Open().ok());
  device_->Hold();
  state_->Update(10);
  state_->UpdateHost(10);
  auto ticket = SaveNow(1, true);
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      engine_.reset();
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  device_->Release();
  ASSERT_TRUE(ticket->Wait("done", 60).ok());
  EXPECT_EQ(FaultOfNewest(10), "");
}

TEST_F(DeviceCaptureTest, AMissingDeviceFailsTheTicketOnly) {
  Start();
  device::Use(nullptr);
  ASSERT_TRUE(Open().ok());
  auto ticket = SaveNow(1, false);
  EXPECT_FALSE(ticket->Wait("done", 60).ok());
}

TEST_F(DeviceCaptureTest, ASingleFileIsSavedFromHostMemoryOnly) {
  Start();
  const SaveRequest request = state_->Request(1, false);
  EXPECT_TRUE(absl::IsUnimplemented(SaveFile(folder_ + "/w.safetensors", request.state, request.addresses, "", {})));
}

TEST_F(DeviceCaptureTest, HostMemorySaidToBeTheDevicesIsRefusedByName) {
  Start();
  ASSERT_TRUE(Open().ok());
  SaveRequest request = state_->Request(1, false);
  std::vector<uint8_t> host(1000);
  std::vector<const void*> addresses(request.addresses.begin(), request.addresses.end());
  addresses[3] = host.data();
  request.addresses = addresses;
  const absl::Status status = engine_->Save(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("\"t3\""), std::string::npos) << status;
}

TEST_F(DeviceCaptureTest, MarksOfWhatIsFencedAreOnePerTensor) {
  Start();
  ASSERT_TRUE(Open().ok());
  SaveRequest request = state_->Request(1, true);
  const std::vector<uint8_t> few(3, 1);
  request.fenced = few;
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Save(request).status()));
}

}  // namespace
}  // namespace neve
