/* Tensors that several ranks hold together, through the C API. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capi/check.h"
#include "neve/neve.h"

/* Rows 2 and 3 of w [4, 3], a second box of it (row 0), and a tensor that is none. */
static void describe_pieces(neve_tensors* tensors) {
  static const uint32_t name_bytes[] = {1, 3, 5};
  static const uint8_t dtypes[] = {NEVE_F32, NEVE_F32, NEVE_I32}, ranks[] = {2, 2, 1}, pieces[] = {1, 1, 0};
  static const int64_t extents[] = {2, 3, 1, 3, 4}, global_extents[] = {4, 3, 4, 3, 0}, offsets[] = {2, 0, 0, 0, 0};
  static const char* const logical_names[] = {NULL, "w", NULL};
  tensors->count = 3;
  tensors->names = "ww~2plain";
  tensors->name_bytes = name_bytes;
  tensors->dtypes = dtypes;
  tensors->ranks = ranks;
  tensors->extents = extents;
  tensors->pieces = pieces;
  tensors->global_extents = global_extents;
  tensors->offsets = offsets;
  tensors->logical_names = logical_names;
}

static void pieces_are_saved_and_told(const char* folder) {
  neve_tensors tensors = NEVE_TENSORS_INIT;
  describe_pieces(&tensors);
  neve_state* state = NULL;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  static float rows[6], row[3];
  static int32_t plain[4];
  const void* addresses[] = {rows, row, plain};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.state = state;
  request.addresses = addresses;
  char path[4096];
  snprintf(path, sizeof path, "%s/pieces.safetensors", folder);
  OK(neve_file_save(path, &request, &error));
  neve_state_destroy(&state);

  neve_image* image = NULL;
  OK(neve_image_open(path, &image, &error));
  CHECK(neve_image_tensor_count(image) == 3);
  neve_tensor_info info = NEVE_TENSOR_INFO_INIT;
  OK(neve_image_tensor_describe(image, 0, &info, &error));
  CHECK(info.global_extents != NULL && info.global_extents[0] == 4 && info.global_extents[1] == 3);
  CHECK(info.offsets != NULL && info.offsets[0] == 2 && info.offsets[1] == 0 && info.extents[0] == 2);
  CHECK(info.logical_name_bytes == 1 && memcmp(info.logical_name, "w", 1) == 0);
  OK(neve_image_tensor_describe(image, 1, &info, &error));
  CHECK(info.name_bytes == 3 && info.logical_name_bytes == 1 && memcmp(info.logical_name, "w", 1) == 0);
  OK(neve_image_tensor_describe(image, 2, &info, &error));
  CHECK(info.global_extents == NULL && info.offsets == NULL && info.logical_name == NULL && info.logical_name_bytes == 0);
  neve_image_destroy(&image);
}

