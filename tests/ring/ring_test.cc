// What a Ring promises, on both engines.
#include "ring/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/os/io_hooks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace neve::ring {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes RandomBytes(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Installs itself for its lifetime. `before` decides; the defaults let everything through.
class Hooks : public os::IoHooks {
 public:
  Hooks() { os::SetIoHooks(this); }
  ~Hooks() override { os::SetIoHooks(nullptr); }
  os::CallVerdict Before(const os::CallInfo& info) override {
    std::lock_guard lock(mutex_);
    ++in_kernel_;
    in_kernel_max = std::max(in_kernel_max, in_kernel_);
    calls.push_back(info);
    const os::CallVerdict verdict = before ? before(info) : os::CallVerdict{};
    if (verdict.error_number != 0) --in_kernel_;
    return verdict;
  }
  void After(const os::CallInfo& info, const void* data) override {
    std::lock_guard lock(mutex_);
    --in_kernel_;
    if (info.call != os::Call::kPwrite) return;
    const auto* const bytes = static_cast<const std::byte*>(data);
    written[info.offset] = Bytes(bytes, bytes + info.length);
  }

  std::function<os::CallVerdict(const os::CallInfo&)> before;
  std::vector<os::CallInfo> calls;
  std::map<uint64_t, Bytes> written;   // by offset, from After
  int in_kernel_max = 0;

 private:
  std::mutex mutex_;
  int in_kernel_ = 0;
};

class RingTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "neve-ring-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    file_ = OpenFile("file", O_RDWR | O_CREAT);
    ring_ = Create();
  }
  void TearDown() override {
    ring_.reset();
    for (const std::string& path : paths_) ::unlink(path.c_str());
    ::rmdir(folder_.c_str());
  }

  std::unique_ptr<Ring> Create(int depth = 8) {
    absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({.depth = depth, .engine = GetParam(), .threads = 3});
    EXPECT_TRUE(ring.ok()) << ring.status();
    return std::move(ring).value();
  }
  os::File OpenFile(const std::string& name, int flags) {
    paths_.push_back(folder_ + "/" + name);
    absl::StatusOr<os::File> file = os::Open(paths_.back(), flags);
    EXPECT_TRUE(file.ok()) << file.status();
    return std::move(file).value();
  }

  using Outcome = std::optional<absl::StatusOr<uint64_t>>;
  static Done Into(Outcome& outcome) {
    return [&outcome](absl::StatusOr<uint64_t> result) {
      EXPECT_FALSE(outcome.has_value()) << "completed twice";
      outcome = std::move(result);
    };
  }
  absl::StatusOr<uint64_t> Await(Outcome& outcome) {
    while (!outcome.has_value()) ring_->Poll(true);
    return *outcome;
  }
  absl::StatusOr<uint64_t> Write(const os::File& file, uint64_t offset, std::span<const std::byte> source) {
    Outcome outcome;
    ring_->Write(file, offset, source, Into(outcome));
    return Await(outcome);
  }
  absl::StatusOr<uint64_t> Read(const os::File& file, uint64_t offset, std::span<std::byte> target) {
    Outcome outcome;
    ring_->Read(file, offset, target, Into(outcome));
    return Await(outcome);
  }
  absl::StatusOr<uint64_t> Fdatasync(const os::File& file) {
    Outcome outcome;
    ring_->Fdatasync(file, Into(outcome));
    return Await(outcome);
  }
  void ExpectRoundTrip(const os::File& file, uint64_t offset, std::span<const std::byte> source) {
    const absl::StatusOr<uint64_t> written = Write(file, offset, source);
    ASSERT_TRUE(written.ok()) << written.status();
    ASSERT_EQ(*written, source.size());
    Bytes direct(source.size());
    ASSERT_TRUE(os::ReadAt(file, offset, direct).ok());
    ASSERT_TRUE(std::ranges::equal(direct, source)) << source.size() << " bytes at " << offset;
    Bytes target(source.size());
    const absl::StatusOr<uint64_t> read = Read(file, offset, target);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, source.size());
    ASSERT_TRUE(std::ranges::equal(target, source)) << source.size() << " bytes at " << offset;
  }

  // Runs `body` in a forked child; what it returns is the child's exit status.
  static int InChild(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);   // a hang is a failure, not a hanging test
      ::_exit(body());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  std::string folder_;
  std::vector<std::string> paths_;
  os::File file_;
  std::unique_ptr<Ring> ring_;
};

