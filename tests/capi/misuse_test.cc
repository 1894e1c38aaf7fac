// Each kind of misuse of the C API ends in a code and a text, never in a crash: null, destroyed, foreign and made-up handles, structs of
// other versions, states that cannot be, calls after close and in the wrong order.
#include <algorithm>
#include <cstring>

#include "capi/misuse_fixture.h"

namespace neve_test {
namespace {

TEST_F(MisuseTest, NullHandles) {
  EveryCallRefuses(nullptr, nullptr, nullptr, nullptr, nullptr, NEVE_INVALID);
  EXPECT_CODE(NEVE_OK, neve_engine_close, nullptr, 1, 1.0);
}

TEST_F(MisuseTest, NullPlacesForResults) {
  neve_engine* engine = Open("job");
  neve_ticket* ticket = Save(engine, 1);
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "done", 60.0);
  neve_image* image = nullptr;
  ASSERT_CODE(NEVE_OK, neve_engine_find, engine, nullptr, &image);
  size_t index = 0;
  EXPECT_CODE(NEVE_INVALID, neve_engine_steps, engine, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_engine_health, engine, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_engine_counter, engine, nullptr, nullptr);
  EXPECT_CODE(NEVE_NOT_FOUND, neve_engine_counter, engine, "cups_of_tea_count", reinterpret_cast<uint64_t*>(&index));
  EXPECT_CODE(NEVE_INVALID, neve_engine_find, engine, nullptr, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_engine_restore, engine, nullptr, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_ticket_poll, ticket, "done", nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_ticket_describe, ticket, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_describe, image, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_read, image, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_tensor_describe, image, 0, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_tensor_find, image, "w", nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_tensors_read, image, 1, &index, nullptr, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_tensor_data, image, 0, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_values, image, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_blob, image, uint32_t{0}, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_global, image, nullptr, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_image_boxes_read, image, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_place_list, nullptr, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_place_verify, nullptr, -1, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_place_recover, nullptr, nullptr, 1, 0, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_place_gc, nullptr, -1, 1, nullptr);
  EXPECT_CODE(NEVE_INVALID, neve_log_level_set, 9);
  EXPECT_EQ(neve_error_message(nullptr), std::string());
  EXPECT_EQ(neve_string_data(nullptr), std::string());
  neve_reply_add(nullptr, "x", 1);
  neve_image_destroy(&image);
  neve_ticket_destroy(&ticket);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(MisuseTest, DestroyedHandlesAreKnownAsSuch) {
  Handles live{Open("job"), nullptr, nullptr, nullptr, MakeStream()};
  Described described;
  described.Add("x", {1});
  live.state = described.State();
  live.ticket = Save(live.engine, 1);
  ASSERT_CODE(NEVE_OK, neve_ticket_wait, live.ticket, "ram", 60.0);
  ASSERT_CODE(NEVE_OK, neve_engine_find, live.engine, nullptr, &live.image);
  const Handles gone = live;
  neve_ticket_destroy(&live.ticket);
  neve_image_destroy(&live.image);
  neve_torch_stream_destroy(&live.stream);
  neve_state_destroy(&live.state);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &live.engine, 1, 60.0);
  EXPECT_EQ(live.engine, nullptr);
  EveryCallRefuses(gone.engine, gone.state, gone.ticket, gone.image, gone.stream, NEVE_INVALID);
  EXPECT_NE(Call(neve_ticket_wait, static_cast<const neve_ticket*>(gone.ticket), "done", 0.0).text.find("destroyed"), std::string::npos);

