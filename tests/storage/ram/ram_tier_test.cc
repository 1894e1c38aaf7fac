#include "storage/ram/ram_tier.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "base/os/io_hooks.h"
#include "slot/slot_fixture.h"
#include "support/blocking_tier.h"

namespace neve::storage {
namespace {

using slot::FillIdentity;
using slot::InChild;
using slot::Slot;
using slot::SlotInfo;
using slot::State;
using slot::TestUid;
using testing::Begin;
using testing::Commit;
using testing::Heal;
using testing::List;
using testing::MakeImage;
using testing::Open;
using testing::OpenAndVerify;
using testing::Read;
using testing::Retire;
using testing::Save;
using testing::TestImage;

class RamTierTest : public slot::SlotFixture {
 protected:
  std::unique_ptr<Tier> OpenTier(uint8_t uid = 1) const { return OpenRamTier({ram_, TestUid(uid), "gpt"}); }
  static ImageKey Key() { return Identity().key; }
  static TestImage Image(const ImageKey& key) { return MakeImage(key, 150'000, 5, "gpt", TestUid(1)); }
  // Runs `look` while a child that owns a slot sealed by `FillAndSeal` is alive. `again`: the child then fills it anew.
  void WithLivingOwner(const std::function<void(const std::function<void()>& refill)>& look) {
    std::array<int, 2> to_child, to_parent;
    ASSERT_EQ(::pipe(to_child.data()) | ::pipe(to_parent.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(to_child[1]);
      const std::unique_ptr<Slot> slot = MakeSlot();
      FillAndSeal(*slot);
      char byte = 's';
      while (::write(to_parent[1], &byte, 1) == 1 && ::read(to_child[0], &byte, 1) == 1) {
        slot->Free();
        FillAndSeal(*slot, Identity(150'000, 18));
      }
      ::_exit(0);
    }
    char byte = 0;
    ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
    look([&] {
      ASSERT_EQ(::write(to_child[1], &byte, 1), 1);
      ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
    });
    for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(fd);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
};

TEST_F(RamTierTest, ImagesOfAnotherUidAreNeverOffered) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  const std::unique_ptr<Tier> other = OpenTier(2);
  EXPECT_TRUE(List(*other)->images.empty());
  EXPECT_FALSE(List(*other)->exists);
  EXPECT_TRUE(absl::IsNotFound(Open(*other, Key()).status()));
  EXPECT_TRUE(absl::IsNotFound(Heal(*other, Key(), 0, {})));
  EXPECT_EQ(Retire(*other, Key()), absl::OkStatus());
  EXPECT_EQ(slot->state(), State::kSealed);
  // A slot file put into the other job's folder stays what it is.
  const std::string folder = os::JoinPath(ram_, TestUid(2).ToHex());
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::link(slot->path().c_str(), os::JoinPath(folder, os::BaseName(slot->path())).c_str()), 0);
  EXPECT_TRUE(List(*other)->images.empty());
  EXPECT_TRUE(absl::IsNotFound(Open(*other, Key()).status()));
}

TEST_F(RamTierTest, AnUnknownUidOffersNothing) {
  FillAndSeal(*MakeSlot());
  const std::unique_ptr<Tier> unknown = OpenRamTier({ram_, Uid{}, "gpt"});
  EXPECT_TRUE(List(*unknown)->images.empty());
  EXPECT_TRUE(absl::IsNotFound(Open(*unknown, Key()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(*unknown, Key(), 4096).status()));
}

TEST_F(RamTierTest, OnlySealedSlotsOfTheLivingAreListed) {
  const std::unique_ptr<Tier> tier = OpenTier();
  const std::unique_ptr<Slot> slot = MakeSlot();
  EXPECT_TRUE(List(*tier)->images.empty());
  ASSERT_TRUE(slot->BeginFill(Identity(), {}, {}).ok());
  EXPECT_TRUE(List(*tier)->images.empty());
  FillDigests(*slot, Identity());
  slot->MarkCaptured();
  EXPECT_TRUE(List(*tier)->images.empty());
  EXPECT_TRUE(absl::IsUnavailable(Open(*tier, Key()).status()));   // about to be there: trying again helps
  slot->Seal();
  const absl::StatusOr<Listing> listing = List(*tier);
  ASSERT_EQ(listing->images.size(), 1u);
  EXPECT_EQ(listing->images[0].key, Key());
  EXPECT_EQ(listing->images[0].path, slot->path());
  EXPECT_EQ(listing->images[0].image_bytes, 150'000u);
  EXPECT_EQ(listing->incarnation_max, 2u);
  slot->Free();
  EXPECT_TRUE(List(*tier)->images.empty());
}

TEST_F(RamTierTest, ACaptureOfTheDeadIsDigestedAndOffered) {
  const std::string path = Orphan(State::kCaptured);
  const std::unique_ptr<Tier> tier = OpenTier();
  ASSERT_EQ(List(*tier)->images.size(), 1u);
  EXPECT_EQ(OpenAndVerify(*tier, Key()), absl::OkStatus());
  const SlotInfo info = OnlySlot();
  EXPECT_EQ(info.state, State::kSealed);
  EXPECT_FALSE(info.owner_alive);   // still to be adopted by whoever drains it
  EXPECT_TRUE(Slot::Adopt(path).ok());
}

TEST_F(RamTierTest, AFillOfTheDeadIsNotOffered) {
  Orphan(State::kFilling);
  const std::unique_ptr<Tier> tier = OpenTier();
  EXPECT_TRUE(List(*tier)->images.empty());
  EXPECT_TRUE(absl::IsNotFound(Open(*tier, Key()).status()));
}

TEST_F(RamTierTest, MappedIsTheImageItself) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  const auto reader = Open(*OpenTier(), Key());
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ((*reader)->Mapped().size(), 150'000u);
  EXPECT_EQ(codec::DigestOf((*reader)->Mapped().first(64 << 10)), (*reader)->record().digests[0]);
}

TEST_F(RamTierTest, AnotherProcessesSlotIsReadUntilItIsFilledAnew) {
  WithLivingOwner([&](const std::function<void()>& refill) {
    const std::unique_ptr<Tier> tier = OpenTier();
    const auto reader = Open(*tier, Key());
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<std::byte> target(150'000);
    ASSERT_EQ(Read(**reader, 0, target), absl::OkStatus());
    EXPECT_EQ(codec::DigestOf(std::span(target).first(64 << 10)), (*reader)->record().digests[0]);
    refill();
    EXPECT_TRUE(absl::IsUnavailable(Read(**reader, 0, target)));
    EXPECT_TRUE(absl::IsNotFound(Open(*tier, Key()).status()));
  });
}

TEST_F(RamTierTest, AReadThatSucceedsIsNeverAMixOfTwoImages) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::unique_ptr<Slot> slot = MakeSlot();
    for (uint64_t sequence = 1; sequence <= 200; ++sequence) {
      FillAndSeal(*slot, Identity(150'000, sequence));
      if (sequence < 200) slot->Free();
    }
    ::_exit(0);
  }
  const std::unique_ptr<Tier> tier = OpenTier();
  std::vector<std::byte> target(150'000);
  uint64_t reads = 0;
  for (bool running = true; running || reads == 0;) {
    running = ::waitpid(child, nullptr, WNOHANG) == 0;
    const absl::StatusOr<Listing> listing = List(*tier);
    ASSERT_TRUE(listing.ok()) << listing.status();
    for (const ImageEntry& entry : listing->images) {
      const auto reader = Open(*tier, entry.key);
      if (!reader.ok()) {
        ASSERT_TRUE(absl::IsUnavailable(reader.status()) || absl::IsNotFound(reader.status())) << reader.status();
        continue;
      }
      const absl::Status status = Read(**reader, 0, target);
      if (!status.ok()) {
        ASSERT_TRUE(absl::IsUnavailable(status)) << status;
        continue;
      }
      ++reads;
      const format::CommitRecord& record = (*reader)->record();
      ASSERT_EQ(record.key, entry.key);
      for (uint64_t chunk = 0; chunk < record.chunk_count(); ++chunk) {
        ASSERT_EQ(codec::DigestOf(std::span(target).subspan(chunk * record.chunk_bytes, record.ChunkBytesAt(chunk))),
                  record.digests[chunk]);
      }
    }
  }
}

TEST_F(RamTierTest, AnotherProcessesSlotIsNeitherRetiredNorHealed) {
  WithLivingOwner([&](const std::function<void()>&) {
    const std::unique_ptr<Tier> tier = OpenTier();
    const std::array<std::byte, 16> bytes{};
    EXPECT_TRUE(absl::IsUnavailable(Retire(*tier, Key())));
    EXPECT_TRUE(absl::IsUnavailable(Heal(*tier, Key(), 0, bytes)));
    EXPECT_EQ(OpenAndVerify(*tier, Key()), absl::OkStatus());
  });
}

TEST_F(RamTierTest, RetireFreesAnOwnSlotAndKeepsItsMemory) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  const std::unique_ptr<Tier> tier = OpenTier();
  ASSERT_EQ(Retire(*tier, Key()), absl::OkStatus());
  EXPECT_EQ(slot->state(), State::kFree);
  EXPECT_TRUE(os::Exists(slot->path()));
  FillAndSeal(*slot, Identity(150'000, 18));
}

TEST_F(RamTierTest, RetireRemovesTheSlotOfADeadOwner) {
  const std::string path = Orphan(State::kSealed);
  ASSERT_EQ(Retire(*OpenTier(), Key()), absl::OkStatus());
  EXPECT_FALSE(os::Exists(path));
}

TEST_F(RamTierTest, RetireRemovesWhatTheTierMade) {
  const std::unique_ptr<Tier> tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(Key())), absl::OkStatus());
  const std::string path = OnlySlot().path;
  ASSERT_EQ(Retire(*tier, Key()), absl::OkStatus());
  EXPECT_FALSE(os::Exists(path));
}

TEST_F(RamTierTest, HealWritesIntoTheSlotOfADeadOwner) {
  Orphan(State::kSealed);
  {
    absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Adopt(OnlySlot().path);
    ASSERT_TRUE(slot.ok());
    (*slot)->image()[70'000] = ~ByteAt(70'000, 17);
    (*slot)->Disown();
  }
  const std::unique_ptr<Tier> tier = OpenTier();
  EXPECT_TRUE(absl::IsDataLoss(OpenAndVerify(*tier, Key())));
  const std::array<std::byte, 1> right = {ByteAt(70'000, 17)};
  ASSERT_EQ(Heal(*tier, Key(), 70'000, right), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier, Key()), absl::OkStatus());
  EXPECT_FALSE(OnlySlot().owner_alive);
  EXPECT_TRUE(absl::IsInvalidArgument(Heal(*tier, Key(), 150'000, right)));
}

TEST_F(RamTierTest, ReadsBeyondTheImageAreDamagedAlthoughTheSlotGoesOn) {
  FillAndSeal(*MakeSlot());
  const auto reader = Open(*OpenTier(), Key());
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::byte> target(2);
  EXPECT_TRUE(IsDamaged(Read(**reader, 149'999, target)));
  EXPECT_TRUE(IsDamaged(Read(**reader, ~uint64_t{0}, target)));
}

TEST_F(RamTierTest, WritesBeyondTheImageAreInvalid) {
  const auto writer = Begin(*OpenTier(), Key(), 5000);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<std::byte> source(4096);
  EXPECT_TRUE(absl::IsInvalidArgument(testing::Write(**writer, 4096, source)));
  EXPECT_TRUE(absl::IsInvalidArgument(testing::Write(**writer, ~uint64_t{0}, source)));
}

TEST_F(RamTierTest, ASecondCommitAndARecordOfAnotherJobAreInvalid) {
  const std::unique_ptr<Tier> tier = OpenTier();
  const TestImage image = Image(Key());
  const auto writer = Begin(*tier, Key(), image.record.image_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  format::CommitRecord foreign = image.record;
  foreign.uid = TestUid(2);
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, foreign)));
  foreign = image.record;
  foreign.digests.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, foreign)));
  EXPECT_EQ(Commit(**writer, image.record), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, image.record)));
}

TEST_F(RamTierTest, ADamagedSlotIsNotListedAndADamagedTableIsDamaged) {
  const std::unique_ptr<Tier> tier = OpenTier();
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  slot->digests()[0].high ^= 1;
  EXPECT_TRUE(IsDamaged(Open(*tier, Key()).status()));
  slot->digests()[0].high ^= 1;
  ASSERT_EQ(::truncate(slot->path().c_str(), 8192), 0);
  EXPECT_TRUE(List(*tier)->images.empty());
  EXPECT_TRUE(absl::IsNotFound(Open(*tier, Key()).status()));
}

TEST_F(RamTierTest, AFolderThatCannotBeTrustedFailsTheListing) {
  ASSERT_EQ(::mkdir(ram_.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(ram_.c_str(), 0777), 0);
  const std::unique_ptr<Tier> tier = OpenTier();
  EXPECT_TRUE(absl::IsInvalidArgument(List(*tier).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(*tier, Key()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(*tier, Key(), 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Retire(*tier, Key())));
  EXPECT_TRUE(absl::IsInvalidArgument(Heal(*tier, Key(), 0, {})));
}

TEST_F(RamTierTest, MEM_01_NoRoomIsExhaustedBeforeAnyByteMoves) {
  class NoRoom : public os::IoHooks {
   public:
    os::CallVerdict Before(const os::CallInfo& info) override {
      os::CallVerdict verdict;
      if (info.call == os::Call::kFallocate) verdict.error_number = ENOSPC;
      return verdict;
    }
  } hook;
  os::SetIoHooks(&hook);
  const absl::Status status = Begin(*OpenTier(), Key(), 1 << 20).status();
  os::SetIoHooks(nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(List(*OpenTier())->images.empty());
}

TEST_F(RamTierTest, NotesAndPinsAreUnsupported) {
  const std::unique_ptr<Tier> tier = OpenTier();
  EXPECT_TRUE(absl::IsUnimplemented(testing::ReadNote(*tier, "job.json").status()));
  EXPECT_TRUE(absl::IsUnimplemented(testing::WriteNote(*tier, "job.json", "{}", true)));
  EXPECT_TRUE(absl::IsUnimplemented(testing::RemoveNote(*tier, "job.json")));
  EXPECT_TRUE(absl::IsUnimplemented(testing::SetPinned(*tier, Key(), true)));
}

}  // namespace
}  // namespace neve::storage
