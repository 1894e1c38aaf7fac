// Recycling: which files may become new images, and that nobody who holds one ever sees it change.
#include "storage/file/spares.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "file_tier_fixture.h"

namespace neve::testing {
namespace {

namespace fs = std::filesystem;

ino_t InodeOf(const std::string& path) {
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_ino;
}

class SparesTest : public FileTierTest {
 protected:
  void SetUp() override {
    tier_ = OpenTier();
    ASSERT_EQ(Save(*tier_, Image(1)), absl::OkStatus());
  }
  std::vector<std::string> SpareNames() { return NamesIn(folder() + "/.spare"); }
  static void ExpectHolds(int fd, const TestImage& image) {
    std::vector<std::byte> bytes(image.record.image_bytes);
    ASSERT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_TRUE(std::ranges::equal(bytes, image.bytes.span()));
  }

  std::unique_ptr<storage::Tier> tier_;
};

TEST_F(SparesTest, RetiredFileBecomesTheNextImage) {
  const ino_t inode = InodeOf(ImagePath(KeyOf(1)));
  ASSERT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  EXPECT_EQ(SpareNames(), std::vector<std::string>{"0-0"});
  ASSERT_EQ(Save(*tier_, Image(2)), absl::OkStatus());
  EXPECT_EQ(InodeOf(ImagePath(KeyOf(2))), inode);
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus());
  EXPECT_TRUE(SpareNames().empty());
}

TEST_F(SparesTest, LargerSpareIsCutAndSmallerOneExtended) {
  const ino_t inode = InodeOf(ImagePath(KeyOf(1)));
  const uint64_t sizes[] = {1, 70'001, 3'000'000, 4096};
  for (uint64_t sequence = 2; sequence < 2 + std::size(sizes); ++sequence) {
    ASSERT_EQ(Retire(*tier_, KeyOf(sequence - 1)), absl::OkStatus());
    ASSERT_EQ(Save(*tier_, Image(sequence, sizes[sequence - 2])), absl::OkStatus());
    EXPECT_EQ(InodeOf(ImagePath(KeyOf(sequence))), inode);
    EXPECT_EQ(fs::file_size(ImagePath(KeyOf(sequence))), sizes[sequence - 2]);
    EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(sequence)), absl::OkStatus());
  }
}

TEST_F(SparesTest, SpareThatFitsBestIsTaken) {
  ASSERT_EQ(Save(*tier_, Image(2, 5'000'000)), absl::OkStatus());
  const ino_t small = InodeOf(ImagePath(KeyOf(1))), large = InodeOf(ImagePath(KeyOf(2)));
  ASSERT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  ASSERT_EQ(Retire(*tier_, KeyOf(2)), absl::OkStatus());
  ASSERT_EQ(Save(*tier_, Image(3, 150'000)), absl::OkStatus());
  EXPECT_EQ(InodeOf(ImagePath(KeyOf(3))), small);
  ASSERT_EQ(Save(*tier_, Image(4, 6'000'000)), absl::OkStatus());
  EXPECT_EQ(InodeOf(ImagePath(KeyOf(4))), large);
}

TEST_F(SparesTest, SparesAreBoundedForEachRankAndNeverListed) {
  for (uint64_t sequence = 2; sequence <= 5; ++sequence) {
    for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_EQ(Save(*tier_, Image(KeyOf(sequence, rank, 2), 5000)), absl::OkStatus());
  }
  for (uint64_t sequence = 2; sequence <= 5; ++sequence) {
    for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_EQ(Retire(*tier_, KeyOf(sequence, rank, 2)), absl::OkStatus());
  }
  EXPECT_EQ(SpareNames(), (std::vector<std::string>{"0-0", "0-1", "1-0", "1-1"}));
  EXPECT_EQ(List(*tier_)->images.size(), 1u);
  // Rank 1 of a world that has no rank 1 any more left spares behind: they are used too.
  for (uint64_t sequence = 6; sequence <= 9; ++sequence) ASSERT_EQ(Save(*tier_, Image(sequence, 5000)), absl::OkStatus());
  EXPECT_TRUE(SpareNames().empty());
}

TEST_F(SparesTest, FileThatSomebodyHoldsIsUnlinkedAndKeepsItsBytes) {
  const int fd = ::open(ImagePath(KeyOf(1)).c_str(), O_RDONLY);
  ASSERT_NE(fd, -1);
  ASSERT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  EXPECT_TRUE(SpareNames().empty());
  ASSERT_EQ(Save(*tier_, Image(2)), absl::OkStatus());
  ExpectHolds(fd, Image(1));
  ::close(fd);
}

TEST_F(SparesTest, FileThatSomebodyMapsIsUnlinked) {
  const int fd = ::open(ImagePath(KeyOf(1)).c_str(), O_RDONLY);
  ASSERT_NE(fd, -1);
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  EXPECT_TRUE(SpareNames().empty());
  ::munmap(mapped, 4096);
}

TEST_F(SparesTest, FileWithASecondNameIsUnlinkedAndTheOtherNameKeepsItsBytes) {
  const std::string other = root_.path() + "/kept.safetensors";
  fs::create_hard_link(ImagePath(KeyOf(1)), other);
  ASSERT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  EXPECT_TRUE(SpareNames().empty());
  ASSERT_EQ(Save(*tier_, Image(2)), absl::OkStatus());
  std::ifstream in(other, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(text)), Image(1).bytes.span()));
}

TEST_F(SparesTest, SpareThatSomebodyOpenedMeanwhileIsNotUsed) {
  ASSERT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  const int fd = ::open((folder() + "/.spare/0-0").c_str(), O_RDONLY);
  ASSERT_NE(fd, -1);
  ASSERT_EQ(Save(*tier_, Image(2)), absl::OkStatus());
  ExpectHolds(fd, Image(1));
  ::close(fd);
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus());
  EXPECT_TRUE(SpareNames().empty());
}