  // Again, through copies that nobody nulled; new handles are not the old ones.
  Handles copies = gone;
  neve_ticket_destroy(&copies.ticket);
  neve_image_destroy(&copies.image);
  neve_torch_stream_destroy(&copies.stream);
  neve_state_destroy(&copies.state);
  neve_engine_destroy(&copies.engine);
  EXPECT_EQ(copies.engine, nullptr);
  copies.engine = gone.engine;
  EXPECT_CODE(NEVE_INVALID, neve_engine_close, &copies.engine, 1, 1.0);
  EXPECT_EQ(copies.engine, nullptr);
  neve_engine* again = Open("job");
  EXPECT_NE(again, gone.engine);
  neve_engine_destroy(&again);
}

TEST_F(MisuseTest, HandlesOfAnotherKindAndNoHandlesAtAll) {
  neve_engine* engine = Open("job");
  neve_ticket* ticket = Save(engine, 1);
  void* const e = engine;
  void* const t = ticket;
  EveryCallRefuses(static_cast<neve_engine*>(t), static_cast<neve_state*>(t), static_cast<neve_ticket*>(e), static_cast<neve_image*>(e),
                   static_cast<neve_torch_stream*>(e), NEVE_INVALID);
  int on_stack = 0;
  for (void* made_up : {reinterpret_cast<void*>(1), reinterpret_cast<void*>(16), static_cast<void*>(&on_stack),
                        reinterpret_cast<void*>(UINTPTR_MAX), reinterpret_cast<void*>(UINTPTR_MAX & ~uintptr_t{15})}) {
    EveryCallRefuses(static_cast<neve_engine*>(made_up), static_cast<neve_state*>(made_up), static_cast<neve_ticket*>(made_up),
                     static_cast<neve_image*>(made_up), static_cast<neve_torch_stream*>(made_up), NEVE_INVALID);
  }
  auto* wrong = static_cast<neve_ticket*>(e);
  neve_ticket_destroy(&wrong);   // not the engine's end
  EXPECT_EQ(wrong, nullptr);
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "done", 60.0);
  neve_ticket_destroy(&ticket);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(MisuseTest, StructsOfOtherVersions) {
  neve_engine* engine = Open("job");
  // Shorter than any that was published, or of no size that a struct could have.
  for (size_t size : {size_t{0}, size_t{8}, SIZE_MAX, size_t{1} << 20}) {
    neve_options options = NEVE_OPTIONS_INIT;
    const std::string path = Path("other");
    options.folder = path.c_str();
    options.struct_size = size;
    neve_engine* none = nullptr;
    EXPECT_CODE(NEVE_INVALID, neve_engine_open, &options, &none);
    neve_tensors tensors = NEVE_TENSORS_INIT;
    tensors.struct_size = size;
    neve_state* state = nullptr;
    EXPECT_CODE(NEVE_INVALID, neve_state_create, &tensors, nullptr, 0, 0, &state);
    neve_save_request save = request_;
    save.struct_size = size;
    EXPECT_CODE(NEVE_INVALID, neve_engine_save, engine, &save, nullptr);
    neve_find_request find = NEVE_FIND_REQUEST_INIT;
    find.struct_size = size;
    neve_image* image = nullptr;
    EXPECT_CODE(NEVE_INVALID, neve_engine_find, engine, &find, &image);
    neve_restore_request restore = NEVE_RESTORE_REQUEST_INIT;
    restore.struct_size = size;
    EXPECT_CODE(NEVE_INVALID, neve_engine_restore, engine, &restore, &image);
  }
  // Newer, with what this library does not know left alone, and used.
  struct Newer {
    neve_save_request known;
    uint64_t more[3];
  } newer = {request_, {0, 0, 0}};
  newer.known.struct_size = sizeof newer;
  neve_ticket* ticket = nullptr;
  EXPECT_CODE(NEVE_OK, neve_engine_save, engine, &newer.known, &ticket);
  neve_ticket_destroy(&ticket);
  newer.more[2] = 1;
  const Outcome outcome = Call(neve_engine_save, engine, static_cast<const neve_save_request*>(&newer.known), &ticket);
  EXPECT_EQ(outcome.code, NEVE_UNSUPPORTED);
  EXPECT_NE(outcome.text.find("newer neve.h"), std::string::npos) << outcome.text;
  EXPECT_EQ(ticket, nullptr);
  // What is given back to a program with a larger struct stays within what this library has.
  struct NewerInfo {
    neve_tensor_info known;
    uint64_t more;
  } info = {NEVE_TENSOR_INFO_INIT, 0};
  info.known.struct_size = sizeof info;
  neve_image* image = nullptr;
  ASSERT_CODE(NEVE_OK, neve_engine_find, engine, nullptr, &image);
  EXPECT_CODE(NEVE_OK, neve_image_tensor_describe, image, 0, &info.known);
  EXPECT_EQ(info.known.struct_size, sizeof info);
  EXPECT_EQ(info.known.bytes, 4000u);
  EXPECT_EQ(info.more, 0u);
  neve_image_destroy(&image);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(MisuseTest, StatesThatCannotBe) {
  neve_engine* engine = Open("job");
  const float value[8] = {};
  const void* addresses[] = {value, value + 4};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.addresses = addresses;
  const auto refused = [&](const char* what, Described& described) {
    SCOPED_TRACE(what);
    neve_state* state = nullptr;
    neve_ticket* ticket = nullptr;
    Outcome outcome = Call(neve_state_create, described.Get(), nullptr, size_t{0}, uint32_t{0}, &state);
    if (outcome.code == NEVE_OK) {
      request.state = state;
      outcome = Call(neve_engine_save, engine, static_cast<const neve_save_request*>(&request), &ticket);
    }
    EXPECT_EQ(outcome.code, NEVE_INVALID) << outcome.text;
    EXPECT_EQ(ticket, nullptr);
    neve_state_destroy(&state);
  };
  Described twice, negative, huge, reserved, nameless, unknown;
  twice.Add("a", {2});
  twice.Add("a", {2});
  refused("a name twice", twice);
  negative.Add("a", {-1});
  refused("a negative extent", negative);
  huge.Add("a", {INT64_MAX, INT64_MAX});
  refused("more bytes than there are", huge);
  reserved.Add("__metadata__", {2});
  refused("a reserved name", reserved);
  nameless.Add("\xff\xfe", {2});
  refused("a name that is no text", nameless);
  unknown.Add("a", {2}, 99);
  refused("an unknown dtype", unknown);
  neve_state* state = nullptr;
  EXPECT_CODE(NEVE_INVALID, neve_state_create, Described().Get(), "{\"d\":", size_t{5}, 0, &state);
  EXPECT_CODE(NEVE_INVALID, neve_state_create, Described().Get(), "{\"b\":7}", size_t{7}, 1, &state);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(MisuseTest, NothingAtAllIsAState) {
  neve_engine* engine = Open("job");
  Described none, empty;
  neve_state* states[] = {none.State(), nullptr};
  empty.Add("empty", {0, 7});
  empty.Add("scalar", {});
  states[1] = empty.State();
  const double scalar = 4;
  const void* addresses[] = {nullptr, &scalar};
  float got[2] = {};
  void* targets[] = {nullptr, got};
  for (neve_state*& state : states) {
    neve_save_request request = NEVE_SAVE_REQUEST_INIT;
    request.state = state;
    request.addresses = addresses;
    neve_ticket* ticket = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_save, engine, &request, &ticket);
    EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, nullptr, 60.0);
    neve_ticket_destroy(&ticket);
    neve_restore_request restore = NEVE_RESTORE_REQUEST_INIT;
    restore.state = state;
    restore.targets = targets;
    EXPECT_CODE(NEVE_OK, neve_engine_restore, engine, &restore, nullptr);
    neve_state_destroy(&state);
  }
  EXPECT_EQ(std::memcmp(got, &scalar, 4), 0);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 1, 60.0);
}

