// The io_uring engine.
//
// Operations wait in a queue of our own until one of `depth` places is free; a place has at most one entry in the
// kernel at a time, so neither the submission nor the completion queue can overflow. A short transfer goes back into
// the kernel from the same place. Wake() writes to an eventfd that the ring polls beside the operations.
//
// Should the kernel stop taking submissions (a filter that came later), the engine breaks: everything pending and to
// come completes with that error, and nothing hangs.
#include "ring/engines.h"

#if NEVE_HAVE_URING

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "base/os/thread.h"
#include "base/os/unique_handle.h"
#include "ring/operation.h"
#include "ring/uring_buffers.h"
#include "ring/uring_setup.h"

namespace neve::ring {
namespace {

constexpr uint64_t kWakeUserData = ~uint64_t{0};
constexpr unsigned kSpareEntries = 2;   // beside the operations: the poll of the eventfd

class UringEngine final : public Ring {
 public:
  UringEngine(const io_uring& ring, os::UniqueFd wake_fd, int depth)
      : ring_(ring), wake_fd_(std::move(wake_fd)), places_(depth), fork_generation_(os::ForkGeneration()) {
    for (int place = depth; place-- > 0;) free_places_.push_back(place);
  }
  ~UringEngine() override;

  std::string_view engine() const override { return "uring"; }
  absl::Status RegisterRegion(std::span<std::byte> region) override;
  void UnregisterRegion(std::span<std::byte> region) override;

  void Write(const os::File& file, uint64_t offset, std::span<const std::byte> source, Done done) override {
    waiting_.push_back(MakeWrite(file, offset, source, std::move(done)));
  }
  void Read(const os::File& file, uint64_t offset, std::span<std::byte> target, Done done) override {
    waiting_.push_back(MakeRead(file, offset, target, std::move(done)));
  }
  void Fdatasync(const os::File& file, Done done) override { waiting_.push_back(MakeFdatasync(file, std::move(done))); }

  int Poll(bool wait) override;
  void Wake() override;
  int pending() const override { return static_cast<int>(waiting_.size() + finished_.size()) + in_kernel_; }

 private:
  struct Finished {
    Done done;
    absl::StatusOr<uint64_t> outcome;
  };

  bool IsForkedCopy() const { return fork_generation_ != os::ForkGeneration(); }
  void BecomeOwned();
  void Break(absl::Status status);
  void StartWaiting();
  void Submit(int place);
  void Settle(int place, int64_t result);
  void Finish(int place, absl::StatusOr<uint64_t> outcome);
  void ArmWake();
  bool Enter(bool wait);
  bool Reap();
  void WaitForWakeAlone();
  void DrainWake();
  int RunFinished();

  io_uring ring_;
  os::UniqueFd wake_fd_;
  UringBuffers buffers_;
  std::deque<Operation> waiting_;     // not in the kernel yet, in order
  std::vector<Operation> places_;     // in the kernel, or free
  std::vector<int> free_places_;
  std::vector<Finished> finished_;    // `done` is still to be called
  int in_kernel_ = 0;
  bool owned_ = false;                // enabled by the owner's thread
  bool closing_ = false;
  bool wake_armed_ = false;
  absl::Status broken_;               // why nothing more goes to the kernel
  const uint64_t fork_generation_;
};

UringEngine::~UringEngine() {
  if (IsForkedCopy()) {
    // The operations and their completions are the parent's; leaving here does nothing to its ring.
    io_uring_queue_exit(&ring_);
    return;
  }
  closing_ = true;
  while (pending() > 0) Poll(true);
  io_uring_queue_exit(&ring_);
}

void UringEngine::BecomeOwned() {
  if (IsForkedCopy()) {
    if (broken_.ok()) Break(Closed("a ring is not inherited by a forked process; open neve anew there"));
  } else if (!owned_ && broken_.ok()) {
    owned_ = true;
    if (absl::Status status = EnableUring(&ring_); !status.ok()) Break(std::move(status));
  }
}

absl::Status UringEngine::RegisterRegion(std::span<std::byte> region) {
  BecomeOwned();
  NEVE_RETURN_IF_ERROR(broken_);
  return buffers_.Register(&ring_, region);
}

void UringEngine::UnregisterRegion(std::span<std::byte> region) {
  BecomeOwned();
  if (broken_.ok()) buffers_.Unregister(&ring_, region);
}

// Operations that the kernel already has cannot be waited for any more either; their memory is handed back all the
// same, with an error that says nothing of what they did.
void UringEngine::Break(absl::Status status) {
  broken_ = std::move(status);
  std::vector<bool> is_free(places_.size(), false);
  for (const int place : free_places_) is_free[place] = true;
  for (size_t place = 0; place < places_.size(); ++place) {
    if (!is_free[place]) Finish(static_cast<int>(place), Annotate(broken_, Describe(places_[place])));
  }
}

void UringEngine::StartWaiting() {
  const bool refuse = closing_ || !broken_.ok();
  while (!waiting_.empty() && (refuse || !free_places_.empty())) {
    Operation operation = std::move(waiting_.front());
    waiting_.pop_front();
    if (refuse) {
      const absl::Status why = closing_ ? Closed("the ring was closed before this operation began") : broken_;
      finished_.push_back({std::move(operation.done), Annotate(why, Describe(operation))});
      continue;
    }
    const int place = free_places_.back();
    free_places_.pop_back();
    ++in_kernel_;
    places_[place] = std::move(operation);
    Submit(place);
  }
}

// Puts the next transfer of the place into the submission queue. What the hooks refuse is settled here, until a
// transfer is let through or the operation is over.
void UringEngine::Submit(int place) {
  Operation& operation = places_[place];
  std::optional<UringBuffers::Place> buffer;
  while (true) {
    if (operation.kind != Operation::Kind::kFdatasync) {
      buffer = buffers_.Find(operation.transfer_memory(), operation.length - operation.moved);
    }
    int64_t result = 0;
    if (Prepare(operation, buffer ? buffer->bytes : kTransferBytesMax, &result)) break;
    absl::StatusOr<uint64_t> outcome = uint64_t{0};
    if (Absorb(operation, result, &outcome)) return Finish(place, std::move(outcome));
  }
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);   // one a place, so there is always one
  const int fd = operation.file->fd.get();
  void* const memory = operation.transfer_memory();
  const auto bytes = static_cast<unsigned>(operation.transfer_bytes);
  switch (operation.kind) {
    case Operation::Kind::kWrite:
      if (buffer) {
        io_uring_prep_write_fixed(sqe, fd, memory, bytes, operation.transfer_offset(), buffer->index);
      } else {
        io_uring_prep_write(sqe, fd, memory, bytes, operation.transfer_offset());
      }
      break;
    case Operation::Kind::kRead:
      if (buffer) {
        io_uring_prep_read_fixed(sqe, fd, memory, bytes, operation.transfer_offset(), buffer->index);
      } else {
        io_uring_prep_read(sqe, fd, memory, bytes, operation.transfer_offset());
      }
      break;
    case Operation::Kind::kFdatasync: io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC); break;
  }
  io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(place));
}

