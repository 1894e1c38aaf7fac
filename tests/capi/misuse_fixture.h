// A job with one state, and every call of the C API with handles that are not good.
#ifndef NEVE_TESTS_CAPI_MISUSE_FIXTURE_H_
#define NEVE_TESTS_CAPI_MISUSE_FIXTURE_H_

#include <cstdint>
#include <vector>

#include "capi/handles_fixture.h"

namespace neve_test {

// A state "w" [1000] and one save of it.
class MisuseTest : public CApiTest {
 protected:
  MisuseTest() : weights_(1000, 1.5f) {
    Described described;
    described.Add("w", {1000});
    state_ = described.State();
    addresses_ = {weights_.data()};
    request_.state = state_;
    request_.addresses = addresses_.data();
  }
  ~MisuseTest() override { neve_state_destroy(&state_); }

  neve_ticket* Save(neve_engine* engine, uint64_t step) {
    request_.step = step;
    neve_ticket* ticket = nullptr;
    EXPECT_CODE(NEVE_OK, neve_engine_save, engine, &request_, &ticket);
    return ticket;
  }

  std::vector<float> weights_;
  std::vector<const void*> addresses_;
  neve_state* state_ = nullptr;
  neve_save_request request_ = NEVE_SAVE_REQUEST_INIT;
};

// Every function that takes a handle, with handles that are not good; `wanted` from each.
inline void EveryCallRefuses(neve_engine* engine, neve_state* state, neve_ticket* ticket, neve_image* image, neve_torch_stream* stream,
                      neve_code wanted) {
  neve_string* text = nullptr;
  neve_image* other = nullptr;
  neve_ticket* given = nullptr;
  uint64_t number = 0;
  size_t index = 0, bytes = 7;
  const void* data = nullptr;
  const void* address = &number;
  void* target = &number;
  neve_stage_state stage = NEVE_STAGE_PENDING;
  neve_save_request save = NEVE_SAVE_REQUEST_INIT;
  save.state = state;
  save.addresses = &address;
  neve_restore_request restore = NEVE_RESTORE_REQUEST_INIT;
  neve_ranges ranges = NEVE_RANGES_INIT;
  neve_boxes boxes = NEVE_BOXES_INIT;
  neve_tensor_info info = NEVE_TENSOR_INFO_INIT;

  EXPECT_CODE(wanted, neve_engine_save, engine, &save, &given);
  EXPECT_CODE(wanted, neve_engine_prepare, engine, &save);
  EXPECT_CODE(wanted, neve_engine_count_save, engine);
  EXPECT_CODE(wanted, neve_engine_drain, engine, 0.0);
  EXPECT_CODE(wanted, neve_engine_pin, engine, uint64_t{1}, 1);
  EXPECT_CODE(wanted, neve_engine_steps, engine, &text);
  EXPECT_CODE(wanted, neve_engine_health, engine, &text);
  EXPECT_CODE(wanted, neve_engine_counter, engine, "saves_started_count", &number);
  EXPECT_CODE(wanted, neve_engine_find, engine, nullptr, &other);
  EXPECT_CODE(wanted, neve_engine_restore, engine, &restore, &other);
  EXPECT_CODE(wanted, neve_engine_agree, engine, NEVE_OK, nullptr);
  EXPECT_CODE(wanted, neve_engine_leave, engine, "why");
  EXPECT_CODE(wanted, neve_file_save, "/nowhere/x.safetensors", &save);
  EXPECT_CODE(wanted, neve_file_save_async, "/nowhere/x.safetensors", &save, &given);
  EXPECT_CODE(wanted, neve_ticket_wait, ticket, "done", 0.0);
  EXPECT_CODE(wanted, neve_ticket_poll, ticket, "done", &stage);
  EXPECT_CODE(wanted, neve_ticket_error, ticket);
  EXPECT_CODE(wanted, neve_ticket_describe, ticket, &text);
  EXPECT_CODE(wanted, neve_ticket_fence, ticket, nullptr, nullptr, 0, 0.0);
  EXPECT_EQ(neve_ticket_descriptor(ticket), -1);
  EXPECT_EQ(neve_ticket_step(ticket), UINT64_MAX);
  EXPECT_CODE(wanted, neve_image_describe, image, &text);
  EXPECT_EQ(neve_image_header(image, &bytes), nullptr);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(neve_image_step(image), UINT64_MAX);
  EXPECT_EQ(neve_image_tensor_count(image), 0u);
  EXPECT_EQ(neve_image_is_global(image), 0);
  EXPECT_CODE(wanted, neve_image_read, image, &ranges);
  EXPECT_CODE(wanted, neve_image_tensor_describe, image, 0, &info);
  EXPECT_CODE(wanted, neve_image_tensor_find, image, "w", &index);
  EXPECT_CODE(wanted, neve_image_tensors_read, image, 1, &index, &target, nullptr);
  EXPECT_CODE(wanted, neve_image_tensor_data, image, 0, &data);
  EXPECT_CODE(wanted, neve_image_values, image, &text);
  EXPECT_CODE(wanted, neve_image_blob, image, uint32_t{0}, &text);
  EXPECT_CODE(wanted, neve_image_global, image, nullptr, &other);
  EXPECT_CODE(wanted, neve_image_global_part, image, nullptr, "", &other);
  EXPECT_CODE(wanted, neve_image_boxes_read, image, &boxes);
  EXPECT_CODE(wanted, neve_image_verify, image);
  EXPECT_CODE(wanted, neve_torch_stream_read, stream, target, 1, &bytes);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(given, nullptr);
  EXPECT_EQ(data, nullptr);
}

struct Handles {
  neve_engine* engine;
  neve_state* state;
  neve_ticket* ticket;
  neve_image* image;
  neve_torch_stream* stream;
};

inline neve_torch_stream* MakeStream() {
  neve_torch_object object = NEVE_TORCH_OBJECT_INIT;
  object.pickle = "\x80\x02N.";
  object.pickle_bytes = 4;
  neve_torch_stream* stream = nullptr;
  EXPECT_CODE(NEVE_OK, neve_torch_stream_create, &object, &stream);
  return stream;
}

}  // namespace neve_test

#endif  // NEVE_TESTS_CAPI_MISUSE_FIXTURE_H_