TEST_F(MisuseTest, AddressesNeedNotBeAligned) {
  neve_engine* engine = Open("job");
  std::vector<unsigned char> from(4001), to(4003);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7);
  addresses_[0] = from.data() + 1;
  neve_ticket* ticket = Save(engine, 3);
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "done", 60.0);
  neve_ticket_destroy(&ticket);
  void* target = to.data() + 3;
  neve_restore_request restore = NEVE_RESTORE_REQUEST_INIT;
  restore.state = state_;
  restore.targets = &target;
  EXPECT_CODE(NEVE_OK, neve_engine_restore, engine, &restore, nullptr);
  EXPECT_TRUE(std::equal(from.begin() + 1, from.end(), to.begin() + 3));
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(MisuseTest, ADeviceThatIsNotThere) {
  if (Call(neve_devices_describe, nullptr).code != NEVE_INVALID) FAIL();
  neve_string* text = nullptr;
  neve_error* error = nullptr;
  const bool there = neve_devices_describe(&text, &error) == NEVE_OK;
  neve_string_destroy(&text);
  neve_error_destroy(&error);
  Described described;
  described.Add("w", {1000});
  const int32_t devices[] = {4096};
  described.tensors.devices = devices;
  neve_state* state = described.State();
  neve_engine* engine = Open("job");
  neve_save_request request = request_;
  request.state = state;
  neve_ticket* ticket = nullptr;
  // Not this call's fault where there is no driver at all: the ticket says so, and training goes on.
  ASSERT_CODE(NEVE_OK, neve_engine_save, engine, &request, &ticket);
  EXPECT_CODE(there ? NEVE_NOT_FOUND : NEVE_UNAVAILABLE, neve_ticket_wait, ticket, "captured", 60.0);
  EXPECT_CODE(there ? NEVE_NOT_FOUND : NEVE_UNAVAILABLE, neve_ticket_error, ticket);
  neve_ticket_destroy(&ticket);
  neve_state_destroy(&state);
  neve_engine_destroy(&engine);
}