TEST_P(RingTest, SaysWhichEngineItIs) { EXPECT_EQ(ring_->engine(), GetParam()); }

TEST_P(RingTest, MovesWholeTransfersAtManySizesAndOffsets) {
  const Bytes source = RandomBytes(9 << 20, 1);
  for (const uint64_t bytes : {1, 511, 512, 4095, 4096, 4097, 65'536, 1'000'003, 9 << 20}) {
    for (const uint64_t offset : {0, 1, 4096, 123'457}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, offset, std::span(source).first(bytes)));
    }
  }
}

TEST_P(RingTest, AnEmptyTransferCompletesWithZero) {
  EXPECT_EQ(Write(file_, 10, {}).value(), 0u);
  EXPECT_EQ(Read(file_, 10, {}).value(), 0u);
}

TEST_P(RingTest, MovesMemoryOfARegisteredRegionAndOfNone) {
  Bytes region = RandomBytes(3 << 20, 2);
  const absl::Status registered = ring_->RegisterRegion(region);
  EXPECT_TRUE(registered.ok()) << registered;
  EXPECT_TRUE(ring_->RegisterRegion(region).ok()) << "the second time is the same region";
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 0, region));
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 77, std::span(region).subspan(4000, 100'000)));
  // Reads into the region too.
  const Bytes other = RandomBytes(1 << 20, 3);
  ASSERT_TRUE(os::WriteAt(file_, 0, other).ok());
  ASSERT_TRUE(Read(file_, 0, std::span(region).subspan(99, other.size())).ok());
  EXPECT_TRUE(std::equal(other.begin(), other.end(), region.begin() + 99));
  // Half in, half out: the allocation is one, the registered part ends in its middle.
  ring_->UnregisterRegion(region);
  EXPECT_TRUE(ring_->RegisterRegion(std::span(region).first(1 << 20)).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 0, std::span(region).subspan((1 << 20) - 1000, 2000)));
  ring_->UnregisterRegion(std::span(region).first(1 << 20));
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 0, region));
}