TEST_F(SparesTest, WithoutLeasesOrASpareFolderFilesAreUnlinked) {
  {
    ScopedHooks hooks(
        [](const os::CallInfo& info) { return os::CallVerdict{.error_number = info.call == os::Call::kLease ? EACCES : 0}; });
    EXPECT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  }
  EXPECT_TRUE(SpareNames().empty());
  fs::remove_all(folder() + "/.spare");
  WriteText(folder() + "/.spare", "a file");
  ASSERT_EQ(Save(*tier_, Image(2)), absl::OkStatus());
  EXPECT_EQ(Retire(*tier_, KeyOf(2)), absl::OkStatus());
  EXPECT_FALSE(fs::exists(SaveFolder(KeyOf(2))));
}

TEST_F(SparesTest, DUR_04_SaveOnAnotherDiskIsUnlinked) {
  ScopedHooks hooks(
      [](const os::CallInfo& info) { return os::CallVerdict{.error_number = info.call == os::Call::kRename ? EXDEV : 0}; });
  EXPECT_EQ(Retire(*tier_, KeyOf(1)), absl::OkStatus());
  EXPECT_FALSE(fs::exists(SaveFolder(KeyOf(1))));
}

// What the reader process and this one share.
struct Watch {
  std::atomic<uint64_t> newest{0};  // sequence of the newest commit
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> opens{0}, missing{0}, changed{0};
  std::atomic<int64_t> slowest_open_nanos{0};
};

constexpr size_t kWatchedBytes = 65536;

// Every word of an image is its sequence, so that one foreign block is seen.
bool HoldsOnly(int fd, uint64_t sequence) {
  static uint64_t words[kWatchedBytes / 8];
  if (::pread(fd, words, kWatchedBytes, 0) != static_cast<ssize_t>(kWatchedBytes)) return false;
  return std::ranges::all_of(words, [sequence](uint64_t word) { return word == sequence; });
}

// Opens the newest image, which may be retired at that moment, again and again: by its path, as a stranger would.
[[noreturn]] void ReadUntilStopped(Watch& watch, const std::function<std::string(uint64_t)>& path_of) {
  while (!watch.stop) {
    const uint64_t sequence = watch.newest;
    if (sequence == 0) continue;
    const auto begin = std::chrono::steady_clock::now();
    const int fd = ::open(path_of(sequence).c_str(), O_RDONLY);
    const int64_t nanos = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    if (nanos > watch.slowest_open_nanos) watch.slowest_open_nanos = nanos;
    ++watch.opens;
    if (fd == -1) {
      ++watch.missing;
      continue;
    }
    for (int look = 0; look < 4; ++look) watch.changed += !HoldsOnly(fd, sequence);
    ::close(fd);
  }
  ::_exit(0);
}

TEST_F(SparesTest, DUR_07_StrangerThatOpensFilesWhileTheyAreRetiredSeesThemWhole) {
  tier_.reset();  // no thread of ours while we fork
  void* shared = ::mmap(nullptr, sizeof(Watch), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Watch& watch = *new (shared) Watch;
  const pid_t reader = ::fork();
  if (reader == 0) ReadUntilStopped(watch, [this](uint64_t sequence) { return ImagePath(KeyOf(sequence)); });
  ASSERT_NE(reader, -1);

  tier_ = OpenTier();
  const uint64_t retirements = std::getenv("NEVE_LONG") != nullptr ? 1000 : 100;
  uint64_t recycled = 0;
  for (uint64_t sequence = 2; sequence < 2 + retirements; ++sequence) {
    TestImage image = Image(sequence, kWatchedBytes);
    std::ranges::fill(std::span(reinterpret_cast<uint64_t*>(image.bytes.data()), kWatchedBytes / 8), sequence);
    EXPECT_EQ(Save(*tier_, image), absl::OkStatus());
    watch.newest = sequence;
    const size_t spares = SpareNames().size();
    EXPECT_EQ(Retire(*tier_, KeyOf(sequence - 1)), absl::OkStatus());
    recycled += SpareNames().size() > spares;
    // Now and then the very file that the stranger is looking at.
    if (sequence % 3 == 0) {
      EXPECT_EQ(Retire(*tier_, KeyOf(sequence)), absl::OkStatus());
    }
  }
  watch.stop = true;
  int status = 0;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(watch.changed, 0u);
  EXPECT_GT(watch.opens - watch.missing, 0u);
  std::printf("retirements %lu, recycled %lu, opens %lu (missing %lu), slowest open %.3f ms\n", retirements, recycled,
              watch.opens.load(), watch.missing.load(), static_cast<double>(watch.slowest_open_nanos) / 1e6);
  ::munmap(shared, sizeof(Watch));
}

}  // namespace
}  // namespace neve::testing
