#include "base/sync/pause.h"

#include <chrono>
#include <thread>

namespace neve::sync {

Nanos MonotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Pause(Nanos duration) { std::this_thread::sleep_for(std::chrono::nanoseconds(duration)); }

}  // namespace neve::sync
