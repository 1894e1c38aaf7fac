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

int main(void) {
  char folder[] = "/tmp/neve-pieces-XXXXXX";
  if (mkdtemp(folder) == NULL) return 2;
  pieces_are_saved_and_told(folder);
  pieces_that_cannot_be_are_refused();
  char command[4200];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  if (system(command) != 0) return 2;
  printf("%s: %d failures\n", failures == 0 ? "passed" : "failed", failures);
  return failures == 0 ? 0 : 1;
}
