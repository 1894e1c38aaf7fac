// Opens a job in an empty folder: nothing to find there, and the error says so. Usage: consumer FOLDER
#include <neve/neve.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  neve_options options = NEVE_OPTIONS_INIT;
  options.folder = argv[1];
  neve_engine* engine = nullptr;
  neve_error* error = nullptr;
  if (neve_engine_open(&options, &engine, &error) != NEVE_OK) {
    std::fprintf(stderr, "open: %s\n", neve_error_message(error));
    return 1;
  }
  neve_find_request find = NEVE_FIND_REQUEST_INIT;
  neve_image* image = nullptr;
  const neve_code code = neve_engine_find(engine, &find, &image, &error);
  if (code != NEVE_NOT_FOUND || image != nullptr || neve_error_code(error) != code) {
    std::fprintf(stderr, "find in an empty folder: code %d\n", static_cast<int>(code));
    return 1;
  }
  std::printf("neve %s: %s\n", neve_version(), neve_error_message(error));
  neve_error_destroy(&error);
  return neve_engine_close(&engine, 0, 10.0, nullptr) == NEVE_OK ? 0 : 1;
}