// Takes the kernel's word on the transfer of the place.
void UringEngine::Settle(int place, int64_t result) {
  absl::StatusOr<uint64_t> outcome = uint64_t{0};
  if (Absorb(places_[place], result, &outcome)) return Finish(place, std::move(outcome));
  Submit(place);
}

void UringEngine::Finish(int place, absl::StatusOr<uint64_t> outcome) {
  finished_.push_back({std::move(places_[place].done), std::move(outcome)});
  places_[place] = Operation();
  free_places_.push_back(place);
  --in_kernel_;
}

void UringEngine::ArmWake() {
  if (wake_armed_) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  io_uring_prep_poll_add(sqe, wake_fd_.get(), POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeUserData);
  wake_armed_ = true;
}

// Hands the submission queue to the kernel; with `wait`, until something completed. False when the engine broke.
bool UringEngine::Enter(bool wait) {
  for (int attempts = 0;; ++attempts) {
    const int result = wait ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit_and_get_events(&ring_);
    // Signals of the host end a wait; the next round goes on with it. The other two are shortages that pass.
    if (result == -EINTR) continue;
    if ((result == -EAGAIN || result == -EBUSY) && attempts < kRetriesMax) {
      if (io_uring_cq_ready(&ring_) > 0) return true;
      continue;
    }
    if (result < 0) {
      Break(UringRefused("io_uring_enter", -result));
      return false;
    }
    if (io_uring_sq_ready(&ring_) == 0) return true;
  }
}

// Takes every completion that is there. True when one of them was the eventfd's.
bool UringEngine::Reap() {
  bool woken = false;
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
    const uint64_t user_data = io_uring_cqe_get_data64(cqe);
    const int64_t result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (user_data != kWakeUserData) {
      Settle(static_cast<int>(user_data), result);
      continue;
    }
    wake_armed_ = false;
    woken = true;
    DrainWake();
  }
  return woken;
}

// A broken ring has nothing in flight, but its owner may still wait for a message.
void UringEngine::WaitForWakeAlone() {
  pollfd entry = {wake_fd_.get(), POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  DrainWake();
}

// Several calls of Wake() are one.
void UringEngine::DrainWake() {
  uint64_t count;
  while (::read(wake_fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

int UringEngine::RunFinished() {
  // Completions may submit anew, so they run from a list of their own.
  std::vector<Finished> finished;
  finished.swap(finished_);
  for (Finished& each : finished) each.done(std::move(each.outcome));
  return static_cast<int>(finished.size());
}

int UringEngine::Poll(bool wait) {
  BecomeOwned();
  StartWaiting();
  while (broken_.ok()) {
    const bool block = wait && finished_.empty();
    if (block) ArmWake();
    if (block || in_kernel_ > 0) {
      if (!Enter(block)) break;
    }
    const bool woken = Reap();
    StartWaiting();
    if (!block || woken || !finished_.empty()) break;
  }
  StartWaiting();
  if (!broken_.ok() && wait && finished_.empty() && !IsForkedCopy()) WaitForWakeAlone();
  const int count = RunFinished();
  // What the completions asked for, and continued transfers, start now and not at the next call.
  StartWaiting();
  if (broken_.ok() && io_uring_sq_ready(&ring_) > 0) Enter(false);
  return count;
}

void UringEngine::Wake() {
  if (IsForkedCopy()) return;   // the eventfd is the parent's
  const uint64_t one = 1;
  while (::write(wake_fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ring>> CreateUringEngine(const Options& options) {
  os::UniqueFd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return ErrnoStatus(errno, "eventfd for an io_uring engine");
  io_uring ring;
  NEVE_RETURN_IF_ERROR(SetUpUring(static_cast<unsigned>(options.depth) + kSpareEntries, &ring));
  return std::make_unique<UringEngine>(ring, std::move(wake_fd), options.depth);
}

}  // namespace neve::ring

#else

namespace neve::ring {

absl::StatusOr<std::unique_ptr<Ring>> CreateUringEngine(const Options&) {
  return Unsupported("neve was built without liburing");
}

}  // namespace neve::ring

#endif
