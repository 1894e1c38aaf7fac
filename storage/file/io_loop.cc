#include "storage/file/io_loop.h"

#include "absl/strings/str_format.h"
#include "base/obs/log.h"

#include <atomic>
#include <utility>

#include "base/os/thread.h"
#include "base/sync/notification.h"
#include "storage/file/kernel_file.h"

namespace neve::storage {

absl::StatusOr<std::shared_ptr<IoLoop>> IoLoop::Start(const ring::Options& options) {
  std::shared_ptr<IoLoop> loop(new IoLoop());
  // At normal priority: it computes next to nothing, and one that waits for a core while it holds a folder's lock or a lease
  // makes others wait with it.
  loop->thread_ = sync::ThreadExecutor::Create({.name = "neve-file", .background = false});
  if (loop->thread_ == nullptr) {
    loop->ended_ = true;
    return Exhausted("file tier: the system refuses another thread (see ulimit -u and the cgroup's pids.max)");
  }
  absl::Status status;
  loop->thread_->Run([&] {
    BlockFileSignals();
    std::string reason;
    absl::StatusOr<std::unique_ptr<ring::Ring>> ring = ring::Ring::Create(options, &reason);
    status = ring.status();
    if (ring.ok() && !reason.empty()) {
      // Whatever forbids it does so for the whole process: one warning, however many tiers are opened.
      static std::atomic<bool> told{false};
      obs::Log(told.exchange(true) ? obs::Level::kDebug : obs::Level::kWarning,
               absl::StrFormat("event=io_uring_unavailable engine=%s reason=\"%s\"", std::string((*ring)->engine()), reason));
    }
    if (ring.ok()) loop->ring_ = std::move(*ring);
  });
  if (!status.ok()) {
    loop->ended_ = true;
    return Annotate(status, "file tier: its thread has no file I/O engine");
  }
  loop->thread_->Post([raw = loop.get()] { raw->Run(); });
  return loop;
}

IoLoop::IoLoop() : generation_(os::ForkGeneration()) {}

IoLoop::~IoLoop() {
  Stop();
  // The ring waits for its operations, which are the parent's and never complete here.
  if (Forked()) static_cast<void>(ring_.release());
}

bool IoLoop::Forked() const { return os::ForkGeneration() != generation_; }

void IoLoop::PushLocked(Task task) {
  const bool was_empty = mailbox_.empty();
  mailbox_.push_back(std::move(task));
  if (was_empty) ring_->Wake();
}

bool IoLoop::Post(Task task) {
  if (Forked()) return false;
  sync::MutexLock lock(mutex_);
  if (stopping_) return false;
  PushLocked(std::move(task));
  return true;
}

void IoLoop::PostLast(Task task) {
  if (Forked()) return;
  {
    sync::MutexLock lock(mutex_);
    if (!ended_) return PushLocked(std::move(task));
  }
  sync::MutexLock lock(after_end_);
  task();
}

void IoLoop::RunAndWait(Task task) {
  if (Forked()) return;
  if (thread_->IsCurrent()) {
    task();
    return;
  }
  sync::Result<bool> ran;
  if (Post([&] {
        task();
        ran.Set(true);
      })) {
    ran.Take();
  }
}

void IoLoop::Stop() {
  if (Forked() || thread_ == nullptr) return;
  {
    sync::MutexLock lock(mutex_);
    stopping_ = true;
    if (!ended_) ring_->Wake();
  }
  thread_->Stop();
}

void IoLoop::Run() {
  while (true) {
    std::deque<Task> batch;
    {
      sync::MutexLock lock(mutex_);
      batch.swap(mailbox_);
      ended_ = stopping_ && batch.empty() && ring_->pending() == 0;
      if (ended_) break;
    }
    const bool idle = batch.empty();
    while (!batch.empty()) {
      // Taken out first, so that what a task holds (an open file) is let go before the next one runs.
      const Task task = std::move(batch.front());
      batch.pop_front();
      task();
    }
    // After tasks it must not wait: they may have posted more, or submitted what Poll has yet to hand to the kernel.
    ring_->Poll(/*wait=*/idle);
  }
  ring_.reset();
}

}  // namespace neve::storage
