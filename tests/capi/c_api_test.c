/* The C API as a C program uses it: save, wait, list, restore, single files, and each kind of misuse. */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capi/check.h"
#include "neve/neve.h"

enum { kRows = 300, kColumns = 1000 };
static float weight[kRows * kColumns];
static double bias[kColumns];
static int64_t transposed[4 * 6];   /* seen as [6, 4] with strides {1, 6} */

static void fill(float value) {
  for (int i = 0; i < kRows * kColumns; ++i) weight[i] = value + (float)i;
  for (int i = 0; i < kColumns; ++i) bias[i] = (double)value * i;
  for (int i = 0; i < 24; ++i) transposed[i] = (int64_t)value * 100 + i;
}

static int holds(float value) {
  for (int i = 0; i < kRows * kColumns; ++i)
    if (weight[i] != value + (float)i) return 0;
  for (int i = 0; i < kColumns; ++i)
    if (bias[i] != (double)value * i) return 0;
  for (int i = 0; i < 24; ++i)
    if (transposed[i] != (int64_t)value * 100 + i) return 0;
  return 1;
}

static neve_state* describe(void) {
  static const char names[] = "weightbiastransposed";
  static const uint32_t name_bytes[] = {6, 4, 10};
  static const uint8_t dtypes[] = {NEVE_F32, NEVE_F64, NEVE_I64};
  static const uint8_t ranks[] = {2, 1, 2};
  static const int64_t extents[] = {kRows, kColumns, kColumns, 6, 4};
  static const int64_t strides[] = {kColumns, 1, 1, 1, 6};
  neve_tensors tensors = NEVE_TENSORS_INIT;
  tensors.count = 3;
  tensors.names = names;
  tensors.name_bytes = name_bytes;
  tensors.dtypes = dtypes;
  tensors.ranks = ranks;
  tensors.extents = extents;
  tensors.strides = strides;
  neve_state* state = NULL;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  return state;
}

/* data_offsets[0] of a tensor, from the header's text. */
static uint64_t offset_of(const neve_image* image, const char* name) {
  size_t bytes = 0;
  const char* header = neve_image_header(image, &bytes);
  char* text = malloc(bytes - 8 + 1);
  memcpy(text, header + 8, bytes - 8);
  text[bytes - 8] = '\0';
  char key[64];
  snprintf(key, sizeof key, "\"%s\":{", name);
  const char* entry = strstr(text, key);
  const char* offsets = entry == NULL ? NULL : strstr(entry, "\"data_offsets\":[");
  const uint64_t offset = offsets == NULL ? 0 : bytes + strtoull(offsets + 16, NULL, 10);
  CHECK(offsets != NULL);
  free(text);
  return offset;
}

static void restore(neve_image* image) {
  const uint64_t offsets[] = {offset_of(image, "weight"), offset_of(image, "bias"), offset_of(image, "transposed")};
  const uint64_t bytes[] = {sizeof weight, sizeof bias, sizeof transposed};
  void* const targets[] = {weight, bias, transposed};
  const int8_t ranks[] = {-1, -1, 2};
  const int64_t extents[] = {6, 4};
  const int64_t strides[] = {1, 6};
  const uint64_t item_bytes[] = {4, 8, 8};
  uint8_t written[3] = {0, 0, 0};
  neve_ranges ranges = NEVE_RANGES_INIT;
  ranges.count = 3;
  ranges.offsets = offsets;
  ranges.bytes = bytes;
  ranges.targets = targets;
  ranges.ranks = ranks;
  ranges.extents = extents;
  ranges.strides = strides;
  ranges.item_bytes = item_bytes;
  ranges.written = written;
  memset(weight, 0, sizeof weight);
  memset(bias, 0, sizeof bias);
  memset(transposed, 0, sizeof transposed);
  OK(neve_image_read(image, &ranges, &error));
  CHECK(written[0] == 1 && written[1] == 1 && written[2] == 1);
}

