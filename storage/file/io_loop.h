// The tier's thread and its mailbox. It owns the Ring: tasks and ring completions run here, one at a time, so that what only
// they touch needs no lock.
//
// Contract
//   Post      Thread: any. Tasks run in the order of Post. False once Stop was called: the task will never run.
//   PostLast  Thread: any. For clean-up that must happen: runs on the loop, or in the call when the loop has ended.
//   Blocking  Tasks may do short file system calls (open, rename, fsync of a folder); data goes through ring().
//   Fork      In a forked child there is no such thread: nothing runs, nothing is posted, nothing is waited for.
//   Stop      Runs what was posted before, waits for the ring's operations and those that their completions submit.
#ifndef NEVE_STORAGE_FILE_IO_LOOP_H_
#define NEVE_STORAGE_FILE_IO_LOOP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "base/error/status.h"
#include "base/sync/executor.h"
#include "base/sync/mutex.h"
#include "ring/ring.h"

namespace neve::storage {

class IoLoop {
 public:
  using Task = std::function<void()>;

  static absl::StatusOr<std::shared_ptr<IoLoop>> Start(const ring::Options& options);
  ~IoLoop();

  bool Post(Task task);
  void PostLast(Task task);
  // Thread: any. Runs the task on the loop and waits for it; at once when called on the loop. Does nothing after Stop.
  void RunAndWait(Task task);
  void Stop();

  ring::Ring& ring() { return *ring_; }  // thread: the loop's only

 private:
  IoLoop();
  void Run();
  bool Forked() const;
  void PushLocked(Task task) NEVE_REQUIRES(mutex_);

  const uint64_t generation_;  // of the process that has the thread
  sync::Mutex mutex_;
  std::deque<Task> mailbox_ NEVE_GUARDED_BY(mutex_);
  bool stopping_ NEVE_GUARDED_BY(mutex_) = false;
  bool ended_ NEVE_GUARDED_BY(mutex_) = false;
  sync::Mutex after_end_;             // one clean-up at a time
  std::unique_ptr<ring::Ring> ring_;  // made and destroyed on the loop; others only Wake it, under mutex_ while !ended_
  std::unique_ptr<sync::ThreadExecutor> thread_;
};

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_IO_LOOP_H_
