// What every native thread of neve needs from the system: no signals of the host program, a name for `ps`, background
// priority, and the news that the process is a forked copy in which those threads do not exist.
#ifndef NEVE_BASE_OS_THREAD_H_
#define NEVE_BASE_OS_THREAD_H_

#include <pthread.h>

#include <cstdint>
#include <string>

namespace neve::os {

// Starts `main(argument)` on a thread with every signal blocked from its first instruction on, so that the host's handlers
// run on the host's threads. A plain handle, joined by pthread_join: in a forked child there is nothing to destroy. False
// when the system refuses another thread.
bool StartThread(void* (*main)(void*), void* argument, pthread_t* thread);

void NameThisThread(const std::string& name);  // cut to the kernel's 15 characters
void MakeThisThreadBackground();               // nice 19; only this thread

// Grows by one in the child at each fork: an object that kept another value than the present one was made in an ancestor.
uint64_t ForkGeneration();

}  // namespace neve::os

#endif  // NEVE_BASE_OS_THREAD_H_