/* The same by the names of the tensors, and each kind of misuse. */
static void restore_by_name(neve_image* image) {
  size_t indexes[3], count = neve_image_tensor_count(image);
  void* const targets[] = {weight, bias, transposed};
  const int64_t turned[] = {1, 6}, shared[] = {0, 1};
  const int64_t* const strides[] = {NULL, NULL, turned};
  const int64_t* const bad_strides[] = {NULL, NULL, shared};
  neve_tensor_info info = NEVE_TENSOR_INFO_INIT, wrong = NEVE_TENSOR_INFO_INIT;
  CHECK(count == 3);
  OK(neve_image_tensor_find(image, "weight", &indexes[0], &error));
  OK(neve_image_tensor_find(image, "bias", &indexes[1], &error));
  OK(neve_image_tensor_find(image, "transposed", &indexes[2], &error));
  OK(neve_image_tensor_describe(image, indexes[2], &info, &error));
  CHECK(info.name_bytes == 10 && memcmp(info.name, "transposed", 10) == 0 && info.dtype == NEVE_I64 && info.rank == 2);
  CHECK(info.extents[0] == 6 && info.extents[1] == 4 && info.strides[0] == 1 && info.strides[1] == 6 && info.bytes == 192);
  memset(weight, 0, sizeof weight);
  memset(bias, 0, sizeof bias);
  memset(transposed, 0, sizeof transposed);
  OK(neve_image_tensors_read(image, 3, indexes, targets, strides, &error));
  CHECK(holds(3));
  int64_t row_major[24];
  void* const one[] = {row_major};
  OK(neve_image_tensors_read(image, 1, &indexes[2], one, NULL, &error));
  for (int i = 0; i < 24; ++i) CHECK(row_major[i] == transposed[i / 4 + i % 4 * 6]);

  CHECK(neve_image_tensor_count(NULL) == 0);
  wrong.struct_size = 4;
  FAILS(NEVE_INVALID, neve_image_tensor_describe(image, 0, &wrong, &error));
  FAILS(NEVE_INVALID, neve_image_tensor_describe(image, count, &info, &error));
  FAILS(NEVE_INVALID, neve_image_tensor_describe(image, 0, NULL, &error));
  FAILS(NEVE_NOT_FOUND, neve_image_tensor_find(image, "wait", &indexes[0], &error));
  FAILS(NEVE_INVALID, neve_image_tensor_find(image, NULL, &indexes[0], &error));
  FAILS(NEVE_INVALID, neve_image_tensors_read(image, 1, &count, one, NULL, &error));
  FAILS(NEVE_INVALID, neve_image_tensors_read(image, 3, indexes, targets, bad_strides, &error));
  FAILS(NEVE_INVALID, neve_image_tensors_read(image, 1, indexes, &(void*){NULL}, NULL, &error));
  FAILS(NEVE_INVALID, neve_image_tensors_read(image, 1, NULL, one, NULL, &error));
  OK(neve_image_tensors_read(image, 0, NULL, NULL, NULL, &error));
}

/* The same in one call, by what the state says. */
static void restore_in_one_call(neve_engine* engine, const neve_state* state) {
  void* const targets[] = {weight, bias, transposed};
  uint8_t restored[3] = {9, 9, 9};
  neve_restore_request request = NEVE_RESTORE_REQUEST_INIT;
  neve_image* image = NULL;
  neve_string* text = NULL;
  request.state = state;
  request.targets = targets;
  request.restored = restored;
  fill(8);
  OK(neve_engine_restore(engine, &request, &image, &error));
  CHECK(holds(3) && restored[0] == 1 && restored[2] == 1 && neve_image_step(image) == 41);
  OK(neve_image_describe(image, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"sources\":{\"file\":0,\"ram\":") != NULL);   /* the bytes by tier: the nearest */
  neve_string_destroy(&text);
  neve_image_destroy(&image);
  fill(8);
  request.include = "b*\n";
  request.atomic = 1;
  request.step = 41;
  OK(neve_engine_restore(engine, &request, NULL, &error));
  CHECK(bias[10] == 30 && weight[0] == 8 && restored[0] == 0 && restored[1] == 1);
  request.step = 40;
  FAILS(NEVE_NOT_FOUND, neve_engine_restore(engine, &request, &image, &error));
  CHECK(image == NULL);
}

