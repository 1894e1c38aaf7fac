#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/os/mapping.h"
#include "tests/base/os_fixture.h"

namespace neve::os {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 1 << 20;

class MappingTest : public FolderTest {
 protected:
  File Make(uint64_t bytes) {
    auto file = Open(Path("f"), O_RDWR | O_CREAT);
    EXPECT_TRUE(file.ok());
    EXPECT_TRUE(Fallocate(*file, bytes).ok());
    return *std::move(file);
  }
  static size_t ResidentPages(std::span<std::byte> bytes) {
    std::vector<unsigned char> pages((bytes.size() + 4095) / 4096);
    EXPECT_EQ(::mincore(bytes.data(), bytes.size(), pages.data()), 0);
    size_t count = 0;
    for (const unsigned char page : pages) count += page & 1;
    return count;
  }
};

TEST_F(MappingTest, IsSharedWithTheFile) {
  const File file = Make(kBytes);
  auto mapping = Mapping::Map(file, kBytes, true);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  ASSERT_EQ(mapping->bytes().size(), kBytes);
  std::memcpy(mapping->bytes().data() + 5000, "hello", 5);
  char text[5];
  ASSERT_TRUE(ReadAt(file, 5000, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST_F(MappingTest, MovesLeaveTheSourceEmpty) {
  const File file = Make(kBytes);
  Mapping first = *Mapping::Map(file, kBytes, true);
  std::byte* const data = first.bytes().data();
  Mapping second(std::move(first));
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.bytes().data(), data);
  Mapping third = *Mapping::Map(file, 4096, true);
  third = std::move(second);
  EXPECT_FALSE(second.valid());
  EXPECT_EQ(third.bytes().data(), data);
  EXPECT_EQ(third.bytes().size(), kBytes);
}

TEST_F(MappingTest, OfNothingIsInvalid) {
  const File file = Make(kBytes);
  EXPECT_EQ(Mapping::Map(file, 0, true).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MappingTest, BeyondTheEndOfTheFileIsDamaged) {
  const File file = Make(kBytes);
  const auto mapping = Mapping::Map(file, kBytes + 1, false);
  EXPECT_TRUE(IsDamaged(mapping.status()));
  EXPECT_THAT(std::string(mapping.status().message()), HasSubstr("wanted 1048577 bytes, the file has 1048576"));
}

TEST_F(MappingTest, RefusedMapIsReported) {
  const File file = Make(kBytes);
  ScriptedHooks hooks(Refuse(Call::kMmap, ENOMEM));
  const auto mapping = Mapping::Map(file, kBytes, false);
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(mapping.status().message()), HasSubstr(Path("f")));
}

TEST_F(MappingTest, RefusedForkAdviceIsReported) {
  const File file = Make(kBytes);
  ScriptedHooks hooks(Refuse(Call::kMadvise, EINVAL));
  EXPECT_EQ(ErrnoOf(Mapping::Map(file, kBytes, false).status()), EINVAL);
}

TEST_F(MappingTest, ForkedChildrenDoNotHaveIt) {
  const File file = Make(kBytes);
  const Mapping mapping = *Mapping::Map(file, kBytes, true);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    unsigned char resident;
    // Asked without a touch: mincore says ENOMEM of what is not mapped.
    ::_exit(::mincore(mapping.bytes().data(), 4096, &resident) == -1 && errno == ENOMEM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(MappingTest, PrefaultMakesEveryPagePresent) {
  const uint64_t bytes = (130u << 20) + 12345;  // three slices, the last one short
  const File file = Make(bytes);
  const Mapping mapping = *Mapping::Map(file, bytes, true);
  for (const int threads : {0, 1, 2, 16}) EXPECT_TRUE(mapping.Prefault(threads).ok());
  EXPECT_EQ(ResidentPages(mapping.bytes()), (bytes + 4095) / 4096);
}

TEST_F(MappingTest, PrefaultTouchesWhereTheKernelCannotPopulate) {
  const File file = Make(kBytes);
  const Mapping mapping = *Mapping::Map(file, kBytes, true);
  std::memset(mapping.bytes().data(), 0x5A, kBytes);
  ScriptedHooks hooks(Refuse(Call::kMadvise, EINVAL));
  EXPECT_TRUE(mapping.Prefault(2).ok());
  EXPECT_EQ(ResidentPages(mapping.bytes()), kBytes / 4096);
  for (const std::byte byte : mapping.bytes()) ASSERT_EQ(byte, std::byte{0x5A});
}

TEST_F(MappingTest, PrefaultKeepsWhatOthersWriteMeanwhile) {
  const File file = Make(kBytes);
  const Mapping mapping = *Mapping::Map(file, kBytes, true);
  // A second process counts up in the very bytes that are touched; no step of it may get lost.
  const pid_t child = ::fork();
  if (child == 0) {
    const Mapping own = *Mapping::Map(file, kBytes, true);
    for (int round = 0; round < 200; ++round) {
      for (uint64_t at = 0; at < kBytes; at += 4096) {
        auto* const byte = reinterpret_cast<unsigned char*>(own.bytes().data() + at);
        const unsigned char seen = __atomic_fetch_add(byte, 1, __ATOMIC_RELAXED);
        if (seen != round) ::_exit(1);
      }
    }
    ::_exit(0);
  }
  int status = 0;
  ScriptedHooks hooks(Refuse(Call::kMadvise, EINVAL));
  while (::waitpid(child, &status, WNOHANG) == 0) EXPECT_TRUE(mapping.Prefault(1).ok());
  EXPECT_EQ(status, 0);
}

TEST_F(MappingTest, PrefaultWithoutRoomIsExhausted) {
  const File file = Make(kBytes);
  const Mapping mapping = *Mapping::Map(file, kBytes, true);
  {
    ScriptedHooks hooks(Refuse(Call::kMadvise, EFAULT));
    EXPECT_EQ(mapping.Prefault(2).code(), absl::StatusCode::kResourceExhausted);
  }
  ScriptedHooks hooks(Refuse(Call::kMadvise, ENOMEM));
  EXPECT_EQ(ErrnoOf(mapping.Prefault(2)), ENOMEM);
}

TEST_F(MappingTest, PrefaultOfAReadOnlyMappingIsInvalid) {
  const File file = Make(kBytes);
  EXPECT_EQ(Mapping::Map(file, kBytes, false)->Prefault(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Mapping().Prefault(1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MappingTest, RefusedHugePagesAreNoError) {
  const File file = Make(kBytes);
  const Mapping mapping = *Mapping::Map(file, kBytes, true);
  ScriptedHooks hooks(Refuse(Call::kMadvise, EINVAL));
  EXPECT_FALSE(mapping.AdviseHugePages());
  EXPECT_FALSE(Mapping().AdviseHugePages());
}

}  // namespace
}  // namespace neve::os
