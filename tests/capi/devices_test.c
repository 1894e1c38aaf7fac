/* Tensors on a device through the C API: a simulated one, which takes plain memory for the device's. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capi/check.h"
#include "neve/neve.h"

enum { kFloats = 100000 };
static float away[kFloats], buffer[7], here[3];

static neve_state* describe(void) {
  static const uint32_t name_bytes[] = {4, 6, 4};
  static const uint8_t dtypes[] = {NEVE_F32, NEVE_F32, NEVE_F32}, ranks[] = {1, 1, 1};
  static const int64_t extents[] = {kFloats, 7, 3};
  static const int32_t devices[] = {0, 0, -1};
  neve_tensors tensors = NEVE_TENSORS_INIT;
  tensors.count = 3;
  tensors.names = "awaybufferhere";
  tensors.name_bytes = name_bytes;
  tensors.dtypes = dtypes;
  tensors.ranks = ranks;
  tensors.extents = extents;
  tensors.devices = devices;
  neve_state* state = NULL;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  return state;
}

static void set(float value) {
  for (int i = 0; i < kFloats; ++i) away[i] = value + (float)i;
  for (int i = 0; i < 7; ++i) buffer[i] = -value;
  for (int i = 0; i < 3; ++i) here[i] = value / 2;
}

static void a_fenced_save_comes_back(const char* folder) {
  neve_options options = NEVE_OPTIONS_INIT;
  options.folder = folder;
  neve_engine* engine = NULL;
  OK(neve_engine_open(&options, &engine, &error));
  neve_state* state = describe();
  const void* addresses[] = {away, buffer, here};
  const int32_t stream_devices[] = {0};
  void* const streams[] = {NULL};
  const uint8_t fenced[] = {1, 0, 1};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.state = state;
  request.addresses = addresses;
  request.stream_devices = stream_devices;
  request.streams = streams;
  request.stream_count = 1;
  request.fence = 1;
  request.fenced = fenced;
  OK(neve_engine_prepare(engine, &request, &error));

  set(10);
  neve_ticket* ticket = NULL;
  OK(neve_engine_save(engine, &request, &ticket, &error));
  here[0] = -1;   /* always allowed */
  OK(neve_ticket_fence(ticket, stream_devices, streams, 1, 60, &error));
  OK(neve_ticket_fence(ticket, NULL, NULL, 0, 60, &error));   /* twice, and on the default stream */
  OK(neve_ticket_wait(ticket, "captured", 60, &error));
  set(20);
  OK(neve_ticket_wait(ticket, "done", 60, &error));
  OK(neve_ticket_fence(ticket, NULL, NULL, 0, 0, &error));
  FAILS(NEVE_INVALID, neve_ticket_fence(ticket, NULL, NULL, 1, 0, &error));
  FAILS(NEVE_INVALID, neve_ticket_fence(NULL, NULL, NULL, 0, 0, &error));
  neve_ticket_destroy(&ticket);

  neve_image* image = NULL;
  OK(neve_engine_find(engine, NULL, &image, &error));
  const size_t indexes[] = {0, 1, 2};
  static float read_away[kFloats], read_buffer[7], read_here[3];
  void* const targets[] = {read_away, read_buffer, read_here};
  OK(neve_image_tensors_read(image, 3, indexes, targets, NULL, &error));
  CHECK(read_away[0] == 10 && read_away[kFloats - 1] == 10 + kFloats - 1 && read_buffer[6] == -10);
  CHECK(read_here[0] == 5 && read_here[2] == 5);
  neve_image_destroy(&image);

  request.streams = NULL;   /* counted, and not there */
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));
  request.stream_count = 0;
  char path[5000];
  snprintf(path, sizeof path, "%s/w.safetensors", folder);
  FAILS(NEVE_UNSUPPORTED, neve_file_save(path, &request, &error));
  neve_state_destroy(&state);
  OK(neve_engine_close(&engine, 1, 60, &error));
}

/* What a program gives that was built before these fields were there. */
static void structs_of_the_first_form_are_taken(const char* folder) {
  static const uint32_t name_bytes[] = {1};
  static const uint8_t dtypes[] = {NEVE_F32}, ranks[] = {1};
  static const int64_t extents[] = {3};
  neve_tensors tensors = NEVE_TENSORS_INIT;
  tensors.struct_size = offsetof(neve_tensors, devices);
  tensors.count = 1;
  tensors.names = "w";
  tensors.name_bytes = name_bytes;
  tensors.dtypes = dtypes;
  tensors.ranks = ranks;
  tensors.extents = extents;
  tensors.devices = (const int32_t*)1;   /* not looked at */
  neve_state* state = NULL;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  const void* addresses[] = {here};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.struct_size = offsetof(neve_save_request, stream_devices);
  request.state = state;
  request.addresses = addresses;
  request.stream_count = 5;
  char path[5000];
  snprintf(path, sizeof path, "%s/first.safetensors", folder);
  OK(neve_file_save(path, &request, &error));
  request.struct_size = 8;
  FAILS(NEVE_INVALID, neve_file_save(path, &request, &error));
  neve_state_destroy(&state);
}

int main(void) {
  char folder[] = "/tmp/neve-devices-XXXXXX";
  if (mkdtemp(folder) == NULL) return 2;
  char ram[64];
  snprintf(ram, sizeof ram, "%s/ram", folder);
  setenv("NEVE_RAM_DIR", ram, 1);
  setenv("NEVE_DEVICE", "simulated", 1);
  neve_string* text = NULL;
  OK(neve_devices_describe(&text, &error));
  CHECK(text != NULL && strcmp(neve_string_data(text), "simulated:0") == 0);
  neve_string_destroy(&text);
  FAILS(NEVE_INVALID, neve_devices_describe(NULL, &error));
  char job[64];
  snprintf(job, sizeof job, "%s/job", folder);
  a_fenced_save_comes_back(job);
  structs_of_the_first_form_are_taken(folder);
  char command[64];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  if (system(command) != 0) return 2;
  printf("%s: %d failures\n", failures == 0 ? "passed" : "failed", failures);
  return failures == 0 ? 0 : 1;
}
