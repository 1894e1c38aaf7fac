// The thread that writes asynchronous saves of single files.
#ifndef NEVE_ENGINE_FILE_WRITER_H_
#define NEVE_ENGINE_FILE_WRITER_H_

#include "base/sync/executor.h"

namespace neve {

// One a process, made at the first use and never destroyed: its tasks hold what they need. A forked child, in which no thread of
// the parent lives, gets its own. Null: the system gave no thread. Thread: any.
sync::ThreadExecutor* FileWriter();

}  // namespace neve

#endif  // NEVE_ENGINE_FILE_WRITER_H_
