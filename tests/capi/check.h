/* What the programs that test the C API check with. */
#ifndef NEVE_TESTS_CAPI_CHECK_H_
#define NEVE_TESTS_CAPI_CHECK_H_

#include <stdio.h>
#include <string.h>

#include "neve/neve.h"

static int failures = 0;

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);              \
      ++failures;                                                                 \
    }                                                                             \
  } while (0)

#define OK(call)                                                                  \
  do {                                                                            \
    neve_error* error = NULL;                                                     \
    neve_code code = (call);                                                      \
    if (code != NEVE_OK) {                                                        \
      printf("%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, code, neve_error_message(error)); \
      ++failures;                                                                 \
      neve_error_destroy(&error);                                                 \
    }                                                                             \
  } while (0)

/* `call` uses `error`; must fail with `wanted` and a text. */
#define FAILS(wanted, call)                                                       \
  do {                                                                            \
    neve_error* error = NULL;                                                     \
    neve_code code = (call);                                                      \
    if (code != (wanted) || neve_error_code(error) != (wanted) || strlen(neve_error_message(error)) < 5) { \
      printf("%s:%d: %s: got %d \"%s\", wanted %d\n", __FILE__, __LINE__, #call, code, neve_error_message(error), wanted); \
      ++failures;                                                                 \
    }                                                                             \
    neve_error_destroy(&error);                                                   \
    CHECK(error == NULL);                                                         \
  } while (0)

#endif /* NEVE_TESTS_CAPI_CHECK_H_ */
