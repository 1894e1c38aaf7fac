// Fault injection below the code: every system call of neve that touches a file goes through os/syscalls.h (or the ring),
// and each asks these hooks first. Null in production; tests install one to refuse, shorten, delay, record or kill.
#ifndef NEVE_BASE_OS_IO_HOOKS_H_
#define NEVE_BASE_OS_IO_HOOKS_H_

#include <cstdint>
#include <string>

namespace neve::os {

enum class Call : uint8_t {
  kOpen, kPread, kPwrite, kFsync, kFdatasync, kFtruncate, kFallocate, kRename, kLink, kUnlink, kMkdir, kRmdir, kStat, kList,
  kMmap, kMadvise, kLease, kReflink,
};

struct CallInfo {
  Call call;
  std::string path;        // the path, or the name the descriptor was opened by; may be empty
  std::string target;      // second path of rename and link
  uint64_t offset = 0;
  uint64_t length = 0;
  int flags = 0;           // open flags
};

struct CallVerdict {
  int error_number = 0;        // not 0: the call is not made and fails with this
  int64_t shorten_to = -1;     // reads and writes: transfer at most this many bytes
};

class IoHooks {
 public:
  virtual ~IoHooks() = default;
  // Before the call, on the calling thread. Must be thread safe.
  virtual CallVerdict Before(const CallInfo& info) = 0;
  // After a call that was made and succeeded; writes see their bytes in `data`.
  virtual void After(const CallInfo& info, const void* data) {}
};

// Installs hooks for the whole process (null: none), and returns when no thread is in those that were installed before: then they
// may be destroyed. Not from within a hook.
void SetIoHooks(IoHooks* hooks);

// What asks the hooks: they stay alive as long as it does. Costs one load when there are none.
class IoHooksInUse {
 public:
  IoHooksInUse();
  ~IoHooksInUse();
  IoHooksInUse(const IoHooksInUse&) = delete;
  IoHooksInUse& operator=(const IoHooksInUse&) = delete;
  explicit operator bool() const { return hooks_ != nullptr; }
  IoHooks* operator->() const { return hooks_; }

 private:
  IoHooks* hooks_ = nullptr;
};

}  // namespace neve::os

#endif  // NEVE_BASE_OS_IO_HOOKS_H_
