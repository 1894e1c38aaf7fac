#include "base/sync/termination.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <thread>

#include "base/sync/mutex.h"

namespace neve::sync {
namespace {

// What the handler reads: plain words, set before the handler is installed.
std::atomic<int> signals_seen{0};
std::atomic<int> event_descriptor{-1};
std::atomic<pid_t> owner_pid{0};
struct sigaction earlier_action;

struct Watchers {
  Mutex mutex;
  Condition changed;
  std::map<int, std::function<void()>> finish NEVE_GUARDED_BY(mutex);
  int next_id NEVE_GUARDED_BY(mutex) = 1;
  int running NEVE_GUARDED_BY(mutex) = 0;   // id whose finish runs now
  bool installed NEVE_GUARDED_BY(mutex) = false;
};
// Never destroyed: its thread may run while the process ends.
Watchers& TheWatchers() {
  static Watchers* const watchers = new Watchers;
  return *watchers;
}

void RunEarlier(siginfo_t* info, void* context) {
  if ((earlier_action.sa_flags & SA_SIGINFO) != 0) {
    earlier_action.sa_sigaction(SIGTERM, info, context);
  } else if (earlier_action.sa_handler == SIG_DFL) {
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGTERM, &standard, nullptr);
    ::kill(::getpid(), SIGTERM);
  } else if (earlier_action.sa_handler != SIG_IGN) {
    earlier_action.sa_handler(SIGTERM);
  }
}

void Handler(int, siginfo_t* info, void* context) {
  const int kept = errno;
  if (::getpid() != owner_pid.load(std::memory_order_relaxed) || signals_seen.fetch_add(1) > 0) {
    RunEarlier(info, context);
  } else {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event_descriptor.load(std::memory_order_relaxed), &one, sizeof(one));
  }
  errno = kept;
}

void WaitAndFinish() {
  uint64_t count = 0;
  while (::read(event_descriptor.load(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
  Watchers& watchers = TheWatchers();
  while (true) {
    std::function<void()> finish;
    {
      MutexLock lock(watchers.mutex);
      if (watchers.finish.empty()) break;
      const auto first = watchers.finish.begin();
      watchers.running = first->first;
      finish = std::move(first->second);
      watchers.finish.erase(first);
    }
    finish();
    MutexLock lock(watchers.mutex);
    watchers.running = 0;
    watchers.changed.NotifyAll();
  }
  // Sent anew rather than calling the earlier handler here: it may want the thread that signals go to, and a call that blocks
  // there interrupted. An interpreter's handler only sets a flag, which its main thread would not look at until that call ends.
  ::kill(::getpid(), SIGTERM);
}

void InstallLocked(Watchers& watchers) NEVE_REQUIRES(watchers.mutex) {
  if (watchers.installed) return;
  watchers.installed = true;
  event_descriptor = ::eventfd(0, EFD_CLOEXEC);
  owner_pid = ::getpid();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(WaitAndFinish).detach();   // lives as long as the process: it only ever waits for the signal
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  struct sigaction ours = {};
  ours.sa_sigaction = Handler;
  ::sigaction(SIGTERM, nullptr, &earlier_action);
  // Whether calls go on after the signal is the earlier handler's choice.
  const bool function = (earlier_action.sa_flags & SA_SIGINFO) != 0 ||
                        (earlier_action.sa_handler != SIG_DFL && earlier_action.sa_handler != SIG_IGN);
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (function ? earlier_action.sa_flags & SA_RESTART : SA_RESTART);
  ::sigaction(SIGTERM, &ours, nullptr);
}

}  // namespace

TerminationWatch::TerminationWatch(std::function<void()> finish) : id_([&] {
  Watchers& watchers = TheWatchers();
  MutexLock lock(watchers.mutex);
  const int id = watchers.next_id++;
  watchers.finish[id] = std::move(finish);
  InstallLocked(watchers);
  return id;
}()) {}

TerminationWatch::~TerminationWatch() {
  if (::getpid() != owner_pid.load()) return;   // a forked child: the lock may be held by a thread that is not here
  Watchers& watchers = TheWatchers();
  MutexLock lock(watchers.mutex);
  watchers.finish.erase(id_);
  watchers.changed.Wait(watchers.mutex, [&]() NEVE_REQUIRES(watchers.mutex) { return watchers.running != id_; });
}

bool TerminationWatch::Replaced() {
  {
    Watchers& watchers = TheWatchers();
    MutexLock lock(watchers.mutex);
    if (!watchers.installed) return false;
  }
  struct sigaction now = {};
  ::sigaction(SIGTERM, nullptr, &now);
  return (now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != Handler;
}

}  // namespace neve::sync
