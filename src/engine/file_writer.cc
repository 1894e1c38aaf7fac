#include "engine/file_writer.h"

#include <cstdint>

#include "base/os/thread.h"
#include "base/sync/mutex.h"

namespace neve {

sync::ThreadExecutor* FileWriter() {
  struct Writer {
    sync::Mutex mutex;
    uint64_t fork_generation NEVE_GUARDED_BY(mutex) = 0;
    sync::ThreadExecutor* executor NEVE_GUARDED_BY(mutex) = nullptr;
  };
  static Writer* const writer = new Writer;
  sync::MutexLock lock(writer->mutex);
  if (writer->executor == nullptr || writer->fork_generation != os::ForkGeneration()) {
    writer->fork_generation = os::ForkGeneration();
    writer->executor = sync::ThreadExecutor::Create({.name = "neve-files"}).release();
  }
  return writer->executor;
}

}  // namespace neve
