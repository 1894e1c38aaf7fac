// The host as a device: every call does its work before it returns, so streams and events have nothing to wait for.
#ifndef NEVE_DEVICE_HOST_DEVICE_H_
#define NEVE_DEVICE_HOST_DEVICE_H_

#include <memory>

#include "device/device.h"

namespace neve::device {

std::shared_ptr<Device> MakeHostDevice();

}  // namespace neve::device

#endif  // NEVE_DEVICE_HOST_DEVICE_H_