/* A leaf of any length: a blob of a state with a tree. */
static void blobs(const char* folder) {
  static const char tree[] = "{\"b\":0}", payload[] = "ytwo\0parts";
  neve_tensors none = NEVE_TENSORS_INIT;
  neve_state* state = NULL;
  OK(neve_state_create(&none, tree, sizeof tree - 1, 1, &state, &error));
  const void* const payloads[] = {payload};
  const size_t bytes[] = {sizeof payload - 1};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.state = state;
  request.blobs = payloads;
  request.blob_bytes = bytes;
  char path[4096];
  snprintf(path, sizeof path, "%s/blob.safetensors", folder);
  OK(neve_file_save(path, &request, &error));
  neve_image* image = NULL;
  neve_string* text = NULL;
  OK(neve_image_open(path, &image, &error));
  OK(neve_image_blob(image, 0, &text, &error));
  CHECK(neve_string_size(text) == sizeof payload - 1 && memcmp(neve_string_data(text), payload, sizeof payload - 1) == 0);
  neve_string_destroy(&text);
  FAILS(NEVE_NOT_FOUND, neve_image_blob(image, 1, &text, &error));
  neve_image_destroy(&image);
  neve_state_destroy(&state);
}

/* What the command does, of the job that save_and_restore left. */
static void places(const char* folder, const char* job) {
  neve_string* text = NULL;
  OK(neve_place_list(job, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"step\":41") != NULL && strstr(neve_string_data(text), "\"pinned\":true") != NULL);
  neve_string_destroy(&text);
  OK(neve_place_verify(job, 41, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"ok\":true") != NULL && strstr(neve_string_data(text), "\"problems\":[]") != NULL);
  neve_string_destroy(&text);
  OK(neve_place_gc(job, 1, 1, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"dry_run\":true") != NULL);
  neve_string_destroy(&text);
  OK(neve_place_recover("ram:", NULL, 1, 0, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"items\":[") != NULL);
  neve_string_destroy(&text);
  OK(neve_place_gc(job, -1, 0, NULL, &error));   /* the document may be left out */
  char path[8192];
  snprintf(path, sizeof path, "%s/nowhere", folder);
  FAILS(NEVE_UNAVAILABLE, neve_place_list(path, &text, &error));
  FAILS(NEVE_UNAVAILABLE, neve_place_verify(path, -1, &text, &error));
  CHECK(text == NULL);

  /* One byte of the image differs from its digest: code and document say so. */
  snprintf(path, sizeof path,
           "f=$(ls '%s'/step-*/shard-*.safetensors) && printf X | dd of=\"$f\" bs=1 seek=100000 conv=notrunc 2>/dev/null", job);
  CHECK(system(path) == 0);
  FAILS(NEVE_DATA_LOSS, neve_place_verify(job, -1, &text, &error));
  CHECK(text != NULL && strstr(neve_string_data(text), "\"ok\":false") != NULL);
  neve_string_destroy(&text);
  OK(neve_place_list(job, NULL, &error));
}

