// NEVE_CHECK: for the places where going on would write or hand out wrong bytes. On in release builds too. Never for the
// world's errors: those are a Status.
#ifndef NEVE_BASE_ERROR_CHECK_H_
#define NEVE_BASE_ERROR_CHECK_H_

namespace neve {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace neve

#define NEVE_CHECK(condition) \
  do {                        \
    if (!(condition)) ::neve::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // NEVE_BASE_ERROR_CHECK_H_
