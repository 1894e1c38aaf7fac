/* Saves a small state, opens the job again and reads it back. Usage: consumer FOLDER */
#include <neve/neve.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 300
#define COLUMNS 70

static void Check(neve_code code, neve_error* error, const char* what) {
  if (code == NEVE_OK) return;
  fprintf(stderr, "%s: code %d: %s\n", what, (int)code, error ? neve_error_message(error) : "?");
  exit(1);
}

static neve_engine* Open(const char* folder) {
  neve_options options = NEVE_OPTIONS_INIT;
  neve_engine* engine = NULL;
  neve_error* error = NULL;
  options.folder = folder;
  Check(neve_engine_open(&options, &engine, &error), error, "open");
  return engine;
}

static void Save(const char* folder, const float* weight, const int64_t* count) {
  static const char names[] = "weightcount";
  static const uint32_t name_bytes[] = {6, 5};
  static const uint8_t dtypes[] = {NEVE_F32, NEVE_I64};
  static const uint8_t ranks[] = {2, 0};
  static const int64_t extents[] = {ROWS, COLUMNS};
  const void* addresses[] = {weight, count};
  neve_tensors tensors = NEVE_TENSORS_INIT;
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  neve_state* state = NULL;
  neve_ticket* ticket = NULL;
  neve_error* error = NULL;
  neve_engine* engine = Open(folder);

  tensors.count = 2;
  tensors.names = names;
  tensors.name_bytes = name_bytes;
  tensors.dtypes = dtypes;
  tensors.ranks = ranks;
  tensors.extents = extents;
  Check(neve_state_create(&tensors, NULL, 0, 0, &state, &error), error, "state");
  request.step = 7;
  request.state = state;
  request.addresses = addresses;
  Check(neve_engine_save(engine, &request, &ticket, &error), error, "save");
  Check(neve_ticket_wait(ticket, "file", 60.0, &error), error, "wait");
  neve_ticket_destroy(&ticket);
  neve_state_destroy(&state);
  Check(neve_engine_close(&engine, 1, 60.0, &error), error, "close");
}

/* Offsets of the two tensors' data come from the header; a flat image of two tensors is easy to look through by hand. */
static uint64_t DataOffset(const char* header, size_t header_bytes, const char* name) {
  char key[32];
  const char* at;
  const char* field;
  snprintf(key, sizeof key, "\"%s\":{", name);
  at = strstr(header + 8, key);
  field = at ? strstr(at, "\"data_offsets\":[") : NULL;
  if (field == NULL) {
    fprintf(stderr, "no tensor %s in the header\n", name);
    exit(1);
  }
  return header_bytes + strtoull(field + strlen("\"data_offsets\":["), NULL, 10);
}

static void Restore(const char* folder, float* weight, int64_t* count) {
  neve_find_request find = NEVE_FIND_REQUEST_INIT;
  neve_ranges ranges = NEVE_RANGES_INIT;
  neve_image* image = NULL;
  neve_error* error = NULL;
  size_t header_bytes = 0;
  char* header;
  uint64_t offsets[2];
  const uint64_t bytes[] = {ROWS * COLUMNS * sizeof(float), sizeof(int64_t)};
  void* targets[2];
  neve_engine* engine = Open(folder);

  Check(neve_engine_find(engine, &find, &image, &error), error, "find");
  header = malloc(1);
  {
    const void* data = neve_image_header(image, &header_bytes);
    header = realloc(header, header_bytes + 1);
    memcpy(header, data, header_bytes);
    header[header_bytes] = '\0';
  }
  offsets[0] = DataOffset(header, header_bytes, "weight");
  offsets[1] = DataOffset(header, header_bytes, "count");
  targets[0] = weight;
  targets[1] = count;
  ranges.count = 2;
  ranges.offsets = offsets;
  ranges.bytes = bytes;
  ranges.targets = targets;
  Check(neve_image_read(image, &ranges, &error), error, "read");
  free(header);
  neve_image_destroy(&image);
  Check(neve_engine_close(&engine, 0, 60.0, &error), error, "close");
}

int main(int argc, char** argv) {
  static float saved[ROWS * COLUMNS], loaded[ROWS * COLUMNS];
  int64_t saved_count = 12345678901, loaded_count = 0;
  size_t i;
  if (argc != 2) return 2;
  for (i = 0; i < ROWS * COLUMNS; ++i) saved[i] = (float)i * 0.5f;
  Save(argv[1], saved, &saved_count);
  Restore(argv[1], loaded, &loaded_count);
  if (memcmp(saved, loaded, sizeof saved) != 0 || saved_count != loaded_count) {
    fprintf(stderr, "what came back differs\n");
    return 1;
  }
  printf("neve %s: saved and restored\n", neve_version());
  return 0;
}