static void save_and_restore(const char* folder) {
  neve_options options = NEVE_OPTIONS_INIT;
  options.folder = folder;
  neve_engine* engine = NULL;
  OK(neve_engine_open(&options, &engine, &error));
  FAILS(NEVE_NOT_FOUND, neve_engine_find(engine, NULL, &(neve_image*){NULL}, &error));

  neve_state* state = describe();
  const void* const addresses[] = {weight, bias, transposed};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.step = 41;
  request.state = state;
  request.addresses = addresses;
  request.values = "i41;";
  request.values_bytes = 4;
  request.tags_json = "{\"loss\":0.5,\"good\":true,\"n\":3,\"who\":\"c\"}";
  OK(neve_engine_prepare(engine, &request, &error));
  fill(3);
  neve_ticket* ticket = NULL;
  OK(neve_engine_save(engine, &request, &ticket, &error));
  fill(99);
  struct pollfd poll_for = {neve_ticket_descriptor(ticket), POLLIN, 0};
  CHECK(poll(&poll_for, 1, 30000) == 1);
  OK(neve_ticket_wait(ticket, "ram", 60, &error));
  OK(neve_ticket_wait(ticket, "file", 60, &error));
  OK(neve_ticket_wait(ticket, NULL, 60, &error));
  FAILS(NEVE_INVALID, neve_ticket_wait(ticket, "peer", 0, &error));
  neve_stage_state stage = NEVE_STAGE_PENDING;
  OK(neve_ticket_poll(ticket, NULL, &stage, &error));
  CHECK(stage == NEVE_STAGE_REACHED);
  OK(neve_ticket_error(ticket, &error));
  CHECK(neve_ticket_step(ticket) == 41);
  uint64_t saves = 0;
  OK(neve_engine_counter(engine, "saves_started_count", &saves, &error));
  CHECK(saves == 1);
  neve_string* text = NULL;
  OK(neve_ticket_describe(ticket, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"file\":\"reached\"") != NULL);
  CHECK(strlen(neve_string_data(text)) == neve_string_size(text));
  neve_string_destroy(&text);
  neve_ticket_destroy(&ticket);

  OK(neve_engine_steps(engine, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"step\":41") != NULL);
  CHECK(strstr(neve_string_data(text), "\"loss\":0.5") != NULL);
  neve_string_destroy(&text);
  OK(neve_engine_health(engine, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"file_commits_count\":1") != NULL);
  neve_string_destroy(&text);

  neve_image* image = NULL;
  OK(neve_engine_find(engine, NULL, &image, &error));
  restore(image);
  CHECK(holds(3));
  restore_by_name(image);
  CHECK(neve_image_step(image) == 41);
  OK(neve_image_values(image, &text, &error));
  CHECK(strcmp(neve_string_data(text), "i41;") == 0);
  neve_string_destroy(&text);
  FAILS(NEVE_NOT_FOUND, neve_image_blob(image, 0, &text, &error));
  const void* data = NULL;
  size_t transposed_index = 0;
  OK(neve_image_tensor_find(image, "transposed", &transposed_index, &error));
  OK(neve_image_tensor_data(image, transposed_index, &data, &error));   /* row-major, whatever its strides were */
  for (int i = 0; i < 24; ++i) CHECK(((const int64_t*)data)[i] == transposed[i / 4 + i % 4 * 6]);
  OK(neve_image_verify(image, &error));
  OK(neve_image_describe(image, &text, &error));
  CHECK(strstr(neve_string_data(text), "\"has_digests\":true") != NULL);
  neve_string_destroy(&text);
  neve_find_request find = NEVE_FIND_REQUEST_INIT;
  find.step = 7;
  FAILS(NEVE_NOT_FOUND, neve_engine_find(engine, &find, &(neve_image*){NULL}, &error));
  restore_in_one_call(engine, state);
  OK(neve_engine_pin(engine, 41, 1, &error));
  FAILS(NEVE_NOT_FOUND, neve_engine_pin(engine, 42, 1, &error));
  OK(neve_engine_drain(engine, 30, &error));
  OK(neve_engine_close(&engine, 1, 60, &error));
  CHECK(engine == NULL);

  /* An image outlives its engine. */
  restore(image);
  CHECK(holds(3));
  neve_image_destroy(&image);
  CHECK(image == NULL);
  neve_state_destroy(&state);
}

static void single_files(const char* folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/w.safetensors", folder);
  neve_state* state = describe();
  const void* const addresses[] = {weight, bias, transposed};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.state = state;
  request.addresses = addresses;
  fill(5);
  OK(neve_file_save(path, &request, &error));
  neve_ticket* ticket = NULL;
  fill(6);
  OK(neve_file_save_async(path, &request, &ticket, &error));
  fill(7);
  OK(neve_ticket_wait(ticket, "done", 60, &error));
  neve_ticket_destroy(&ticket);
  neve_image* image = NULL;
  OK(neve_image_open(path, &image, &error));
  restore(image);
  CHECK(holds(6));
  neve_image_destroy(&image);
  snprintf(path, sizeof path, "%s/nowhere/w.safetensors", folder);
  FAILS(NEVE_NOT_FOUND, neve_file_save(path, &request, &error));
  FAILS(NEVE_NOT_FOUND, neve_image_open(path, &image, &error));
  neve_state_destroy(&state);
}

