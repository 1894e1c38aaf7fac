// The fallback engine: a few threads that call pread, pwrite and fdatasync. Same semantics as the io_uring engine, so
// the same tests run on both; what differs is that operations begin when they are submitted, not at the next Poll.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/os/thread.h"
#include "base/sync/mutex.h"
#include "ring/engines.h"
#include "ring/operation.h"

namespace neve::ring {
namespace {

int64_t MakeTransfer(const Operation& operation) {
  const int fd = operation.file->fd.get();
  const auto offset = static_cast<off_t>(operation.transfer_offset());
  int64_t result = 0;
  switch (operation.kind) {
    case Operation::Kind::kWrite:
      result = ::pwrite(fd, operation.transfer_memory(), operation.transfer_bytes, offset);
      break;
    case Operation::Kind::kRead:
      result = ::pread(fd, operation.transfer_memory(), operation.transfer_bytes, offset);
      break;
    case Operation::Kind::kFdatasync: result = ::fdatasync(fd); break;
  }
  return result < 0 ? -errno : result;
}

absl::StatusOr<uint64_t> RunWhole(Operation& operation) {
  absl::StatusOr<uint64_t> outcome = uint64_t{0};
  int64_t result = 0;
  do {
    if (Prepare(operation, kTransferBytesMax, &result)) result = MakeTransfer(operation);
  } while (!Absorb(operation, result, &outcome));
  return outcome;
}

struct Finished {
  Done done;
  absl::StatusOr<uint64_t> outcome;
};

// What the owner and the threads share.
struct Shared {
  sync::Mutex mutex;
  sync::Condition work;       // for the threads
  sync::Condition progress;   // for the owner
  std::deque<Operation> queue NEVE_GUARDED_BY(mutex);
  std::vector<Finished> finished NEVE_GUARDED_BY(mutex);
  bool stopping NEVE_GUARDED_BY(mutex) = false;
  bool woken NEVE_GUARDED_BY(mutex) = false;
  std::vector<pthread_t> threads;   // the owner's
};

void* ThreadMain(void* argument) {
  os::NameThisThread("neve-io");
  Shared& shared = *static_cast<Shared*>(argument);
  shared.mutex.Lock();
  while (true) {
    shared.work.Wait(shared.mutex, [&] { return shared.stopping || !shared.queue.empty(); });
    if (shared.queue.empty()) break;
    Operation operation = std::move(shared.queue.front());
    shared.queue.pop_front();
    shared.mutex.Unlock();
    absl::StatusOr<uint64_t> outcome = RunWhole(operation);
    shared.mutex.Lock();
    shared.finished.push_back({std::move(operation.done), std::move(outcome)});
    shared.progress.NotifyOne();
  }
  shared.mutex.Unlock();
  return nullptr;
}

class ThreadEngine final : public Ring {
 public:
  ThreadEngine() : shared_(std::make_unique<Shared>()), fork_generation_(os::ForkGeneration()) {}
  ~ThreadEngine() override;
  absl::Status Start(int threads);

  std::string_view engine() const override { return "threads"; }
  absl::Status RegisterRegion(std::span<std::byte>) override { return absl::OkStatus(); }
  void UnregisterRegion(std::span<std::byte>) override {}

  void Write(const os::File& file, uint64_t offset, std::span<const std::byte> source, Done done) override {
    Add(MakeWrite(file, offset, source, std::move(done)));
  }
  void Read(const os::File& file, uint64_t offset, std::span<std::byte> target, Done done) override {
    Add(MakeRead(file, offset, target, std::move(done)));
  }
  void Fdatasync(const os::File& file, Done done) override { Add(MakeFdatasync(file, std::move(done))); }

  int Poll(bool wait) override;
  void Wake() override;
  int pending() const override { return pending_; }

 private:
  bool IsForkedCopy() const { return fork_generation_ != os::ForkGeneration(); }
  void Add(Operation operation);
  void Refuse(Operation& operation, const absl::Status& why);

  // Never touched in a forked copy: its lock may be held for ever by a thread that is not there.
  std::unique_ptr<Shared> shared_;
  std::vector<Finished> refused_;   // operations that did not reach the threads
  int pending_ = 0;                 // the owner's count
  bool closing_ = false;
  const uint64_t fork_generation_;
};

absl::Status ThreadEngine::Start(int threads) {
  for (int i = 0; i < threads; ++i) {
    pthread_t thread;
    if (!os::StartThread(ThreadMain, shared_.get(), &thread)) {
      // Fewer threads are slower, none is a failure.
      if (i > 0) break;
      return Exhausted("no thread could be started for file I/O; the limit of processes (ulimit -u) may be reached");
    }
    shared_->threads.push_back(thread);
  }
  return absl::OkStatus();
}

ThreadEngine::~ThreadEngine() {
  if (IsForkedCopy()) {
    static_cast<void>(shared_.release());   // leaked: a copy that nobody may lock or destroy
    return;
  }
  closing_ = true;
  {
    sync::MutexLock lock(shared_->mutex);
    for (Operation& operation : shared_->queue) {
      Refuse(operation, Closed("the ring was closed before this operation began"));
    }
    shared_->queue.clear();
    shared_->stopping = true;
    shared_->work.NotifyAll();
  }
  for (const pthread_t thread : shared_->threads) ::pthread_join(thread, nullptr);
  while (pending_ > 0) Poll(false);
}

void ThreadEngine::Refuse(Operation& operation, const absl::Status& why) {
  absl::Status status = Annotate(why, Describe(operation));
  refused_.push_back({std::move(operation.done), std::move(status)});
}

void ThreadEngine::Add(Operation operation) {
  ++pending_;
  if (closing_) return Refuse(operation, Closed("the ring was closed before this operation began"));
  if (IsForkedCopy()) {
    return Refuse(operation, Closed("a ring is not inherited by a forked process; open neve anew there"));
  }
  sync::MutexLock lock(shared_->mutex);
  shared_->queue.push_back(std::move(operation));
  shared_->work.NotifyOne();
}

int ThreadEngine::Poll(bool wait) {
  std::vector<Finished> finished;
  finished.swap(refused_);
  if (!IsForkedCopy()) {
    sync::MutexLock lock(shared_->mutex);
    if (wait && finished.empty()) {
      shared_->progress.Wait(shared_->mutex, [&] { return shared_->woken || !shared_->finished.empty(); });
      shared_->woken = false;
    }
    for (Finished& each : shared_->finished) finished.push_back(std::move(each));
    shared_->finished.clear();
  }
  pending_ -= static_cast<int>(finished.size());
  for (Finished& each : finished) each.done(std::move(each.outcome));
  return static_cast<int>(finished.size());
}

void ThreadEngine::Wake() {
  if (IsForkedCopy()) return;
  sync::MutexLock lock(shared_->mutex);
  shared_->woken = true;
  shared_->progress.NotifyOne();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ring>> CreateThreadEngine(const Options& options) {
  auto engine = std::make_unique<ThreadEngine>();
  // A thread is an operation in the kernel, so there are no more of them than the depth allows.
  NEVE_RETURN_IF_ERROR(engine->Start(std::min(options.threads, options.depth)));
  return engine;
}

}  // namespace neve::ring
