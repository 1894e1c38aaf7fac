// What a Ring does when transfers come back short, interrupted or refused, on both engines.
#include <sys/resource.h>

#include <csignal>
#include <cstdio>

#include "ring/ring_fixture.h"

namespace neve::ring {
namespace {

using ::testing::HasSubstr;

class RingFaultsTest : public RingTest {};

TEST_P(RingFaultsTest, ShortTransfersAreContinued) {
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

TEST_P(RingFaultsTest, AWriteWithoutProgressIsAnError) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.shorten_to = 0}; };
  const absl::Status status = Write(file_, 0, Bytes(100)).status();
  EXPECT_EQ(ErrnoOf(status), EIO) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no progress"));
}

TEST_P(RingFaultsTest, InterruptedAndBusyTransfersAreRetried) {
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

TEST_P(RingFaultsTest, ADeviceThatIsAlwaysBusyIsAnError) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.error_number = EAGAIN}; };
  EXPECT_EQ(ErrnoOf(Write(file_, 0, Bytes(100)).status()), EAGAIN);
}

TEST_P(RingFaultsTest, DeviceErrorsNameFileOffsetAndLength) {
  for (const os::Call call : {os::Call::kPwrite, os::Call::kPread, os::Call::kFdatasync}) {
    Hooks hooks;
    hooks.before = [&](const os::CallInfo& info) {
      return os::CallVerdict{.error_number = info.call == call ? EIO : 0};
    };
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

TEST_P(RingFaultsTest, AnErrorInTheMiddleOfAWriteIsTheOutcome) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo& info) {
    return info.offset < 5000 ? os::CallVerdict{.shorten_to = 1000} : os::CallVerdict{.error_number = EIO};
  };
  EXPECT_EQ(ErrnoOf(Write(file_, 0, Bytes(10'000)).status()), EIO);
  EXPECT_EQ(ring_->pending(), 0);
}

TEST_P(RingFaultsTest, AFullPlaceIsExhaustedAndSaysWhatIsFree) {
  Hooks hooks;
  hooks.before = [](const os::CallInfo&) { return os::CallVerdict{.error_number = ENOSPC}; };
  const absl::Status status = Write(file_, 0, Bytes(100)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes are free there"));
}

TEST_P(RingFaultsTest, AWriteBeyondTheLimitOfFileSizeIsExhausted) {
  ring_.reset();
  const int result = InChild([this] {
    ::signal(SIGXFSZ, SIG_IGN);
    const ::rlimit limit = {50'000, 50'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    ring_ = Create();
    const absl::Status status = Write(file_, 0, Bytes(200'000)).status();
    if (ErrnoOf(status) != EFBIG) return 2;
    if (!absl::IsResourceExhausted(status)) return 3;
    return Write(file_, 0, Bytes(40'000)).ok() ? 0 : 4;
  });
  EXPECT_EQ(result, 0);
}

TEST_P(RingFaultsTest, ABadDescriptorIsAnErrorOfThatOperationOnly) {
  const os::File closed{os::UniqueFd(), "/nowhere"};
  const absl::Status status = Write(closed, 0, Bytes(10)).status();
  EXPECT_EQ(ErrnoOf(status), EBADF) << status;
  EXPECT_TRUE(Write(file_, 0, Bytes(10)).ok());
}

TEST_P(RingFaultsTest, AnOffsetThatNoFileHasIsRefused) {
  EXPECT_EQ(ErrnoOf(Write(file_, ~uint64_t{0}, Bytes(10)).status()), EOVERFLOW);
  EXPECT_EQ(ErrnoOf(Write(file_, uint64_t{1} << 63, Bytes(10)).status()), EOVERFLOW);
}

TEST_P(RingFaultsTest, AThousandRandomOperationsLeaveWhatAModelHolds) {
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
    const uint64_t from = random() % kAreaBytes, bytes = random() % (kAreaBytes - from);
    const uint64_t offset = area * kAreaBytes + from;
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

INSTANTIATE_TEST_SUITE_P(Engines, RingFaultsTest, ::testing::ValuesIn(Engines()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace neve::ring