TEST_F(MisuseTest, WhatDoesNotFitIsSaidBeforeAnythingIsWritten) {
  neve_engine* engine = Open("job");
  neve_ticket* ticket = Save(engine, 3);
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "done", 60.0);
  neve_ticket_destroy(&ticket);
  Described described;
  described.Add("w", {1000});
  described.Add("v", {2});
  neve_state* state = described.State();
  std::vector<float> target(1000, -1);
  float other[2] = {-2, -2};
  void* targets[] = {target.data(), other};
  uint8_t restored[] = {9, 9};
  neve_restore_request restore = NEVE_RESTORE_REQUEST_INIT;
  restore.state = state;
  restore.targets = targets;
  restore.restored = restored;
  const Outcome lacking =
      Call(neve_engine_restore, engine, static_cast<const neve_restore_request*>(&restore), static_cast<neve_image**>(nullptr));
  EXPECT_EQ(lacking.code, NEVE_INVALID);
  EXPECT_NE(lacking.text.find("\"v\" is not in it"), std::string::npos) << lacking.text;
  EXPECT_EQ(target[0], -1);
  restore.include = "nothing.*";
  EXPECT_CODE(NEVE_INVALID, neve_engine_restore, engine, &restore, nullptr);
  restore.include = "w\n";
  EXPECT_CODE(NEVE_OK, neve_engine_restore, engine, &restore, nullptr);
  EXPECT_EQ(target[999], 1.5f);
  EXPECT_EQ(restored[0] * 10 + restored[1], 10);
  restore.include = nullptr;
  restore.partial = 1;
  EXPECT_CODE(NEVE_OK, neve_engine_restore, engine, &restore, nullptr);
  EXPECT_EQ(other[0], -2);
  targets[0] = nullptr;
  EXPECT_CODE(NEVE_INVALID, neve_engine_restore, engine, &restore, nullptr);
  restore.targets = nullptr;
  EXPECT_CODE(NEVE_INVALID, neve_engine_restore, engine, &restore, nullptr);
  neve_state_destroy(&state);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
}

TEST_F(MisuseTest, CloseWithSavesInFlight) {
  neve_engine* engine = Open("job");
  std::vector<neve_ticket*> tickets;
  for (uint64_t step = 0; step < 5; ++step) tickets.push_back(Save(engine, step));
  EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 1, 60.0);
  for (neve_ticket*& ticket : tickets) {   // tickets outlive it
    EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "file", 0.0);
    EXPECT_CODE(NEVE_OK, neve_ticket_error, ticket);
    neve_ticket_destroy(&ticket);
  }
  engine = Open("job");
  neve_ticket* ticket = Save(engine, 9);
  neve_ticket_destroy(&ticket);
  neve_engine_destroy(&engine);   // finishes it all the same
  neve_string* text = nullptr;
  EXPECT_CODE(NEVE_OK, neve_place_verify, Path("job").c_str(), -1, &text);
  EXPECT_NE(std::string(neve_string_data(text)).find("\"ok\":true"), std::string::npos);
  neve_string_destroy(&text);
}

