// Restores into the memory of a simulated device: bytes verified in host memory, copied out of two buffers that take turns.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/obs/log.h"
#include "device/simulated.h"
#include "engine/device_fill.h"
#include "engine/engine_fixture.h"
#include "neve/restore.h"

namespace neve {
namespace {

using device::Fault;
using device::MemoryKind;
using device::Pace;
using ::testing::HasSubstr;

struct Wanted {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape, strides;
  uint64_t Elements() const {
    return static_cast<uint64_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }
  uint64_t Bytes() const { return Elements() * ItemBytes(dtype); }
};

std::vector<Wanted> Tensors() {
  const int64_t large = (static_cast<int64_t>(engine::kFillBufferBytes) * 5 / 2) / 4 + 3;   // two buffers and a half
  std::vector<Wanted> tensors = {{"large", DType::kF32, {large}, {1}},
                                 {"scalar", DType::kF64, {}, {}},
                                 {"empty", DType::kF32, {0, 5}, {5, 1}},
                                 {"last", DType::kF32, {2, 3, 5, 7}, {105, 1, 21, 3}},           // channels last
                                 {"turned", DType::kU8, {6000, 7000}, {1, 6000}},                // more than a buffer, transposed
                                 {"ones", DType::kF32, {1, 9, 1}, {77, 1, 1234}}};
  for (int i = 0; i < 300; ++i) tensors.push_back({"small" + std::to_string(i), DType::kU8, {i % 37 + 1}, {1}});
  return tensors;
}

class DeviceRestoreTest : public EngineTest {
 protected:
  void Start(device::SimulatedOptions options = {.memory_bytes = uint64_t{512} << 20, .paces = {Pace::kLate, Pace::kLate}}) {
    device_ = device::Simulated::Create(options);
    ASSERT_NE(device_, nullptr);
    device::Use(device_);
  }
  void TearDown() override {
    engine_.reset();
    if (device_ != nullptr) {
      device_->Break("the test is over");
      device_->Settle();
      for (void* const memory : memory_) device_->Free(MemoryKind::kDevice, memory);
    }
    device::Use(nullptr);
    device_.reset();
    EngineTest::TearDown();
  }
  static std::shared_ptr<State> Describe(const std::vector<Wanted>& tensors, int32_t ordinal) {
    std::vector<std::string_view> names;
    std::vector<DType> dtypes;
    std::vector<uint8_t> ranks;
    std::vector<int64_t> extents, strides;
    for (const Wanted& tensor : tensors) {
      names.push_back(tensor.name);
      dtypes.push_back(tensor.dtype);
      ranks.push_back(static_cast<uint8_t>(tensor.shape.size()));
      extents.insert(extents.end(), tensor.shape.begin(), tensor.shape.end());
      strides.insert(strides.end(), tensor.strides.begin(), tensor.strides.end());
    }
    const std::vector<int32_t> devices(tensors.size(), ordinal);
    return DescribeState({.names = names, .dtypes = dtypes, .ranks = ranks, .extents = extents, .strides = strides, .devices = devices},
                         "", 0)
        .value();
  }
  // Bytes that tell where they belong; saved from host memory.
  void SaveFromHost(const std::vector<Wanted>& tensors) {
    std::vector<const void*> addresses;
    for (size_t i = 0; i < tensors.size(); ++i) {
      content_.emplace_back(tensors[i].Bytes());
      for (size_t at = 0; at < content_[i].size(); ++at) content_[i][at] = static_cast<uint8_t>(at * 31 + (at >> 12) * 7 + i);
    }
    for (const auto& bytes : content_) addresses.push_back(bytes.data());
    SaveRequest request;
    request.step = 1;
    request.state = Describe(tensors, -1);
    request.addresses = addresses;
    auto ticket = engine_->Save(request);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
  }
  void Allocate(const std::vector<Wanted>& tensors) {
    for (const Wanted& tensor : tensors) memory_.push_back(device_->Allocate(MemoryKind::kDevice, tensor.Bytes() + 1).value());
  }
  absl::Status Restore(const std::vector<Wanted>& tensors) {
    RestoreRequest request;
    request.state = Describe(tensors, 0);
    request.targets = memory_;
    return RestoreInto(*engine_, request).status();
  }
  // The name of the first tensor that is not as it was saved.
  std::string Different(const std::vector<Wanted>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<uint8_t> bytes(tensors[i].Bytes());
      if (!bytes.empty()) device_->Peek(bytes.data(), memory_[i], bytes.size());
      if (bytes != content_[i]) return tensors[i].name;
    }
    return "";
  }

