// Tensors of a CUDA device through the C API, by a stand-in for the driver: saved under a fence and restored into the device's memory;
// memory whose kind the program has got wrong.
#include <dlfcn.h>

#include <cstring>

#include "capi/handles_fixture.h"

namespace neve_test {
namespace {

constexpr size_t kFloats = 70000;

// A program that uses CUDA: the driver is loaded, and its context is current.
class CudaTest : public CApiTest {
 protected:
  CudaTest() {
    void* const driver = ::dlopen(NEVE_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);   // by its name, libcuda.so.1, it is found from then on
    EXPECT_NE(driver, nullptr) << ::dlerror();
    void* context = nullptr;
    int device = 0;
    Driver<int (*)(int*, int)>(driver, "cuDeviceGet")(&device, 0);
    EXPECT_EQ(Driver<int (*)(void**, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, device), 0);
    EXPECT_EQ(Driver<int (*)(void*)>(driver, "cuCtxPushCurrent_v2")(context), 0);
    EXPECT_EQ(Driver<int (*)(unsigned long long*, size_t)>(driver, "cuMemAlloc_v2")(&memory_, kFloats * sizeof(float)), 0);
    free_ = Driver<int (*)(unsigned long long)>(driver, "cuMemFree_v2");
    pop_ = Driver<int (*)(void**)>(driver, "cuCtxPopCurrent_v2");
    ::unsetenv("NEVE_DEVICE");
  }
  ~CudaTest() override {
    void* context = nullptr;
    free_(memory_);
    pop_(&context);
  }
  template <typename Function>
  static Function Driver(void* library, const char* name) {
    return reinterpret_cast<Function>(::dlsym(library, name));
  }
  float* Memory() const { return reinterpret_cast<float*>(memory_); }   // which the stand-in lets the host read
  neve_state* StateOn(int32_t device) {
    Described described;
    described.Add("w", {static_cast<int64_t>(kFloats)});
    described.Add("n", {2});
    const int32_t devices[] = {device, -1};
    described.tensors.devices = devices;
    return described.State();
  }

  unsigned long long memory_ = 0;
  int (*free_)(unsigned long long) = nullptr;
  int (*pop_)(void**) = nullptr;
};

TEST_F(CudaTest, AFencedSaveComesBackIntoTheDevicesMemory) {
  neve_engine* engine = Open("job");
  neve_state* state = StateOn(0);
  float host[] = {4, 5};
  for (size_t i = 0; i < kFloats; ++i) Memory()[i] = static_cast<float>(i);
  const void* addresses[] = {Memory(), host};
  const int32_t stream_devices[] = {0};
  void* const streams[] = {nullptr};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.step = 4;
  request.state = state;
  request.addresses = addresses;
  request.stream_devices = stream_devices;
  request.streams = streams;
  request.stream_count = 1;
  request.fence = 1;
  neve_ticket* ticket = nullptr;
  ASSERT_CODE(NEVE_OK, neve_engine_save, engine, &request, &ticket);
  host[0] = host[1] = 0;
  EXPECT_CODE(NEVE_OK, neve_ticket_fence, ticket, stream_devices, streams, 1, 60.0);
  std::memset(Memory(), 0, kFloats * sizeof(float));
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "done", 60.0);
  neve_ticket_destroy(&ticket);

  void* targets[] = {Memory(), host};
  neve_restore_request restore = NEVE_RESTORE_REQUEST_INIT;
  restore.state = state;
  restore.targets = targets;
  EXPECT_CODE(NEVE_OK, neve_engine_restore, engine, &restore, nullptr);
  for (size_t i = 0; i < kFloats; ++i) ASSERT_EQ(Memory()[i], static_cast<float>(i));
  EXPECT_EQ(host[0] * 10 + host[1], 45);
  neve_state_destroy(&state);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(CudaTest, MemoryOfAnotherKindThanTheStateSays) {
  neve_engine* engine = Open("job");
  float host[2] = {};
  std::vector<float> plain(kFloats);
  for (const bool on_device : {false, true}) {
    neve_state* state = StateOn(on_device ? 0 : -1);
    const void* addresses[] = {on_device ? plain.data() : Memory(), host};
    neve_save_request request = NEVE_SAVE_REQUEST_INIT;
    request.state = state;
    request.addresses = addresses;
    const Outcome outcome =
        Call(neve_engine_save, engine, static_cast<const neve_save_request*>(&request), static_cast<neve_ticket**>(nullptr));
    EXPECT_EQ(outcome.code, NEVE_INVALID);
    EXPECT_NE(outcome.text.find("tensor \"w\""), std::string::npos) << outcome.text;
    if (!on_device) {
      EXPECT_CODE(NEVE_INVALID, neve_file_save, Path("w.safetensors").c_str(), &request);
      EXPECT_CODE(NEVE_INVALID, neve_engine_prepare, engine, &request);
    }
    neve_state_destroy(&state);
  }
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

}  // namespace
}  // namespace neve_test
