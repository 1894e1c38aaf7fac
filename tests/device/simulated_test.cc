#include "device/simulated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/sync/pause.h"

namespace neve::device {
namespace {

class SimulatedTest : public ::testing::Test {
 protected:
  void Open(SimulatedOptions options = {}) {
    device_ = Simulated::Create(options);
    ASSERT_NE(device_, nullptr);
    memory_ = static_cast<std::byte*>(device_->Allocate(MemoryKind::kDevice, kBytes).value());
    host_ = OwnedMemory::Create(device_, MemoryKind::kRegistered, kBytes).value();
  }
  uint8_t First(const std::byte* memory) {
    uint8_t value;
    device_->Peek(&value, memory, 1);
    return value;
  }
  static constexpr uint64_t kBytes = 1 << 20;
  std::shared_ptr<Simulated> device_;
  std::byte* memory_ = nullptr;
  OwnedMemory host_;
};

TEST_F(SimulatedTest, TheHostCannotTouchItsMemory) {
  Open();
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(memory_) = 1, "");
}

TEST_F(SimulatedTest, ALateStreamRunsNothingUntilTheHostWaits) {
  Open();
  const Stream stream = device_->NewStream(Pace::kLate);
  ASSERT_TRUE(device_->Fill(stream, memory_, kBytes, 7).ok());
  device_->Settle();
  EXPECT_EQ(First(memory_), 0);
  ASSERT_TRUE(device_->SynchronizeStream(stream).ok());
  EXPECT_EQ(First(memory_), 7);
}

TEST_F(SimulatedTest, AnEagerStreamNeedsNobodyToWait) {
  Open();
  const Stream stream = device_->NewStream(Pace::kEager);
  ASSERT_TRUE(device_->Fill(stream, memory_, kBytes, 7).ok());
  device_->Settle();
  EXPECT_EQ(First(memory_ + kBytes - 1), 7);
}

TEST_F(SimulatedTest, AHeldDeviceRunsEagerStreamsOnly) {
  Open();
  const Stream eager = device_->NewStream(Pace::kEager), seeded = device_->NewStream(Pace::kSeeded);
  device_->Hold();
  ASSERT_TRUE(device_->Fill(seeded, memory_, 1, 3).ok());
  ASSERT_TRUE(device_->Fill(eager, memory_ + 1, 1, 4).ok());
  device_->Settle();
  EXPECT_EQ(First(memory_), 0);
  EXPECT_EQ(First(memory_ + 1), 4);
  device_->Release();
  ASSERT_TRUE(device_->SynchronizeStream(seeded).ok());
  EXPECT_EQ(First(memory_), 3);
}

TEST_F(SimulatedTest, AWaitForAnEventNotYetRecordedWaitsForNothing) {
  Open();
  const Stream writer = device_->NewStream(Pace::kLate), waiter = device_->NewStream(Pace::kEager);
  const Event event = device_->CreateEvent().value();
  ASSERT_TRUE(device_->Wait(waiter, event).ok());  // too early
  ASSERT_TRUE(device_->Fill(waiter, memory_, 1, 9).ok());
  ASSERT_TRUE(device_->Fill(writer, memory_ + 1, 1, 8).ok());
  ASSERT_TRUE(device_->Record(event, writer).ok());
  device_->Settle();
  EXPECT_EQ(First(memory_), 9);
  EXPECT_EQ(First(memory_ + 1), 0);
}

TEST_F(SimulatedTest, RecordingAgainMovesTheEventForThoseThatComeLater) {
  Open();
  const Stream writer = device_->NewStream(Pace::kLate);
  const Stream before = device_->NewStream(Pace::kEager), after = device_->NewStream(Pace::kEager);
  const Event event = device_->CreateEvent().value(), first = device_->CreateEvent().value();
  ASSERT_TRUE(device_->Record(event, writer).ok());
  ASSERT_TRUE(device_->Record(first, writer).ok());
  ASSERT_TRUE(device_->Wait(before, event).ok());
  ASSERT_TRUE(device_->Fill(before, memory_, 1, 1).ok());
  ASSERT_TRUE(device_->Fill(writer, memory_ + 2, 1, 5).ok());
  ASSERT_TRUE(device_->Record(event, writer).ok());  // moved
  ASSERT_TRUE(device_->Wait(after, event).ok());
  ASSERT_TRUE(device_->Fill(after, memory_ + 1, 1, 2).ok());
  ASSERT_TRUE(device_->Synchronize(first).ok());
  device_->Settle();
  EXPECT_EQ(First(memory_), 1);
  EXPECT_EQ(First(memory_ + 1), 0);
  ASSERT_TRUE(device_->Synchronize(event).ok());
  device_->Settle();
  EXPECT_EQ(First(memory_ + 1), 2);
}

TEST_F(SimulatedTest, StreamsWithoutAnEventTearEachOthersMemory) {
  SimulatedOptions options;
  options.slice_bytes = 4096;
  Open(options);
  const Stream one = device_->NewStream(Pace::kSeeded), two = device_->NewStream(Pace::kSeeded);
  device_->Hold();
  ASSERT_TRUE(device_->Fill(one, memory_, kBytes, 1).ok());
  ASSERT_TRUE(device_->Fill(two, memory_, kBytes, 2).ok());
  device_->Release();
  ASSERT_TRUE(device_->SynchronizeStream(one).ok());
  ASSERT_TRUE(device_->SynchronizeStream(two).ok());
  std::vector<uint8_t> bytes(kBytes);
  device_->Peek(bytes.data(), memory_, kBytes);
  EXPECT_NE(std::count(bytes.begin(), bytes.end(), 1), 0);
  EXPECT_NE(std::count(bytes.begin(), bytes.end(), 2), 0);
}

TEST_F(SimulatedTest, WorkOnFreedMemoryBreaksTheDevice) {
  Open();
  const Stream stream = device_->NewStream(Pace::kLate);
  ASSERT_TRUE(device_->Copy(stream, {host_.get(), memory_, kBytes}).ok());
  device_->Free(MemoryKind::kDevice, memory_);
  const absl::Status status = device_->SynchronizeStream(stream);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(device_->Health(), status);
  EXPECT_EQ(device_->Fill(stream, memory_, 1, 1), status);  // sticky
}

TEST_F(SimulatedTest, TheMemoryOfTheDeviceEnds) {
  SimulatedOptions options;
  options.memory_bytes = 4 << 20;
  Open(options);
  EXPECT_TRUE(absl::IsResourceExhausted(device_->Allocate(MemoryKind::kDevice, 4 << 20).status()));
  const auto rest = device_->Allocate(MemoryKind::kDevice, 3 << 20);
  ASSERT_TRUE(rest.ok()) << rest.status();
  device_->Free(MemoryKind::kDevice, *rest);
  EXPECT_TRUE(device_->Allocate(MemoryKind::kDevice, 3 << 20).ok());
  EXPECT_EQ(device_->counts().allocated_bytes_max, uint64_t{4} << 20);
}

TEST_F(SimulatedTest, FaultsComeWhenTheyAreDue) {
  Open();
  device_->FailAt(Fault::kAllocate, 2);
  EXPECT_TRUE(device_->Allocate(MemoryKind::kDevice, 16).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(device_->Allocate(MemoryKind::kDevice, 16).status()));
  EXPECT_TRUE(device_->Allocate(MemoryKind::kDevice, 16).ok());
  device_->FailAt(Fault::kCopyFails, 1);
  const Stream stream = device_->NewStream(Pace::kSeeded);
  ASSERT_TRUE(device_->Copy(stream, {host_.get(), memory_, kBytes}).ok());
  EXPECT_TRUE(absl::IsUnavailable(device_->SynchronizeStream(stream)));
  EXPECT_TRUE(absl::IsUnavailable(device_->Health()));
}

TEST_F(SimulatedTest, ABatchIsRefusedWhereADriverWouldRefuseIt) {
  Open();
  const Stream stream = device_->NewStream(Pace::kEager);
  std::vector<std::byte> loose(100);
  const CopyRange to_loose{loose.data(), memory_, 100}, to_host{host_.get(), memory_, 100};
  EXPECT_FALSE(device_->CopyBatch(stream, {&to_loose, 1}).ok());
  EXPECT_FALSE(device_->CopyBatch(Stream{}, {&to_host, 1}).ok());
  EXPECT_TRUE(device_->CopyBatch(stream, {&to_host, 1}).ok());
}

TEST_F(SimulatedTest, ACapturingStreamTakesNoWork) {
  Open();
  const Stream stream = device_->NewStream(Pace::kEager);
  device_->SetCapturing(stream, true);
  EXPECT_TRUE(device_->IsCapturing(stream).value());
  EXPECT_FALSE(device_->Fill(stream, memory_, 1, 1).ok());
}

TEST_F(SimulatedTest, ACopyEngineKeepsToItsBandwidth) {
  SimulatedOptions options;
  options.bytes_per_s = 100e6;
  Open(options);
  const Stream stream = device_->NewStream(Pace::kEager);
  const sync::Nanos begin = sync::MonotonicNow();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(device_->Copy(stream, {host_.get(), memory_, kBytes}).ok());
  ASSERT_TRUE(device_->SynchronizeStream(stream).ok());
  // All but the last slice have had their time; how much later the thread was is the machine's affair.
  EXPECT_GE(sync::MonotonicNow() - begin, static_cast<sync::Nanos>((10 * kBytes - options.slice_bytes) / 100e6 * 1e9));
}

}  // namespace
}  // namespace neve::device
