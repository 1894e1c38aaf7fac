// A state of which most tensors lie on a simulated device, in every way that a plan knows: long and short, tiny and many,
// strided, beside host tensors and a blob. All bytes of a tensor hold one number, which no near one holds: what is torn or
// misplaced shows.
#ifndef NEVE_TESTS_CAPTURE_DEVICE_WORLD_H_
#define NEVE_TESTS_CAPTURE_DEVICE_WORLD_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "capture/device_save.h"
#include "capture/host_plan.h"
#include "device/simulated.h"
#include "tensor/view.h"

namespace neve::capture {

class DeviceWorld {
 public:
  explicit DeviceWorld(device::SimulatedOptions options, device::Pace caller, bool registered = true,
                       DevicePlanOptions plan = Small())
      : device_(device::Simulated::Create(std::move(options))), caller_(device_->NewStream(caller)) {
    AddDevice({700'000});  // direct, in pieces
    AddHost({50});
    AddDevice({40'000});  // batch
    AddDevice({30'001});
    for (int i = 0; i < 60; ++i) {
      AddDevice({1 + i * 37 % 3000});  // gather: several windows
      if (i % 7 == 3) AddHost({5});    // which breaks a run of neighbours
    }
    AddStrided({30, 50, 40}, {1, 30, 1500});  // transposed
    AddStrided({40, 900}, {1000, 1});         // rows with gaps between them
    auto structure = std::make_shared<format::Structure>();
    structure->tensors = specs_;
    structure->blob_count = 1;
    const std::vector<uint64_t> blob_bytes = {blob_.size()};
    layout_ = format::Layout::Build(structure, addresses_, format::GrowCapacities({}, 10, blob_bytes)).value();
    image_ = device::OwnedMemory::Create(device_, device::MemoryKind::kRegistered, layout_->image_bytes()).value();
    plain_.resize(layout_->image_bytes());
    registered_ = registered;
    options_ = plan;
  }
  ~DeviceWorld() {
    // What a mutation left running must not write to memory that goes now.
    device_->Break("the test is over");
    device_->Settle();
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (devices_[i] >= 0 && memory_[i] != nullptr) device_->Free(device::MemoryKind::kDevice, memory_[i]);
    }
  }

  static uint8_t Tint(uint8_t value, size_t tensor) { return static_cast<uint8_t>(1 + (value * 97 + tensor * 5) % 251); }

  static DevicePlanOptions Small() {
    DevicePlanOptions options;
    options.piece_bytes = 256 << 10;
    options.direct_bytes_min = 100'000;
    options.gather_bytes_max = 8 << 10;
    options.batch_count_max = 3;
    options.window_bytes = 16 << 10;
    options.window_items_max = 12;
    return options;
  }

  device::Simulated& device() { return *device_; }
  std::shared_ptr<device::Device> shared_device() { return device_; }
  const format::Layout& layout() const { return *layout_; }
  std::span<std::byte> image() {
    return registered_ ? std::span(image_.get(), layout_->image_bytes()) : std::span(plain_.data(), plain_.size());
  }
  bool registered() const { return registered_; }
  DeviceStream caller() const { return {0, caller_.handle}; }
  std::vector<const void*>& addresses() { return addresses_; }
  std::vector<int32_t>& devices() { return devices_; }

  // Tensors that the fence does not protect: every third of the device's.
  std::vector<uint8_t> Fenced() const {
    std::vector<uint8_t> fenced(specs_.size());
    for (size_t i = 0; i < fenced.size(); ++i) fenced[i] = i % 3 != 0;
    return fenced;
  }
  std::shared_ptr<const DevicePlan> Plan(std::span<const uint8_t> fenced = {}) const {
    return DevicePlan::Build(layout_, 0, devices_, fenced, options_).value();
  }
  CaptureInput input() const { return {addresses_, "[1]", blobs_}; }

  // The program's next update: all device tensors (or those of one phase) become `value`, on its stream.
  void Update(uint8_t value, std::span<const uint8_t> fenced = {}, uint8_t only = 2) {
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (devices_[i] < 0 || (only != 2 && fenced[i] != only)) continue;
      device_->Fill(caller_, memory_[i], bytes_[i], Tint(value, i)).IgnoreError();
    }
  }
  void CaptureHost() {
    std::unique_ptr<sync::Crew> crew = sync::Crew::Create(0);
    const HostPlan plan(layout_, devices_);
    ASSERT_TRUE(plan.WriteHeader(input(), image()).ok());
    plan.Run(input(), image(), *crew);
  }
  // "" when every device tensor of the image is `value` and the host's part is right, else the first that is not.
  std::string Fault(uint8_t value, bool host = false) {
    for (const format::StoredTensor& stored : layout_->stored()) {
      const bool blob = stored.source == format::StoredTensor::Source::kBlob;
      const bool away = !blob && devices_[stored.index] >= 0;
      if (!away && !host) continue;
      const std::byte* const at = image().data() + stored.offset;
      for (uint64_t i = 0; i < stored.bytes; ++i) {
        const uint8_t wanted = blob   ? (i < 8                  ? static_cast<uint8_t>(blob_.size() >> (8 * i))
                                         : i - 8 < blob_.size() ? static_cast<uint8_t>(blob_[i - 8])
                                                                : 0)
                               : away ? Tint(value, stored.index)
                                      : kHostValue;
        if (static_cast<uint8_t>(at[i]) != wanted) {
          return (blob ? "blob" : specs_[stored.index].name) + " byte " + std::to_string(i) + " of " +
                 std::to_string(stored.bytes) + ": " + std::to_string(static_cast<int>(at[i])) + ", not " +
                 std::to_string(wanted);
        }
      }
    }
    return "";
  }

  static constexpr uint8_t kHostValue = 0x77;

 private:
  void AddDevice(tensor::Dims shape) {
    const tensor::Dims strides = tensor::ContiguousStrides(shape);
    AddStrided(std::move(shape), strides);
  }
  void AddStrided(tensor::Dims shape, tensor::Dims strides) {
    const uint64_t bytes = tensor::SpanBytes(shape, strides, 1);
    void* const memory = device_->Allocate(device::MemoryKind::kDevice, bytes).value();
    Add(std::move(shape), std::move(strides), memory, bytes, 0);
  }
  void AddHost(tensor::Dims shape) {
    const uint64_t bytes = static_cast<uint64_t>(shape[0]);
    host_.push_back(std::make_unique<std::vector<uint8_t>>(bytes, kHostValue));
    Add(shape, {1}, host_.back()->data(), bytes, -1);
  }
  void Add(tensor::Dims shape, tensor::Dims strides, void* memory, uint64_t bytes, int32_t device) {
    specs_.push_back({"t" + std::to_string(specs_.size()), DType::kU8, std::move(shape), std::move(strides)});
    addresses_.push_back(memory);
    memory_.push_back(memory);
    bytes_.push_back(bytes);
    devices_.push_back(device);
  }

  std::shared_ptr<device::Simulated> device_;
  device::Stream caller_;
  std::vector<format::TensorSpec> specs_;
  std::vector<const void*> addresses_;
  std::vector<void*> memory_;
  std::vector<uint64_t> bytes_;
  std::vector<int32_t> devices_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> host_;
  std::string blob_ = std::string(500, 'b');
  std::vector<std::string_view> blobs_ = {blob_};
  std::shared_ptr<const format::Layout> layout_;
  device::OwnedMemory image_;
  std::vector<std::byte> plain_;
  bool registered_ = true;
  DevicePlanOptions options_;
};

}  // namespace neve::capture

#endif  // NEVE_TESTS_CAPTURE_DEVICE_WORLD_H_
