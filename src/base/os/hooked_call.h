// How base/os makes a system call: the hooks are asked, EINTR is retried, the errno comes back by value. Private to
// base/os; others use syscalls.h and mapping.h.
#ifndef NEVE_BASE_OS_HOOKED_CALL_H_
#define NEVE_BASE_OS_HOOKED_CALL_H_

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/os/io_hooks.h"

namespace neve::os {

// CallInfo without its allocations: those are paid only when hooks are installed.
struct CallRequest {
  Call call;
  std::string_view path;
  std::string_view target = {};
  uint64_t offset = 0;
  uint64_t length = 0;
  int flags = 0;
  const void* data = nullptr;  // of writes: what After() is shown
};

// `make(length)` makes the call once and returns what the system call returned (-1: errno is set); `length` is
// request.length, or less where a hook shortens the transfer. Returns that value, or -errno. An injected EINTR is retried
// like a real one, hooks asked again.
template <typename Make>
int64_t MakeCall(const CallRequest& request, Make&& make) {
  while (true) {
    const IoHooksInUse hooks;
    if (!hooks) {
      const int64_t result = make(request.length);
      if (result >= 0) return result;
      if (errno != EINTR) return -errno;
      continue;
    }
    CallInfo info{request.call,   std::string(request.path), std::string(request.target),
                  request.offset, request.length,            request.flags};
    const CallVerdict verdict = hooks->Before(info);
    if (verdict.error_number == EINTR) continue;
    if (verdict.error_number != 0) return -verdict.error_number;
    uint64_t length = request.length;
    if (verdict.shorten_to >= 0) length = std::min(length, static_cast<uint64_t>(verdict.shorten_to));
    const int64_t result = make(length);
    if (result < 0) {
      if (errno == EINTR) continue;
      return -errno;
    }
    if (request.call == Call::kPread || request.call == Call::kPwrite) info.length = static_cast<uint64_t>(result);
    hooks->After(info, request.data);
    return result;
  }
}

}  // namespace neve::os

#endif  // NEVE_BASE_OS_HOOKED_CALL_H_
