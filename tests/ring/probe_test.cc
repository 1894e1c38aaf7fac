// The choice of an engine where io_uring is refused: by filters as containers install them, by limits, by the user.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ring/ring.h"

namespace neve::ring {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Bytes = std::vector<std::byte>;

// Runs `body` in a forked child and returns the text it gives back; "died" when it gave none.
std::string InChild(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);   // a hang is a failure, not a hanging test
    const std::string text = body();
    if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, got);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "died";
}

// Makes one system call fail with `error_number` in this process from now on.
bool Refuse(int call, int error_number) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Writes, syncs and reads through the ring; "" when the bytes came back.
std::string RoundTrip(Ring& ring, Bytes& memory) {
  std::string path = ::testing::TempDir() + "neve-probe-XXXXXX";
  os::File file{os::UniqueFd(::mkostemp(path.data(), O_CLOEXEC)), path};
  if (!file.fd.valid()) return "no file";
  ::unlink(path.c_str());
  const Bytes wanted = memory;
  std::string failure;
  const auto await = [&](const std::function<void(Done)>& submit) {
    std::optional<absl::StatusOr<uint64_t>> outcome;
    submit([&](absl::StatusOr<uint64_t> result) { outcome = std::move(result); });
    while (!outcome.has_value()) ring.Poll(true);
    if (!outcome->ok() && failure.empty()) failure = outcome->status().ToString();
  };
  await([&](Done done) { ring.Write(file, 0, memory, std::move(done)); });
  await([&](Done done) { ring.Fdatasync(file, std::move(done)); });
  std::ranges::fill(memory, std::byte{0});
  await([&](Done done) { ring.Read(file, 0, memory, std::move(done)); });
  if (failure.empty() && memory != wanted) failure = "other bytes came back";
  return failure;
}

