// SIGKILL at any moment of saving and retiring: the newest image whose commit had returned is there, whole.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "file_tier_fixture.h"

namespace neve::testing {
namespace {

class KillTest : public FileTierTest {
 protected:
  static constexpr uint64_t kImageBytes = 1'000'001;

  // One life: saves and retires the one before the last until it is killed; says each commit on `pipe`.
  [[noreturn]] void Live(uint32_t incarnation, int pipe) {
    const std::unique_ptr<storage::Tier> tier = OpenTier();
    for (uint64_t sequence = 1; tier != nullptr; ++sequence) {
      const ImageKey key = KeyOf(sequence, 0, 1, incarnation);
      if (!Save(*tier, Image(key, kImageBytes + sequence * 5000), 65536).ok()) ::_exit(1);
      if (::write(pipe, &sequence, sizeof(sequence)) != sizeof(sequence)) ::_exit(2);
      if (sequence > 2 && !Retire(*tier, KeyOf(sequence - 2, 0, 1, incarnation)).ok()) ::_exit(3);
    }
    ::_exit(4);
  }
};

TEST_F(KillTest, DUR_01_NewestCommitIsWholeAfterEachKill) {
  constexpr int kRounds = 20;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  ImageKey newest;  // of all rounds
  for (uint32_t round = 1; round <= kRounds; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      ::close(pipe[0]);
      Live(round, pipe[1]);
    }
    ::close(pipe[1]);
    // After none, one or two commits, and then at any moment of what follows.
    uint64_t sequence;
    for (uint64_t commits = random() % 3; commits > 0; --commits) {
      ASSERT_EQ(::read(pipe[0], &sequence, sizeof(sequence)), static_cast<ssize_t>(sizeof(sequence)));
      newest = KeyOf(sequence, 0, 1, round);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << WEXITSTATUS(status);
    while (::read(pipe[0], &sequence, sizeof(sequence)) == sizeof(sequence)) newest = KeyOf(sequence, 0, 1, round);
    ::close(pipe[0]);

    const std::unique_ptr<storage::Tier> tier = OpenTier();
    const auto listing = List(*tier);
    ASSERT_TRUE(listing.ok()) << listing.status();
    for (const storage::ImageEntry& entry : listing->images) {
      if (entry.has_record) {
        ASSERT_EQ(OpenAndVerify(*tier, entry.key), absl::OkStatus()) << "round " << round;
      } else {
        // What the next life does with leftovers.
        ASSERT_EQ(Retire(*tier, entry.key), absl::OkStatus());
      }
    }
    if (newest != ImageKey{}) {
      ASSERT_EQ(OpenAndVerify(*tier, newest), absl::OkStatus()) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace neve::testing