TEST_P(RingTest, ATransferAcrossTheBorderOfTwoRegisteredBuffersIsWhole) {
  // One buffer of the kernel holds 1 GiB. Few of these pages are ever touched, but all are pinned.
  const uint64_t region_bytes = (uint64_t{1} << 30) + (1 << 20);
  void* const mapped = ::mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::span<std::byte> region(static_cast<std::byte*>(mapped), region_bytes);
  Bytes source = RandomBytes(300'000, 4);
  std::copy(source.begin(), source.end(), region.begin() + (uint64_t{1} << 30) - 100'000);
  // A GiB of zero pages cannot be pinned without making them, so a refusal for want of memory is fine as well.
  const absl::Status registered = ring_->RegisterRegion(region);
  EXPECT_TRUE(registered.ok() || absl::IsResourceExhausted(registered)) << registered;
  ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, 5, region.subspan((uint64_t{1} << 30) - 100'000, source.size())));
  ring_->UnregisterRegion(region);
  ::munmap(mapped, region_bytes);
}

TEST_P(RingTest, NeverHasMoreThanDepthOperationsInTheKernel) {
  for (const int depth : {1, 2, 5}) {
    ring_ = Create(depth);
    const Bytes source = RandomBytes(1 << 16, 5);
    int completed = 0;
    {
      Hooks hooks;
      for (int i = 0; i < 40; ++i) {
        ring_->Write(file_, i << 16, source, [&](absl::StatusOr<uint64_t> result) {
          EXPECT_TRUE(result.ok()) << result.status();
          ++completed;
        });
      }
      EXPECT_EQ(ring_->pending(), 40);
      while (ring_->pending() > 0) ring_->Poll(true);
      EXPECT_LE(hooks.in_kernel_max, depth);
      EXPECT_GE(hooks.in_kernel_max, 1);
    }
    EXPECT_EQ(completed, 40);
  }
}

TEST_P(RingTest, QueuedOperationsBeginInTheOrderOfSubmission) {
  ring_ = Create(1);
  const Bytes source(100);
  Hooks hooks;
  for (int i = 0; i < 20; ++i) ring_->Write(file_, 1000 * i, source, [](absl::StatusOr<uint64_t>) {});
  while (ring_->pending() > 0) ring_->Poll(true);
  ASSERT_EQ(hooks.calls.size(), 20u);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(hooks.calls[i].offset, 1000 * i);
}

TEST_P(RingTest, ACompletionMaySubmit) {
  const Bytes source = RandomBytes(5000, 6);
  int left = 50;
  std::function<void(absl::StatusOr<uint64_t>)> next = [&](absl::StatusOr<uint64_t> result) {
    ASSERT_TRUE(result.ok()) << result.status();
    if (--left > 0) ring_->Write(file_, 5000 * left, source, next);
  };
  ring_->Write(file_, 0, source, next);
  while (left > 0) ring_->Poll(true);
  EXPECT_EQ(ring_->pending(), 0);
}

TEST_P(RingTest, AReadThatMeetsTheEndGivesWhatIsThere) {
  ASSERT_TRUE(Write(file_, 0, RandomBytes(10'000, 7)).ok());
  Bytes target(20'000);
  EXPECT_EQ(Read(file_, 4'000, target).value(), 6'000u);
  EXPECT_EQ(Read(file_, 10'000, target).value(), 0u);
  EXPECT_EQ(Read(file_, 1'000'000, target).value(), 0u);
}

TEST_P(RingTest, ShortTransfersAreContinued) {
  const Bytes source = RandomBytes(100'000, 8);
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.shorten_to = 999}; };
  EXPECT_EQ(Write(file_, 3, source).value(), source.size());
  Bytes target(source.size());
  EXPECT_EQ(Read(file_, 3, target).value(), source.size());
  EXPECT_EQ(target, source);
  EXPECT_EQ(hooks.calls.size(), 2 * (source.size() / 999 + 1));
  // The hooks saw every byte that was written.
  uint64_t at = 3;
  for (const auto& [offset, bytes] : hooks.written) {
    ASSERT_EQ(offset, at);
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), source.begin() + static_cast<int64_t>(offset - 3)));
    at += bytes.size();
  }
  EXPECT_EQ(at, 3 + source.size());
}

TEST_P(RingTest, AWriteWithoutProgressIsAnError) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.shorten_to = 0}; };
  const absl::Status status = Write(file_, 0, Bytes(100)).status();
  EXPECT_EQ(ErrnoOf(status), EIO) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no progress"));
}

TEST_P(RingTest, InterruptedAndBusyTransfersAreRetried) {
  const Bytes source = RandomBytes(10'000, 9);
  Hooks hooks;
  int left = 0;
  hooks.before = [&](const os::CallInfo&) {
    return left > 0 ? os::CallVerdict{.error_number = left-- % 2 == 0 ? EAGAIN : EINTR} : os::CallVerdict{};
  };
  left = 20;
  EXPECT_EQ(Write(file_, 0, source).value(), source.size());
  left = 20;
  EXPECT_TRUE(Fdatasync(file_).ok());
  left = 20;
  Bytes target(source.size());
  EXPECT_EQ(Read(file_, 0, target).value(), source.size());
  EXPECT_EQ(target, source);
}

TEST_P(RingTest, ADeviceThatIsAlwaysBusyIsAnError) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.error_number = EAGAIN}; };
  EXPECT_EQ(ErrnoOf(Write(file_, 0, Bytes(100)).status()), EAGAIN);
}

TEST_P(RingTest, DeviceErrorsNameFileOffsetAndLength) {
  for (const os::Call call : {os::Call::kPwrite, os::Call::kPread, os::Call::kFdatasync}) {
    Hooks hooks;
    hooks.before = [&](const os::CallInfo& info) { return os::CallVerdict{.error_number = info.call == call ? EIO : 0}; };
    Bytes memory(600);
    const absl::Status write = Write(file_, 70, memory).status(), read = Read(file_, 70, memory).status(),
                       sync = Fdatasync(file_).status();
    EXPECT_EQ(ErrnoOf(write), call == os::Call::kPwrite ? EIO : 0);
    EXPECT_EQ(ErrnoOf(read), call == os::Call::kPread ? EIO : 0);
    EXPECT_EQ(ErrnoOf(sync), call == os::Call::kFdatasync ? EIO : 0);
    const absl::Status failed = !write.ok() ? write : !read.ok() ? read : sync;
    EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr(file_.path));
    if (call != os::Call::kFdatasync) {
      EXPECT_THAT(std::string(failed.message()), HasSubstr("of 600 bytes at 70 of"));
    }
  }
}

