#include "base/os/thread.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace neve::os {
namespace {
std::atomic<uint64_t> fork_generation{1};
void CountFork() { fork_generation.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

bool StartThread(void* (*main)(void*), void* argument, pthread_t* thread) {
  // A new thread inherits the mask of its maker.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = ::pthread_create(thread, nullptr, main, argument);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed == 0;
}

void NameThisThread(const std::string& name) { ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str()); }

void MakeThisThreadBackground() {
  // Linux keeps the nice value by thread. Lowering one's priority needs no right, so a refusal has no cause to report.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
}

uint64_t ForkGeneration() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, &CountFork);
  (void)registered;
  return fork_generation.load(std::memory_order_relaxed);
}

}  // namespace neve::os
