/* What the training thread pays for a save of very many small tensors of a device, from C: the first one, with the description of the
 * structure, and a steady one. The copies themselves are the device's, here a simulated one, and run while training goes on.
 * Usage: NEVE_DEVICE=simulated:RATE NEVE_RAM_DIR=FOLDER neve_tiny_save TENSORS FLOATS SAVES; prints one line of JSON, in milliseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "neve/neve.h"

static void check(neve_code code, neve_error* error) {
  if (code == NEVE_OK) return;
  fprintf(stderr, "%s\n", neve_error_message(error));
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void* made(size_t bytes) {
  void* const memory = calloc(1, bytes);
  if (memory == NULL) exit(1);
  return memory;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s TENSORS FLOATS SAVES\n", argv[0]);
    return 2;
  }
  const size_t count = (size_t)atoll(argv[1]), floats = (size_t)atoll(argv[2]), saves = (size_t)atoll(argv[3]);
  enum { kNameBytes = 40 };   /* at most */
  float* const memory = made(count * floats * sizeof(float));
  char* const names = made(count * kNameBytes + 1);
  uint32_t* const name_bytes = made(count * sizeof *name_bytes);
  uint8_t *const dtypes = made(count), *const ranks = made(count), *const fenced = made(count);
  int64_t* const extents = made(count * sizeof *extents);
  int32_t* const devices = made(count * sizeof *devices);
  const void** const addresses = made(count * sizeof *addresses);
  size_t named = 0;
  for (size_t i = 0; i < count; ++i) {
    name_bytes[i] = (uint32_t)sprintf(names + named, "layers.%zu.weight", i);
    named += name_bytes[i];
    dtypes[i] = NEVE_F32;
    ranks[i] = 1;
    extents[i] = (int64_t)floats;
    fenced[i] = 1;
    addresses[i] = memory + i * floats;
  }

  neve_error* error = NULL;
  neve_engine* engine = NULL;
  neve_options options = NEVE_OPTIONS_INIT;
  const char* tiers[] = {"ram:?slots=2"};
  options.folder = "bench-tiny";
  options.tiers = tiers;
  options.tier_count = 1;
  check(neve_engine_open(&options, &engine, &error), error);

  printf("{\"first\": ");
  const int32_t stream_devices[] = {0};
  void* const streams[] = {NULL};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  neve_state* state = NULL;
  for (size_t step = 0; step <= saves; ++step) {
    neve_ticket* ticket = NULL;
    const double begin = now();
    if (step == 0) {
      neve_tensors tensors = NEVE_TENSORS_INIT;
      tensors.count = count;
      tensors.names = names;
      tensors.name_bytes = name_bytes;
      tensors.dtypes = dtypes;
      tensors.ranks = ranks;
      tensors.extents = extents;
      tensors.devices = devices;
      check(neve_state_create(&tensors, NULL, 0, 0, &state, &error), error);
      request.state = state;
      request.addresses = addresses;
      request.stream_devices = stream_devices;
      request.streams = streams;
      request.stream_count = 1;
      request.fence = 1;
      request.fenced = fenced;
    }
    request.step = step;
    check(neve_engine_save(engine, &request, &ticket, &error), error);
    check(neve_ticket_fence(ticket, stream_devices, streams, 1, 60, &error), error);
    const double milliseconds = now() - begin;
    check(neve_ticket_wait(ticket, "ram", 60, &error), error);
    neve_ticket_destroy(&ticket);
    if (step == 0) {
      printf("%.3f, \"steady\": [", milliseconds);
    } else {
      printf("%s%.3f", step == 1 ? "" : ", ", milliseconds);
    }
  }
  printf("]}\n");
  neve_state_destroy(&state);
  check(neve_engine_close(&engine, 1, 60, &error), error);
  free(memory), free(names), free(name_bytes), free(dtypes), free(ranks), free(fenced), free(extents), free(devices), free(addresses);
  return 0;
}
