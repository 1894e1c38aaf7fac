// A CUDA device by its driver, in the primary context: the one that the CUDA runtime, and so torch, uses.
#ifndef NEVE_DEVICE_CUDA_DEVICE_H_
#define NEVE_DEVICE_CUDA_DEVICE_H_

#include <memory>

#include "device/cuda_driver.h"
#include "device/device.h"

namespace neve::device {

// NotFound without a device of that number. The context is kept while the device is.
absl::StatusOr<std::shared_ptr<Device>> MakeCudaDevice(std::shared_ptr<const cuda::Driver> driver, int ordinal);

}  // namespace neve::device

#endif  // NEVE_DEVICE_CUDA_DEVICE_H_