static void torch_files(const char* folder) {
  char path[4096], asynchronous[4096];
  snprintf(path, sizeof path, "%s/x.pt", folder);
  snprintf(asynchronous, sizeof asynchronous, "%s/archive.pt", folder);
  fill(5);
  const void* const storages[] = {weight, bias};
  const uint64_t bytes[] = {sizeof weight, sizeof bias};
  neve_torch_object object = NEVE_TORCH_OBJECT_INIT;
  object.pickle = "\x80\x02N.";   /* None: what is in it is the caller's affair */
  object.pickle_bytes = 4;
  object.storages = storages;
  object.storage_bytes = bytes;
  object.storage_count = 2;
  OK(neve_torch_file_save(path, &object, &error));
  neve_ticket* ticket = NULL;
  OK(neve_torch_file_save_async(asynchronous, &object, &ticket, &error));
  OK(neve_ticket_wait(ticket, "done", 60, &error));
  neve_ticket_destroy(&ticket);

  /* The stream is the file that was saved under the name whose root is "archive". */
  static char made[sizeof weight + sizeof bias + 4096], saved[sizeof made];
  FILE* file = fopen(asynchronous, "rb");
  CHECK(file != NULL);
  const size_t saved_bytes = file == NULL ? 0 : fread(saved, 1, sizeof saved, file);
  if (file != NULL) fclose(file);
  neve_torch_stream* stream = NULL;
  OK(neve_torch_stream_create(&object, &stream, &error));
  size_t made_bytes = 0, got = 0;
  do {
    const size_t left = sizeof made - made_bytes;
    OK(neve_torch_stream_read(stream, made + made_bytes, left < 100000 ? left : 100000, &got, &error));
    made_bytes += got;
  } while (got != 0);
  CHECK(made_bytes == saved_bytes);
  CHECK(memcmp(made, saved, saved_bytes) == 0);
  FAILS(NEVE_INVALID, neve_torch_stream_read(stream, made, 1, NULL, &error));
  neve_torch_stream_destroy(&stream);
  CHECK(stream == NULL);
  neve_torch_stream_destroy(&stream);

  FAILS(NEVE_INVALID, neve_torch_file_save(NULL, &object, &error));
  FAILS(NEVE_INVALID, neve_torch_file_save(path, NULL, &error));
  FAILS(NEVE_INVALID, neve_torch_stream_create(&object, NULL, &error));
  FAILS(NEVE_INVALID, neve_torch_stream_read(NULL, made, 1, &got, &error));
  object.alignment = 3;
  FAILS(NEVE_INVALID, neve_torch_file_save(path, &object, &error));
  FAILS(NEVE_INVALID, neve_torch_file_save_async(path, &object, &ticket, &error));
  FAILS(NEVE_INVALID, neve_torch_stream_create(&object, &stream, &error));
  object.alignment = 64;
  object.storage_bytes = NULL;
  FAILS(NEVE_INVALID, neve_torch_file_save(path, &object, &error));
  object.storage_bytes = bytes;
  object.struct_size = 8;
  FAILS(NEVE_INVALID, neve_torch_file_save(path, &object, &error));
}

