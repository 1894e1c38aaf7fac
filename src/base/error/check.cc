#include "base/error/check.h"

#include <cstdio>
#include <cstdlib>

namespace neve {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "neve: check failed at %s:%d: %s; stopping rather than going on with wrong bytes\n", file, line,
               condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace neve
