// A RAM folder of its own for each test, slots filled with known bytes, and children that die at a chosen point.
#ifndef NEVE_TESTS_SLOT_SLOT_FIXTURE_H_
#define NEVE_TESTS_SLOT_SLOT_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "slot/slot.h"

namespace neve::slot {

inline Uid TestUid(uint8_t first) {
  Uid uid;
  uid.bytes.fill(0x5a);
  uid.bytes[0] = first;
  return uid;
}

// Runs `body` in a forked child and returns its exit status; -1 when a signal ended it. The child is reaped, so to every
// observer its slots belong to a dead process afterwards.
inline int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class SlotFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/neve-slot-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    ram_ = root_ + "/ram";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Slot::CreateOptions Options(uint64_t capacity = 200'000) const {
    Slot::CreateOptions options;
    options.ram_folder = ram_;
    options.uid = TestUid(1);
    options.job = "gpt";
    options.rank = 3;
    options.image_capacity = capacity;
    options.chunk_bytes = 64 << 10;
    options.prefault_threads = 0;
    return options;
  }
  static FillIdentity Identity(uint64_t image_bytes = 150'000, uint64_t sequence = 17) {
    FillIdentity identity;
    identity.key = {{2, sequence}, 1000, 3, 8};
    identity.image_bytes = image_bytes;
    identity.header_bytes = 4096;
    identity.chunk_bytes = 64 << 10;
    identity.layout_id = 0x1234;
    identity.time = 1'700'000'000;
    return identity;
  }
  static std::byte ByteAt(uint64_t i, uint64_t sequence) { return static_cast<std::byte>((i * 31 + sequence * 7) & 0xff); }
  static void FillImage(Slot& slot, uint64_t bytes, uint64_t sequence) {
    for (uint64_t i = 0; i < bytes; ++i) slot.image()[i] = ByteAt(i, sequence);
  }
  static void FillDigests(Slot& slot, const FillIdentity& identity) {
    for (size_t i = 0; i < slot.digests().size(); ++i) {
      const uint64_t begin = i * identity.chunk_bytes;
      slot.digests()[i] = codec::DigestOf(
          slot.image().subspan(begin, std::min<uint64_t>(identity.chunk_bytes, identity.image_bytes - begin)));
    }
  }
  // From free to sealed, as the engine does it.
  static void FillAndSeal(Slot& slot, const FillIdentity& identity = Identity(), const Tags& tags = {}) {
    ASSERT_EQ(slot.BeginFill(identity, tags, {{"host", "h1"}}), absl::OkStatus());
    FillImage(slot, identity.image_bytes, identity.key.save.sequence);
    FillDigests(slot, identity);
    slot.MarkCaptured();
    slot.Seal();
  }
  std::unique_ptr<Slot> MakeSlot(uint64_t capacity = 200'000) const {
    absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Create(Options(capacity));
    EXPECT_TRUE(slot.ok()) << slot.status();
    return slot.ok() ? *std::move(slot) : nullptr;
  }
  // The one slot in the folder.
  SlotInfo OnlySlot() const {
    absl::StatusOr<std::vector<SlotInfo>> slots = Scan(ram_, TestUid(1));
    EXPECT_TRUE(slots.ok()) << slots.status();
    if (!slots.ok() || slots->size() != 1) {
      ADD_FAILURE() << "expected one slot";
      return {};
    }
    return slots->front();
  }
  // Leaves one slot of a dead process in this state; its path.
  std::string Orphan(State state) const {
    const int exit = InChild([&] {
      std::unique_ptr<Slot> slot = MakeSlot();
      if (state == State::kFree) return 0;
      if (!slot->BeginFill(Identity(), {{"loss", 0.5}}, {}).ok()) return 1;
      FillImage(*slot, Identity().image_bytes, 17);
      if (state == State::kFilling) return 0;
      slot->MarkCaptured();
      if (state == State::kCaptured) return 0;
      FillDigests(*slot, Identity());
      slot->Seal();
      return 0;
    });
    EXPECT_EQ(exit, 0);
    return OnlySlot().path;
  }

  std::string root_, ram_;
};

}  // namespace neve::slot

#endif  // NEVE_TESTS_SLOT_SLOT_FIXTURE_H_