static void pieces_that_cannot_be_are_refused(void) {
  neve_state* state = NULL;
  neve_tensors tensors = NEVE_TENSORS_INIT;
  describe_pieces(&tensors);
  tensors.offsets = NULL;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  describe_pieces(&tensors);
  const int64_t beyond[] = {3, 0, 0, 0, 0}, before[] = {-1, 0, 0, 0, 0};
  tensors.offsets = beyond;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  tensors.offsets = before;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  describe_pieces(&tensors);
  const char* const reserved[] = {NULL, "neve.base.1", NULL};
  tensors.logical_names = reserved;
  FAILS(NEVE_INVALID, neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  CHECK(state == NULL);
}

/* One rank that holds all of a logical tensor in two boxes: found, seen as a whole, and read by boxes of another layout. */
static void boxes_come_back_in_another_layout(const char* folder) {
  neve_options options = NEVE_OPTIONS_INIT;
  char path[4096];
  snprintf(path, sizeof path, "%s/job", folder);
  options.folder = path;
  neve_engine* engine = NULL;
  OK(neve_engine_open(&options, &engine, &error));
  static const uint32_t name_bytes[] = {3, 3};
  static const uint8_t dtypes[] = {NEVE_F32, NEVE_F32}, ranks[] = {2, 2}, pieces[] = {1, 1};
  static const int64_t extents[] = {1, 3, 3, 3}, global_extents[] = {4, 3, 4, 3}, offsets[] = {0, 0, 1, 0};
  static const char* const logical_names[] = {"w", "w"};
  neve_tensors tensors = NEVE_TENSORS_INIT;
  tensors.count = 2;
  tensors.names = "toplow";
  tensors.name_bytes = name_bytes;
  tensors.dtypes = dtypes;
  tensors.ranks = ranks;
  tensors.extents = extents;
  tensors.pieces = pieces;
  tensors.global_extents = global_extents;
  tensors.offsets = offsets;
  tensors.logical_names = logical_names;
  neve_state* state = NULL;
  OK(neve_state_create(&tensors, NULL, 0, 0, &state, &error));
  static const float top[3] = {0, 1, 2}, low[9] = {3, 4, 5, 6, 7, 8, 9, 10, 11};
  const void* addresses[] = {top, low};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.state = state;
  request.addresses = addresses;
  neve_ticket* ticket = NULL;
  OK(neve_engine_save(engine, &request, &ticket, &error));
  OK(neve_ticket_wait(ticket, "done", 60, &error));
  neve_ticket_destroy(&ticket);
  neve_state_destroy(&state);

  neve_image *image = NULL, *global = NULL;
  OK(neve_engine_find(engine, NULL, &image, &error));
  CHECK(!neve_image_is_global(image) && neve_image_tensor_count(image) == 2);
  OK(neve_image_global_part(image, NULL, "", &global, &error));
  neve_image_destroy(&global);
  OK(neve_image_global(image, "nothing*\n", &global, &error));
  neve_image_destroy(&image);   /* the global one stands by itself */
  CHECK(neve_image_is_global(global) && neve_image_tensor_count(global) == 1);
  size_t index = 9;
  OK(neve_image_tensor_find(global, "w", &index, &error));
  neve_tensor_info info = NEVE_TENSOR_INFO_INIT;
  OK(neve_image_tensor_describe(global, index, &info, &error));
  CHECK(info.rank == 2 && info.extents[0] == 4 && info.extents[1] == 3 && info.global_extents == NULL);

  /* The middle column, and the last two columns of the first two rows, transposed. */
  const size_t wanted[] = {index, index};
  const int64_t box_offsets[] = {0, 1, 0, 1}, box_extents[] = {4, 1, 2, 2}, transposed_strides[] = {1, 2};
  const int64_t* const strides[] = {NULL, transposed_strides};
  float column[4] = {0}, corner[4] = {0};
  void* const targets[] = {column, corner};
  uint8_t written[] = {0, 0};
  neve_boxes boxes = NEVE_BOXES_INIT;
  boxes.count = 2;
  boxes.tensors = wanted;
  boxes.offsets = box_offsets;
  boxes.extents = box_extents;
  boxes.targets = targets;
  boxes.strides = strides;
  boxes.written = written;
  OK(neve_image_boxes_read(global, &boxes, &error));
  CHECK(column[0] == 1 && column[1] == 4 && column[2] == 7 && column[3] == 10);
  CHECK(corner[0] == 1 && corner[1] == 4 && corner[2] == 2 && corner[3] == 5);
  CHECK(written[0] == 1 && written[1] == 1);
  float whole[12] = {0};
  void* const all[] = {whole};
  OK(neve_image_tensors_read(global, 1, &index, all, NULL, &error));
  for (int i = 0; i < 12; ++i) CHECK(whole[i] == (float)i);
  OK(neve_image_verify(global, &error));

  FAILS(NEVE_INVALID, neve_image_global(global, NULL, &image, &error));   /* it is one already */
  FAILS(NEVE_INVALID, neve_image_global(NULL, NULL, &image, &error));
  FAILS(NEVE_INVALID, neve_image_global_part(NULL, NULL, NULL, &image, &error));
  FAILS(NEVE_INVALID, neve_image_boxes_read(global, NULL, &error));
  boxes.offsets = NULL;
  FAILS(NEVE_INVALID, neve_image_boxes_read(global, &boxes, &error));
  const int64_t beyond[] = {1, 1, 0, 1};
  boxes.offsets = beyond;
  FAILS(NEVE_INVALID, neve_image_boxes_read(global, &boxes, &error));
  CHECK(!neve_image_is_global(NULL));
  neve_image_destroy(&global);
  neve_engine_destroy(&engine);
}

int main(void) {
  char folder[] = "/tmp/neve-pieces-XXXXXX";
  if (mkdtemp(folder) == NULL) return 2;
  pieces_are_saved_and_told(folder);
  pieces_that_cannot_be_are_refused();
  char ram[4096];
  snprintf(ram, sizeof ram, "%s/ram", folder);
  setenv("NEVE_RAM_DIR", ram, 1);
  boxes_come_back_in_another_layout(folder);
  char command[4200];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  if (system(command) != 0) return 2;
  printf("%s: %d failures\n", failures == 0 ? "passed" : "failed", failures);
  return failures == 0 ? 0 : 1;
}