  std::shared_ptr<device::Simulated> device_;
  std::vector<std::vector<uint8_t>> content_;
  std::vector<void*> memory_;
};

TEST_F(DeviceRestoreTest, TensorsOfAnySizeAndOrderComeBack) {
  for (const bool registered : {true, false}) {
    Start();
    content_.clear();
    const std::vector<Wanted> tensors = Tensors();
    ASSERT_TRUE(Open().ok());
    SaveFromHost(tensors);
    Allocate(tensors);
    if (!registered) device_->FailAlways(Fault::kAllocate);   // from here on: the registered buffers
    EXPECT_EQ(Restore(tensors), absl::OkStatus());
    EXPECT_EQ(Different(tensors), "");
    engine_.reset();
    for (void* const memory : memory_) device_->Free(MemoryKind::kDevice, memory);
    memory_.clear();
  }
}

TEST_F(DeviceRestoreTest, SmallTensorsGoInBatchesAndTheirChunkIsReadOnce) {
  Start();
  std::vector<Wanted> tensors;
  for (int i = 0; i < 2000; ++i) tensors.push_back({"t" + std::to_string(i), DType::kF32, {64}, {1}});
  ASSERT_TRUE(Open().ok());
  SaveFromHost(tensors);
  Allocate(tensors);
  const uint64_t batches = device_->counts().batches;
  EXPECT_EQ(Restore(tensors), absl::OkStatus());
  EXPECT_EQ(Different(tensors), "");
  EXPECT_EQ(device_->counts().batches, batches + 1);
}

TEST_F(DeviceRestoreTest, AFailureOfTheDeviceIsTheRestores) {
  const std::vector<Wanted> tensors = {{"turned", DType::kU8, {6000, 7000}, {1, 6000}}, {"small", DType::kU8, {9}, {1}}};
  for (const Fault fault : {Fault::kStream, Fault::kRecord, Fault::kCopyRefused, Fault::kCopyFails}) {
    Start();
    content_.clear();
    ASSERT_TRUE(Open().ok());
    SaveFromHost(tensors);
    Allocate(tensors);
    device_->FailAt(fault, 1);
    const absl::Status status = Restore(tensors);
    EXPECT_FALSE(status.ok()) << static_cast<int>(fault);
    if (fault != Fault::kCopyFails) {   // that one is the device's end
      EXPECT_EQ(Restore(tensors), absl::OkStatus()) << static_cast<int>(fault);
      EXPECT_EQ(Different(tensors), "") << static_cast<int>(fault);
    }
    engine_.reset();
    device_->Break("the round is over");
    device_->Settle();
    for (void* const memory : memory_) device_->Free(MemoryKind::kDevice, memory);
    memory_.clear();
  }
}

TEST_F(DeviceRestoreTest, BuffersOfAStreamThatCannotBeAskedStayForGood) {
  Start({.memory_bytes = uint64_t{64} << 20, .paces = {Pace::kEager, Pace::kEager}});   // which Settle() waits for
  const std::vector<Wanted> tensors = {{"a", DType::kU8, {100'000}, {1}}};
  ASSERT_TRUE(Open().ok());
  SaveFromHost(tensors);
  Allocate(tensors);
  std::vector<std::string> lines;
  obs::SetSink([&](obs::Level, const std::string& line) { lines.push_back(line); });
  device_->FailAlways(Fault::kRecord);
  EXPECT_FALSE(Restore(tensors).ok());
  obs::SetSink(nullptr);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const std::string& line) { return line.find("event=buffers_lost") != line.npos; }),
            1);
  device_->Settle();   // the copy runs out of memory that is still there
  EXPECT_EQ(Different(tensors), "");
}

TEST_F(DeviceRestoreTest, ATensorWithGapsIsRefusedByNameBeforeAnythingIsWritten) {
  Start();
  std::vector<Wanted> tensors = {{"a", DType::kU8, {64, 64}, {64, 1}}, {"b", DType::kU8, {8, 8}, {8, 1}}};
  ASSERT_TRUE(Open().ok());
  SaveFromHost(tensors);
  Allocate(tensors);
  const uint64_t copies = device_->counts().copies;
  tensors[1].strides = {1, 16};
  const absl::Status status = Restore(tensors);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"b\" lies on a device, and not dense"));
  EXPECT_EQ(device_->counts().copies, copies);
}

}  // namespace
}  // namespace neve
