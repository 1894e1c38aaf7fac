// FillDevice: brings tensors of an image into a device's memory. Two buffers in host memory take turns: while copies out of one are
// in flight, the next bytes are read and verified into the other.
//
// Invariants
//   - A device gets only bytes that ImageTensors has verified.
//   - Host memory is bounded: two buffers of kFillBufferBytes, whatever the tensors' sizes; registered where the device grants it,
//     else plain, from where copies are slower.
//   - On return, with whatever status, no copy is in flight.
//   - Tensors that are neighbours in the image are read together: each of its chunks is verified once a buffer, not once a tensor.
#ifndef NEVE_ENGINE_DEVICE_FILL_H_
#define NEVE_ENGINE_DEVICE_FILL_H_

#include <cstdint>
#include <memory>
#include <span>

#include "base/error/status.h"
#include "device/device.h"
#include "neve/engine.h"

namespace neve::engine {

constexpr uint64_t kFillBufferBytes = 32u << 20;

// A box of a tensor, as a BoxTarget, whose memory is the device's: dense (tensor::Classify: contiguous or permuted).
struct DeviceTarget {
  size_t index = 0;                          // in the image's tensors
  std::span<const int64_t> offset, extent;   // in elements
  std::span<const int64_t> strides;          // of the memory, in elements
  uint64_t item_bytes = 0;
  void* data = nullptr;
};

// The copies run on a stream of their own: what the program still does with the targets must have ended. Blocking. The errors of
// ImageTensors::ReadBoxes and of the device.
absl::Status FillDevice(const ImageTensors& from, const std::shared_ptr<device::Device>& device, std::span<const DeviceTarget> targets);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_DEVICE_FILL_H_
