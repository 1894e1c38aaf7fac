// The fixture of the ring's tests: a folder, a file, a ring of the engine under test, and ways to wait for outcomes.
#ifndef NEVE_TESTS_RING_RING_FIXTURE_H_
#define NEVE_TESTS_RING_RING_FIXTURE_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/os/io_hooks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ring/ring.h"

namespace neve::ring {

using Bytes = std::vector<std::byte>;

inline Bytes RandomBytes(uint64_t count, uint64_t seed) {
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

// The engines that work here.
inline std::vector<std::string> Engines() {
  return ProbeUring("").ok() ? std::vector<std::string>{"uring", "threads"} : std::vector<std::string>{"threads"};
}

}  // namespace neve::ring

#endif  // NEVE_TESTS_RING_RING_FIXTURE_H_
