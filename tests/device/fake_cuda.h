// What a test tells the stand-in for libcuda.so.1, and hears from it. Both functions are found in it by dlsym.
#ifndef NEVE_TESTS_DEVICE_FAKE_CUDA_H_
#define NEVE_TESTS_DEVICE_FAKE_CUDA_H_

#include <string_view>

#include "device/cuda_driver.h"

struct FakeCudaFacts {
  int version = 13000;
  int devices = 1;
  int init_result = 0;
  int capturing = 0;
  std::string_view failing;  // a literal: this call gives failing_result
  int failing_result = 0;
};

struct FakeCudaCounts {
  unsigned long calls = 0, copies = 0, batches_13000 = 0, batches_12080 = 0, launches = 0;
  unsigned long strict_calls = 0;  // made in a mode in which they would break another thread's capture
  unsigned long device_allocations = 0, registrations = 0;
  int contexts = 0;  // that the calling thread's stack holds
};

using FakeCudaSet = void (*)(const FakeCudaFacts*);
using FakeCudaGet = void (*)(FakeCudaCounts*);

#endif  // NEVE_TESTS_DEVICE_FAKE_CUDA_H_
