// A move-only owner over a traits type: `Traits::Handle`, `Traits::Invalid()`, `Traits::Close(Handle)`.
// The destructor forgives; where a failed close means lost data, release() it and close it by a call that reports.
#ifndef NEVE_BASE_OS_UNIQUE_HANDLE_H_
#define NEVE_BASE_OS_UNIQUE_HANDLE_H_

#include <unistd.h>

#include <utility>

namespace neve::os {

template <typename Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;
  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueHandle() { reset(); }
  Handle get() const { return handle_; }
  bool valid() const { return handle_ != Traits::Invalid(); }
  explicit operator bool() const { return valid(); }
  Handle release() { return std::exchange(handle_, Traits::Invalid()); }
  void reset(Handle handle = Traits::Invalid()) {
    Handle old = std::exchange(handle_, handle);
    if (old != Traits::Invalid()) Traits::Close(old);
  }

 private:
  Handle handle_ = Traits::Invalid();
};

struct FdTraits {
  using Handle = int;
  static int Invalid() { return -1; }
  static void Close(int fd) { ::close(fd); }
};
using UniqueFd = UniqueHandle<FdTraits>;

}  // namespace neve::os

#endif  // NEVE_BASE_OS_UNIQUE_HANDLE_H_