// Creates a ring under what `refuse` did, uses it, and says: engine | reason | failure of the use.
std::string ChoiceUnder(const std::function<bool()>& refuse, const Options& options = {}) {
  return InChild([&]() -> std::string {
    ::unsetenv("NEVE_IO");
    if (!refuse()) return "the refusal could not be set up";
    std::string reason;
    absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create(options, &reason);
    if (!ring.ok()) return "error | " + ring.status().ToString();
    Bytes memory(300'000, std::byte{42});
    return std::string((*ring)->engine()) + " | " + reason + " | " + RoundTrip(**ring, memory);
  });
}

// Threads were chosen, the reason is one line that holds `reason`, and the bytes came back. Where io_uring was not
// built in, that is the reason, whatever the filter.
void ExpectThreads(const std::string& choice, const std::string& reason) {
  const bool built_in = !absl::IsUnimplemented(ProbeUring(""));
  EXPECT_TRUE(choice.starts_with("threads | ")) << choice;
  EXPECT_THAT(choice, HasSubstr(built_in ? reason : "built without liburing"));
  EXPECT_THAT(choice, Not(HasSubstr("\n")));
  EXPECT_TRUE(choice.ends_with(" | ")) << choice;
}

TEST(ProbeTest, MEM_02_SetupThatIsForbiddenGivesThreads) {
  ExpectThreads(ChoiceUnder([] { return Refuse(__NR_io_uring_setup, EPERM); }),
                "io_uring_setup: Operation not permitted; a container's filter or the sysctl");
}

TEST(ProbeTest, MEM_02_SetupThatIsHiddenGivesThreads) {
  ExpectThreads(ChoiceUnder([] { return Refuse(__NR_io_uring_setup, ENOSYS); }),
                "io_uring_setup: Function not implemented");
}

TEST(ProbeTest, MEM_02_EnterThatIsForbiddenThoughSetupWorksGivesThreads) {
  ExpectThreads(ChoiceUnder([] { return Refuse(__NR_io_uring_enter, EPERM); }),
                "io_uring_enter: Operation not permitted");
}

TEST(ProbeTest, MEM_02_RegisterThatIsForbiddenGivesThreads) {
  ExpectThreads(ChoiceUnder([] { return Refuse(__NR_io_uring_register, EPERM); }),
                "Operation not permitted");
}

TEST(ProbeTest, MEM_02_AForcedEngineThatIsForbiddenIsAnError) {
  const std::string choice = ChoiceUnder([] { return Refuse(__NR_io_uring_setup, EPERM); }, {.engine = "uring"});
  EXPECT_THAT(choice, HasSubstr("error | UNAVAILABLE: io_uring was asked for by the options and does not work here"));
}

TEST(ProbeTest, MEM_02_AFilterThatComesLaterFailsOperationsAndHangsNothing) {
  const std::string result = InChild([]() -> std::string {
    absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({});
    if (!ring.ok()) return ring.status().ToString();
    if ((*ring)->engine() != "uring") return "no uring here";
    Bytes memory(4096);
    std::string failure = RoundTrip(**ring, memory);
    if (!failure.empty()) return failure;
    if (!Refuse(__NR_io_uring_enter, EPERM)) return "no filter";
    failure = RoundTrip(**ring, memory);
    (*ring)->Wake();
    (*ring)->Poll(true);
    return failure + " | pending " + std::to_string((*ring)->pending());
  });
  if (ProbeUring("").ok()) {
    EXPECT_THAT(result, HasSubstr("UNAVAILABLE: write of 4096 bytes"));
    EXPECT_THAT(result, HasSubstr("io_uring_enter: Operation not permitted"));
    EXPECT_TRUE(result.ends_with("pending 0")) << result;
  } else {
    EXPECT_EQ(result, "no uring here");
  }
}

TEST(ProbeTest, WhatMayNotBeLockedIsTransferredUnregistered) {
  const std::string result = InChild([]() -> std::string {
    const ::rlimit limit = {64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no limit";
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) return "no setuid";
    absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({});
    if (!ring.ok()) return ring.status().ToString();
    Bytes memory(8 << 20, std::byte{7});
    const absl::Status status = (*ring)->RegisterRegion(memory);
    return std::string((*ring)->engine()) + " | " + status.ToString() + " | " + RoundTrip(**ring, memory);
  });
  EXPECT_THAT(result, AnyOf(HasSubstr("threads | OK"), HasSubstr("limit of locked memory is 65536 bytes: ulimit -l")));
  EXPECT_TRUE(result.ends_with(" | ")) << result;
}

TEST(ProbeTest, WithoutDescriptorsThreadsAreChosen) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's runtime needs descriptors of its own";
#endif
  const std::string result = InChild([]() -> std::string {
    const ::rlimit limit = {3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "no limit";
    std::string reason;
    absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({}, &reason);
    if (!ring.ok()) return ring.status().ToString();
    return std::string((*ring)->engine()) + " | " + reason;
  });
  EXPECT_TRUE(result.starts_with("threads | ")) << result;
}

TEST(ProbeTest, WithoutThreadsTheThreadEngineIsExhausted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs a user of its own, whose processes can be limited";
  const std::string result = InChild([]() -> std::string {
    const ::rlimit limit = {0, 0};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return "no limit";
    if (::setuid(65534) != 0) return "no setuid";
    return Ring::Create({.engine = "threads"}).status().ToString();
  });
  EXPECT_THAT(result, HasSubstr("RESOURCE_EXHAUSTED: no thread could be started for file I/O"));
}

TEST(ProbeTest, MemoryWithoutAccessCannotBeRegistered) {
  absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({});
  ASSERT_TRUE(ring.ok()) << ring.status();
  // Reserved and without access, so that no other mapping can come to lie there.
  void* const nowhere = ::mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nowhere, MAP_FAILED);
  const absl::Status status = (*ring)->RegisterRegion({static_cast<std::byte*>(nowhere), 1 << 20});
  ::munmap(nowhere, 1 << 20);
  EXPECT_EQ(status.ok(), (*ring)->engine() == "threads") << status;
  Bytes memory(100'000, std::byte{3});
  EXPECT_THAT(RoundTrip(**ring, memory), IsEmpty());
}

TEST(ProbeTest, MoreThanTheTableHoldsIsExhausted) {
  absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({.engine = "uring"});
  if (const absl::Status works = ProbeUring(""); !works.ok()) GTEST_SKIP() << works;
  ASSERT_TRUE(ring.ok()) << ring.status();
  Bytes memory(2000);
  int registered = 0;
  absl::Status status;
  for (; registered < 2000 && status.ok(); ++registered) {
    status = (*ring)->RegisterRegion(std::span(memory).subspan(registered, 1));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(registered, 1025);
  // A place that came free is used again.
  (*ring)->UnregisterRegion(std::span(memory).subspan(500, 1));
  EXPECT_TRUE((*ring)->RegisterRegion(std::span(memory).subspan(1500, 1)).ok());
}

TEST(ProbeTest, TheUserMayForceAnEngineByTheEnvironment) {
  const std::string choice = InChild([]() -> std::string {
    ::setenv("NEVE_IO", "threads", 1);
    std::string reason;
    absl::StatusOr<std::unique_ptr<Ring>> ring = Ring::Create({}, &reason);
    if (!ring.ok()) return ring.status().ToString();
    std::string said = std::string((*ring)->engine()) + " | " + reason;
    ::setenv("NEVE_IO", "aio", 1);
    return said + " | " + Ring::Create({}).status().ToString();
  });
  EXPECT_THAT(choice, HasSubstr("threads | the thread engine was asked for by NEVE_IO | "));
  EXPECT_THAT(choice, HasSubstr("INVALID_ARGUMENT: I/O engine \"aio\", asked for by NEVE_IO"));
}

TEST(ProbeTest, OptionsOutOfRangeAreInvalid) {
  for (const Options& options : {Options{.depth = 0}, Options{.depth = 257}, Options{.threads = 0},
                                 Options{.threads = 257}, Options{.engine = "aio"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Ring::Create(options).status()));
  }
}

TEST(ProbeTest, NoReasonIsGivenWhereUringWorks) {
  if (!ProbeUring("").ok()) GTEST_SKIP() << ProbeUring("");
  const std::string choice = ChoiceUnder([] { return true; });
  EXPECT_EQ(choice, "uring |  | ");
}

TEST(ProbeTest, AFolderThatCannotBeWrittenIsNamed) {
  const absl::Status status = ProbeUring("/no/such/folder");
  EXPECT_FALSE(status.ok());
  if (Ring::Create({.engine = "uring"}).ok()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder"));
    EXPECT_TRUE(ProbeUring(::testing::TempDir()).ok());
  }
}

}  // namespace
}  // namespace neve::ring