TEST_P(RingTest, AnErrorInTheMiddleOfAWriteIsTheOutcome) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo& info) {
    return info.offset < 5000 ? os::CallVerdict{.shorten_to = 1000} : os::CallVerdict{.error_number = EIO};
  };
  EXPECT_EQ(ErrnoOf(Write(file_, 0, Bytes(10'000)).status()), EIO);
  EXPECT_EQ(ring_->pending(), 0);
}

TEST_P(RingTest, AFullPlaceIsExhaustedAndSaysWhatIsFree) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.error_number = ENOSPC}; };
  const absl::Status status = Write(file_, 0, Bytes(100)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes are free there"));
}

TEST_P(RingTest, AWriteBeyondTheLimitOfFileSizeIsExhausted) {
  const int result = InChild([this] {
    ::signal(SIGXFSZ, SIG_IGN);
    const ::rlimit limit = {50'000, 50'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    ring_.release();   // the parent's
    ring_ = Create();
    const absl::Status status = Write(file_, 0, Bytes(200'000)).status();
    if (ErrnoOf(status) != EFBIG) return 2;
    if (!absl::IsResourceExhausted(status)) return 3;
    return Write(file_, 0, Bytes(40'000)).ok() ? 0 : 4;
  });
  EXPECT_EQ(result, 0);
}

TEST_P(RingTest, ABadDescriptorIsAnErrorOfThatOperationOnly) {
  const os::File closed{os::UniqueFd(), "/nowhere"};
  const absl::Status status = Write(closed, 0, Bytes(10)).status();
  EXPECT_EQ(ErrnoOf(status), EBADF) << status;
  EXPECT_TRUE(Write(file_, 0, Bytes(10)).ok());
}

TEST_P(RingTest, AnOffsetThatNoFileHasIsRefused) {
  EXPECT_EQ(ErrnoOf(Write(file_, ~uint64_t{0}, Bytes(10)).status()), EOVERFLOW);
  EXPECT_EQ(ErrnoOf(Write(file_, uint64_t{1} << 63, Bytes(10)).status()), EOVERFLOW);
}

TEST_P(RingTest, OffsetsBeyondFourGiBAreExact) {
  const Bytes source = RandomBytes(70'000, 10);
  for (const uint64_t offset : {(uint64_t{2} << 30) - 100, (uint64_t{4} << 30) - 100, (uint64_t{9} << 30) + 1}) {
    ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip(file_, offset, source));
  }
}

TEST_P(RingTest, DirectFilesWork) {
  const os::File file = OpenFile("direct", O_RDWR | O_CREAT | O_DIRECT);
  const uint64_t bytes = 1 << 20;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, 2 * bytes));
  const std::span<std::byte> source(memory, bytes), target(memory + bytes, bytes);
  const Bytes content = RandomBytes(bytes, 11);
  std::copy(content.begin(), content.end(), source.begin());
  EXPECT_EQ(Write(file, 8192, source).value(), bytes);
  EXPECT_TRUE(Fdatasync(file).ok());
  EXPECT_EQ(Read(file, 8192, target).value(), bytes);
  EXPECT_TRUE(std::ranges::equal(target, content));
  {
    // Cut where a device can cut, and continued.
    Hooks hooks;
    hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.shorten_to = 100'000}; };
    EXPECT_EQ(Write(file, 0, source).value(), bytes);
    std::ranges::fill(target, std::byte{0});
    EXPECT_EQ(Read(file, 0, target).value(), bytes);
    EXPECT_TRUE(std::ranges::equal(target, content));
    EXPECT_GT(hooks.calls.size(), 20u);
  }
  // The end of the file lies off alignment: what is there comes back.
  ASSERT_TRUE(os::Ftruncate(file, 100'001).ok());
  EXPECT_EQ(Read(file, 4096, target).value(), 100'001u - 4096);
  std::free(memory);
}

TEST_P(RingTest, WakeBeforePollEndsTheNextPoll) {
  ring_->Wake();
  ring_->Wake();
  EXPECT_EQ(ring_->Poll(true), 0);
  EXPECT_EQ(ring_->Poll(false), 0);
}

TEST_P(RingTest, WakeFromAnotherThreadEndsAPoll) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> said = false;
    std::thread other([&] {
      said = true;
      ring_->Wake();
    });
    while (!said) ring_->Poll(true);
    other.join();
    ring_->Poll(false);
  }
}

TEST_P(RingTest, WakesAreNotLostBesideOperations) {
  const Bytes source = RandomBytes(4096, 12);
  std::atomic<int> messages = 0;
  std::thread other([&] {
    for (int i = 0; i < 2000; ++i) {
      ++messages;
      ring_->Wake();
    }
  });
  int completed = 0, submitted = 0;
  // Ends only if the Wake after the last message is seen.
  while (messages < 2000 || completed < submitted) {
    if (submitted < 500) {
      ++submitted;
      ring_->Write(file_, 0, source, [&](absl::StatusOr<uint64_t>) { ++completed; });
    }
    ring_->Poll(true);
  }
  other.join();
  EXPECT_EQ(completed, submitted);
}

TEST_P(RingTest, PollWithoutWaitingReturnsAtOnce) { EXPECT_EQ(ring_->Poll(false), 0); }

TEST_P(RingTest, TheOwnerMayBeAnotherThreadThanTheCreator) {
  const Bytes source = RandomBytes(4096, 13);
  std::thread owner([&] {
    EXPECT_TRUE(Write(file_, 0, source).ok());
    ring_.reset();
  });
  owner.join();
}

TEST_P(RingTest, TheDestructorWaitsForWhatIsInFlightAndClosesWhatIsQueued) {
  for (int polls = 0; polls < 3; ++polls) {
    ring_ = Create(2);
    const Bytes source = RandomBytes(1 << 20, 14);
    int ok = 0, closed = 0;
    for (int i = 0; i < 12; ++i) {
      ring_->Write(file_, i << 20, source, [&](absl::StatusOr<uint64_t> result) {
        result.ok() ? ++ok : absl::IsFailedPrecondition(result.status()) ? ++closed : 0;
      });
    }
    for (int i = 0; i < polls; ++i) ring_->Poll(false);
    ring_.reset();
    EXPECT_EQ(ok + closed, 12);
  }
}

TEST_P(RingTest, ASubmissionFromTheDestructorIsClosed) {
  absl::Status late;
  Ring* const ring = ring_.get();   // unique_ptr::reset clears the pointer before it destroys
  ring->Fdatasync(file_, [&, ring](absl::StatusOr<uint64_t>) {
    ring->Fdatasync(file_, [&](absl::StatusOr<uint64_t> result) { late = result.status(); });
  });
  ring_.reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
}

TEST_P(RingTest, AForkedChildMayDestroyItsCopyAndCannotUseIt) {
  const Bytes source = RandomBytes(1 << 20, 15);
  std::vector<Outcome> outcomes(6);
  for (int i = 0; i < 6; ++i) ring_->Write(file_, i << 20, source, Into(outcomes[i]));
  ring_->Poll(false);
  EXPECT_EQ(InChild([this] {
    ring_.reset();
    return 0;
  }), 0);
  EXPECT_EQ(InChild([this] {
    Outcome outcome;
    ring_->Write(file_, 0, {}, Into(outcome));
    ring_->Wake();
    while (!outcome.has_value()) ring_->Poll(true);
    ring_.reset();
    return absl::IsFailedPrecondition(outcome->status()) ? 0 : 1;
  }), 0);
  // The parent's goes on.
  for (Outcome& outcome : outcomes) EXPECT_TRUE(Await(outcome).ok());
}

TEST_P(RingTest, AThousandRandomOperationsLeaveWhatAModelHolds) {
  const uint64_t seed = std::random_device()();
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kAreaBytes = 1 << 16, kAreas = 16;   // one operation at a time in each area
  Bytes model(kAreaBytes * kAreas), region(kAreaBytes * kAreas);
  ASSERT_TRUE(os::Ftruncate(file_, model.size()).ok());
  ASSERT_TRUE(ring_->RegisterRegion(region).ok());
  Hooks hooks;
  std::mt19937_64 faults(seed + 1);
  hooks.before = [&](const os::CallInfo& info) {
    switch (faults() % 8) {
      case 0: return os::CallVerdict{.error_number = EINTR};
      case 1: return os::CallVerdict{.shorten_to = 1 + static_cast<int64_t>(faults() % 5000)};
      default: return os::CallVerdict{};
    }
  };
  std::vector<Bytes> outside(kAreas, Bytes(kAreaBytes));
  std::vector<bool> busy(kAreas, false);
  int completed = 0;
  for (int submitted = 0; submitted < 1000;) {
    const uint64_t area = random() % kAreas;
    if (busy[area]) {
      ring_->Poll(true);
      continue;
    }
    busy[area] = true;
    ++submitted;
    const uint64_t from = random() % kAreaBytes, bytes = random() % (kAreaBytes - from), offset = area * kAreaBytes + from;
    std::byte* const memory = random() % 2 == 0 ? region.data() + offset : outside[area].data() + from;
    if (random() % 2 == 0) {
      for (uint64_t i = 0; i < bytes; ++i) memory[i] = model[offset + i] = static_cast<std::byte>(random());
      ring_->Write(file_, offset, {memory, bytes}, [&, area, bytes](absl::StatusOr<uint64_t> result) {
        EXPECT_TRUE(result.ok() && *result == bytes) << result.status();
        busy[area] = false;
        ++completed;
      });
    } else {
      ring_->Read(file_, offset, {memory, bytes}, [&, area, bytes, offset, memory](absl::StatusOr<uint64_t> result) {
        EXPECT_TRUE(result.ok() && *result == bytes) << result.status();
        EXPECT_TRUE(std::equal(memory, memory + bytes, model.data() + offset)) << bytes << " bytes at " << offset;
        busy[area] = false;
        ++completed;
      });
    }
  }
  while (ring_->pending() > 0) ring_->Poll(true);
  EXPECT_EQ(completed, 1000);
  Bytes found(model.size());
  ASSERT_TRUE(os::ReadAt(file_, 0, found).ok());
  EXPECT_EQ(found, model);
}

INSTANTIATE_TEST_SUITE_P(Engines, RingTest,
                         ::testing::ValuesIn(ProbeUring("").ok() ? std::vector<std::string>{"uring", "threads"}
                                                                 : std::vector<std::string>{"threads"}),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace neve::ring
