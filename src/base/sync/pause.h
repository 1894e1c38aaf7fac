// The monotonic clock and a sleep, for a caller's thread that polls something outside of this process. State machines know
// neither: they get a time and say when they want to be asked again.
#ifndef NEVE_BASE_SYNC_PAUSE_H_
#define NEVE_BASE_SYNC_PAUSE_H_

#include "base/sync/executor.h"

namespace neve::sync {

Nanos MonotonicNow();
void Pause(Nanos duration);

}  // namespace neve::sync

#endif  // NEVE_BASE_SYNC_PAUSE_H_
