// What a fork must not break is tried in the child of one.
#ifndef NEVE_TESTS_BASE_FORKED_CHILD_H_
#define NEVE_TESTS_BASE_FORKED_CHILD_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace neve::sync {

// Runs in a forked child and says whether it ended well; one that hangs is killed by its own alarm.
template <typename Body>
bool EndsWellInAChild(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(60);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace neve::sync

#endif  // NEVE_TESTS_BASE_FORKED_CHILD_H_