static void misuse(const char* folder) {
  neve_engine* engine = NULL;
  neve_ticket* ticket = NULL;
  neve_image* image = NULL;
  neve_state* state = NULL;
  neve_options options = NEVE_OPTIONS_INIT;
  FAILS(NEVE_INVALID, neve_engine_open(NULL, &engine, &error));
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.folder = folder;
  FAILS(NEVE_INVALID, neve_engine_open(&options, NULL, &error));
  options.struct_size = 4;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.struct_size = sizeof options;
  options.on_full = 9;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.on_full = 0;
  options.world = 2;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.rank = 2;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.rank = 0;
  options.world = 1;
  const char* tiers[] = {"tape:"};
  options.tiers = tiers;
  options.tier_count = 1;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  tiers[0] = NULL;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.tiers = NULL;
  FAILS(NEVE_INVALID, neve_engine_open(&options, &engine, &error));
  options.tier_count = 0;

  neve_tensors tensors = NEVE_TENSORS_INIT;
  FAILS(NEVE_INVALID, neve_state_create(NULL, NULL, 0, 0, &state, &error));
  tensors.count = 1;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  const uint32_t name_bytes[] = {1, 1};
  uint8_t dtypes[] = {NEVE_F32, 200};
  const uint8_t ranks[] = {1, 1};
  int64_t extents[] = {4, 4};
  tensors.names = "aa";
  tensors.name_bytes = name_bytes;
  tensors.dtypes = dtypes;
  tensors.ranks = ranks;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  tensors.extents = extents;
  tensors.count = 2;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));   /* dtype 200 */
  dtypes[1] = NEVE_F32;

  OK(neve_engine_open(&options, &engine, &error));
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  FAILS(NEVE_INVALID, neve_engine_save(engine, NULL, &ticket, &error));
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));
  FAILS(NEVE_INVALID, neve_engine_save(NULL, &request, &ticket, &error));
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));   /* names are checked when the layout is made */
  static float a[4], b[4];
  const void* addresses[] = {a, b};
  request.state = state;
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));
  request.addresses = addresses;
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));   /* "a" twice */
  CHECK(ticket == NULL);
  neve_state_destroy(&state);
  extents[0] = -3;
  tensors.count = 1;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  request.state = state;
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));   /* a negative extent */
  neve_state_destroy(&state);
  extents[0] = 4;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  request.state = state;
  addresses[0] = NULL;
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));
  addresses[0] = a;
  request.tags_json = "[1]";
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));
  request.tags_json = NULL;
  request.to = "file,tape";
  FAILS(NEVE_INVALID, neve_engine_save(engine, &request, &ticket, &error));
  request.to = "file";
  OK(neve_engine_save(engine, &request, &ticket, &error));
  OK(neve_ticket_wait(ticket, "file", 60, &error));
  FAILS(NEVE_INVALID, neve_ticket_wait(NULL, "file", 0, &error));
  OK(neve_engine_find(engine, NULL, &image, &error));
  neve_ranges ranges = NEVE_RANGES_INIT;
  ranges.count = 1;
  FAILS(NEVE_INVALID, neve_image_read(image, &ranges, &error));
  const uint64_t offset = ~UINT64_C(0) - 2, bytes = 8;
  void* const target = a;
  ranges.offsets = &offset;
  ranges.bytes = &bytes;
  ranges.targets = &target;
  FAILS(NEVE_DAMAGED, neve_image_read(image, &ranges, &error));
  FAILS(NEVE_INVALID, neve_image_read(NULL, &ranges, &error));

  /* Null handles are accepted by everything that destroys; errors may be left out. */
  neve_image_destroy(&image);
  neve_image_destroy(&image);
  neve_image_destroy(NULL);
  neve_ticket_destroy(&ticket);
  neve_ticket_destroy(NULL);
  neve_state_destroy(&state);
  neve_state_destroy(NULL);
  neve_error_destroy(NULL);
  neve_string_destroy(NULL);
  CHECK(neve_engine_save(engine, NULL, NULL, NULL) == NEVE_INVALID);
  CHECK(neve_ticket_descriptor(NULL) == -1);
  CHECK(neve_image_header(NULL, NULL) == NULL);
  CHECK(neve_error_code(NULL) == NEVE_OK && neve_error_errno(NULL) == 0);
  neve_engine_destroy(&engine);
  neve_engine_destroy(&engine);
  CHECK(neve_engine_close(&engine, 1, 1, NULL) == NEVE_OK);
}


int main(void) {
  char folder[] = "/tmp/neve-capi-XXXXXX";
  if (mkdtemp(folder) == NULL) return 2;
  char path[4096];
  snprintf(path, sizeof path, "%s/ram", folder);
  setenv("NEVE_RAM_DIR", path, 1);
  CHECK(strlen(neve_version()) >= 5);
  OK(neve_log_level_set(3, &error));
  FAILS(NEVE_INVALID, neve_log_level_set(-1, &error));
  snprintf(path, sizeof path, "%s/job", folder);
  save_and_restore(path);
  places(folder, path);
  blobs(folder);
  torch_files(folder);
  single_files(folder);
  snprintf(path, sizeof path, "%s/misuse", folder);
  misuse(path);
  char command[4200];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  if (system(command) != 0) return 2;
  printf("%s: %d failures\n", failures == 0 ? "passed" : "failed", failures);
  return failures == 0 ? 0 : 1;
}
