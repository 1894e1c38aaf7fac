// Memory of a device that a program calls the host's: told apart before the host reads it, which would end the process.
#ifndef NEVE_DEVICE_MISDECLARED_H_
#define NEVE_DEVICE_MISDECLARED_H_

namespace neve::device {

// Whether the CUDA driver that the process has loaded already knows the address as memory of a device, and not as managed memory.
// Without such a driver nothing is loaded, and the answer is false, as it is wherever the driver cannot say. Thread: any.
bool HostCannotRead(const void* address);

}  // namespace neve::device

#endif  // NEVE_DEVICE_MISDECLARED_H_