TEST_F(MisuseTest, InAnyOrder) {
  neve_engine* engine = Open("job");
  EXPECT_CODE(NEVE_OK, neve_engine_agree, engine, NEVE_OK, nullptr);   // alone there is nobody to wait for
  EXPECT_CODE(NEVE_DATA_LOSS, neve_engine_agree, engine, NEVE_DATA_LOSS, "my own disk");
  EXPECT_CODE(NEVE_INVALID, neve_engine_agree, engine, 77, "no code");
  EXPECT_CODE(NEVE_OK, neve_engine_leave, engine, nullptr);
  EXPECT_CODE(NEVE_OK, neve_engine_drain, engine, 0.0);
  EXPECT_CODE(NEVE_NOT_FOUND, neve_engine_pin, engine, uint64_t{3}, 1);
  EXPECT_CODE(NEVE_OK, neve_engine_prepare, engine, &request_);
  EXPECT_CODE(NEVE_OK, neve_engine_prepare, engine, &request_);
  request_.step = 1'000'000'000'000;
  EXPECT_CODE(NEVE_INVALID, neve_engine_save, engine, &request_, nullptr);
  neve_ticket* ticket = Save(engine, 1);
  EXPECT_CODE(NEVE_OK, neve_ticket_fence, ticket, nullptr, nullptr, 0, 0.0);
  EXPECT_CODE(NEVE_INVALID, neve_ticket_wait, ticket, "peer", 0.0);
  neve_stage_state stage = NEVE_STAGE_PENDING;
  EXPECT_CODE(NEVE_INVALID, neve_ticket_poll, ticket, "tape", &stage);
  EXPECT_CODE(NEVE_OK, neve_ticket_poll, ticket, "captured", &stage);
  EXPECT_EQ(stage, NEVE_STAGE_REACHED);
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, ticket, "complete:file", 60.0);
  EXPECT_CODE(NEVE_OK, neve_ticket_poll, ticket, "complete:file", &stage);
  EXPECT_EQ(stage, NEVE_STAGE_REACHED);
  neve_engine* second = Open("job");   // another life of the same job, beside the first
  neve_engine_destroy(&engine);
  EXPECT_EQ(neve_ticket_step(ticket), 1u);
  neve_ticket_destroy(&ticket);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &second, 0, 60.0);
}

TEST_F(MisuseTest, FunctionsForMemory) {
  struct Counts {
    int taken = 0, released = 0;
    bool empty = false, crooked = false;
  } counts;
  const auto take = [](size_t bytes, size_t alignment, void* context) -> void* {
    auto& counted = *static_cast<Counts*>(context);
    if (counted.empty) return nullptr;
    ++counted.taken;
    auto* memory = static_cast<char*>(::aligned_alloc(alignment, (bytes + 2 * alignment) / alignment * alignment));
    return memory + (counted.crooked ? 1 : 0);
  };
  const auto release = [](void* memory, size_t, void* context) {
    auto& counted = *static_cast<Counts*>(context);
    ++counted.released;
    ::free(static_cast<char*>(memory) - (counted.crooked ? 1 : 0));
  };
  EXPECT_CODE(NEVE_INVALID, neve_memory_set, static_cast<neve_allocate_fn>(take), nullptr, nullptr);
  const std::string path = Path("w.safetensors");
  ASSERT_CODE(NEVE_OK, neve_file_save, path.c_str(), &request_);
  neve_image* image = nullptr;
  ASSERT_CODE(NEVE_OK, neve_image_open, path.c_str(), &image);
  EXPECT_CODE(NEVE_OK, neve_memory_set, static_cast<neve_allocate_fn>(take), static_cast<neve_release_fn>(release), &counts);
  const void *data = nullptr, *again = nullptr;
  counts.empty = true;
  EXPECT_CODE(NEVE_EXHAUSTED, neve_image_tensor_data, image, 0, &data);
  counts.empty = false;
  counts.crooked = true;
  EXPECT_CODE(NEVE_INVALID, neve_image_tensor_data, image, 0, &data);
  EXPECT_EQ(data, nullptr);
  counts.crooked = false;
  EXPECT_CODE(NEVE_OK, neve_image_tensor_data, image, 0, &data);
  EXPECT_CODE(NEVE_OK, neve_image_tensor_data, image, 0, &again);
  EXPECT_EQ(data, again);
  EXPECT_EQ(static_cast<const float*>(data)[999], 1.5f);
  EXPECT_CODE(NEVE_INVALID, neve_image_tensor_data, image, 1, &data);
  EXPECT_CODE(NEVE_OK, neve_memory_set, nullptr, nullptr, nullptr);   // what was taken goes back to where it came from
  neve_image_destroy(&image);
  EXPECT_EQ(counts.taken, 2);
  EXPECT_EQ(counts.released, 2);
}

}  // namespace
}  // namespace neve_test
