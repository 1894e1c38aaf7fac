#include "slot/slot.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/os/io_hooks.h"
#include "base/os/syscalls.h"
#include "slot/slot_fixture.h"
#include "slot/slot_header.h"

namespace neve::slot {
namespace {

using ::testing::HasSubstr;

class SlotTest : public SlotFixture {};

mode_t ModeOf(const std::string& path) {
  struct ::stat facts {};
  EXPECT_EQ(::lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 07777;
}

TEST_F(SlotTest, NewSlotIsFreeAndHasItsRoom) {
  const std::unique_ptr<Slot> slot = MakeSlot(200'000);
  EXPECT_EQ(slot->state(), State::kFree);
  EXPECT_EQ(slot->generation(), 0u);
  EXPECT_EQ(slot->image_capacity(), 200'704u);
  EXPECT_EQ(slot->image().size(), 200'704u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slot->image().data()) % kPageBytes, 0u);
  struct ::stat facts {};
  ASSERT_EQ(::stat(slot->path().c_str(), &facts), 0);
  EXPECT_GE(facts.st_blocks * 512, facts.st_size);
}

TEST_F(SlotTest, BigImagesBeginOnAHugePage) {
  const std::unique_ptr<Slot> slot = MakeSlot(kHugePageBytes);
  const absl::StatusOr<struct ::stat> facts = os::Stat(slot->path());
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(static_cast<uint64_t>(facts->st_size), 2 * kHugePageBytes);
}

TEST_F(SlotTest, FilesAndFoldersArePrivateWhateverTheUmask) {
  for (const mode_t mask : {0000, 0022, 0777}) {
    const mode_t before = ::umask(mask);
    absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Create(Options());
    ::umask(before);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(ModeOf((*slot)->path()), 0600u);
    EXPECT_EQ(ModeOf(os::DirName((*slot)->path())), 0700u);
    EXPECT_EQ(ModeOf(ram_), 0700u);
    std::filesystem::remove_all(ram_);
  }
}

TEST_F(SlotTest, StatesGoRoundAndTheGenerationRisesWithEachFill) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(slot->BeginFill(Identity(), {}, {}).ok());
    EXPECT_EQ(slot->state(), State::kFilling);
    EXPECT_EQ(slot->generation(), round);
    slot->MarkCaptured();
    EXPECT_EQ(slot->state(), State::kCaptured);
    slot->Seal();
    EXPECT_EQ(slot->state(), State::kSealed);
    slot->Free();
    EXPECT_EQ(slot->state(), State::kFree);
    EXPECT_EQ(slot->generation(), round);
  }
}

TEST_F(SlotTest, RecordGivesBackWhatTheFillSaid) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  const Tags tags = {{"loss", 0.1}, {"epoch", int64_t{7}}, {"final", true}, {"name", std::string("névé")}};
  FillAndSeal(*slot, Identity(), tags);
  const absl::StatusOr<format::CommitRecord> record = slot->Record();
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->job, "gpt");
  EXPECT_EQ(record->uid, TestUid(1));
  EXPECT_EQ(record->key, Identity().key);
  EXPECT_EQ(record->time, Identity().time);
  EXPECT_EQ(record->tags, tags);
  EXPECT_EQ(record->layout_id, 0x1234u);
  EXPECT_EQ(record->image_bytes, 150'000u);
  EXPECT_EQ(record->header_bytes, 4096u);
  EXPECT_EQ(record->chunk_bytes, 64u << 10);
  EXPECT_EQ(record->provenance.at("host"), "h1");
  ASSERT_EQ(record->digests.size(), 3u);
  EXPECT_EQ(record->digests[2], codec::DigestOf(slot->image().subspan(131'072, 150'000 - 131'072)));
}

TEST_F(SlotTest, RecordOfACaptureWithoutDigestsHasNone) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  ASSERT_TRUE(slot->BeginFill(Identity(), {}, {}).ok());
  EXPECT_TRUE(absl::IsUnavailable(slot->Record().status()));
  slot->MarkCaptured();
  const absl::StatusOr<format::CommitRecord> record = slot->Record();
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_TRUE(record->digests.empty());
}

TEST_F(SlotTest, DigestAndSealComputesTheDigests) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  ASSERT_TRUE(slot->BeginFill(Identity(), {}, {}).ok());
  FillImage(*slot, 150'000, 17);
  slot->MarkCaptured();
  ASSERT_EQ(slot->DigestAndSeal(), absl::OkStatus());
  EXPECT_EQ(slot->state(), State::kSealed);
  const absl::StatusOr<format::CommitRecord> record = slot->Record();
  ASSERT_TRUE(record.ok()) << record.status();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(record->digests[i], codec::DigestOf(slot->image().subspan(i << 16, record->ChunkBytesAt(i))));
  }
  EXPECT_EQ(slot->DigestAndSeal(), absl::OkStatus());   // sealed already
}

TEST_F(SlotTest, DigestAndSealOfABigImageEqualsThatOfItsChunks) {
  constexpr uint64_t kBytes = 65u << 20;
  Slot::CreateOptions options = Options(kBytes);
  options.chunk_bytes = kDefaultChunkBytes;
  absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Create(options);
  ASSERT_TRUE(slot.ok()) << slot.status();
  FillIdentity identity = Identity(kBytes);
  identity.chunk_bytes = kDefaultChunkBytes;
  ASSERT_TRUE((*slot)->BeginFill(identity, {}, {}).ok());
  for (uint64_t i = 0; i < kBytes; i += 4096) (*slot)->image()[i] = static_cast<std::byte>(i >> 12);
  (*slot)->MarkCaptured();
  ASSERT_EQ((*slot)->DigestAndSeal(), absl::OkStatus());
  const absl::StatusOr<format::CommitRecord> record = (*slot)->Record();
  ASSERT_TRUE(record.ok()) << record.status();
  ASSERT_EQ(record->digests.size(), 17u);
  for (size_t i = 0; i < 17; ++i) {
    EXPECT_EQ(record->digests[i], codec::DigestOf((*slot)->image().subspan(i << 22, record->ChunkBytesAt(i)))) << i;
  }
}

TEST_F(SlotTest, TooLongTagsAreInvalidAndChangeNothing) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  const absl::Status status = slot->BeginFill(Identity(), {{"note", std::string(kNotesBytesMax, 'x')}}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("65536"));
  EXPECT_EQ(slot->state(), State::kFree);
  EXPECT_EQ(slot->generation(), 0u);
}

TEST_F(SlotTest, IdentitiesThatDoNotFitAreInvalidAndChangeNothing) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  std::vector<FillIdentity> wrong(7, Identity());
  wrong[0].image_bytes = slot->image_capacity() + 1;
  wrong[1].header_bytes = wrong[1].image_bytes + 1;
  wrong[2].chunk_bytes = 0;
  wrong[3].chunk_bytes = format::kChunkBytesMax + 1;
  wrong[4].key.rank = 8;
  wrong[5].key.world = 0;
  wrong[6].key.step = kStepLimit;
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(slot->BeginFill(wrong[i], {}, {}))) << i;
    EXPECT_EQ(slot->state(), State::kFree);
    EXPECT_EQ(slot->generation(), 0u);
  }
}

TEST_F(SlotTest, MoreChunksThanDigestsOfRoomAreInvalid) {
  Slot::CreateOptions options = Options();
  options.chunk_bytes = kDefaultChunkBytes;
  absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Create(options);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_TRUE(absl::IsInvalidArgument((*slot)->BeginFill(Identity(), {}, {})));
}

TEST_F(SlotTest, AFillOfASlotThatIsNotFreeIsInternal) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  EXPECT_TRUE(absl::IsInternal(slot->BeginFill(Identity(), {}, {})));
  EXPECT_EQ(slot->generation(), 1u);
  EXPECT_EQ(slot->state(), State::kSealed);
}

TEST_F(SlotTest, ASealWithoutACaptureIsInternal) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  EXPECT_TRUE(absl::IsInternal(slot->DigestAndSeal()));
  ASSERT_TRUE(slot->BeginFill(Identity(), {}, {}).ok());
  EXPECT_TRUE(absl::IsInternal(slot->DigestAndSeal()));
}

TEST_F(SlotTest, OptionsThatMakeNoSlotAreInvalid) {
  std::vector<Slot::CreateOptions> wrong(5, Options());
  wrong[0].uid = Uid{};
  wrong[1].job = std::string(kJobBytesMax + 1, 'j');
  wrong[2].image_capacity = 0;
  wrong[3].image_capacity = ~uint64_t{0};
  wrong[4].chunk_bytes = 1;
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(Slot::Create(wrong[i]).status())) << i;
  }
  EXPECT_FALSE(os::Exists(ram_));
}

TEST_F(SlotTest, AReaderSeesTheOwnersImageAndMayNotChangeIt) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  absl::StatusOr<std::unique_ptr<Slot>> reader = Slot::OpenForReading(slot->path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->image()[777], ByteAt(777, 17));
  EXPECT_EQ((*reader)->Record()->key, Identity().key);
  EXPECT_EQ((*reader)->digests().size(), 3u);
  EXPECT_TRUE(absl::IsInternal((*reader)->BeginFill(Identity(), {}, {})));
  EXPECT_TRUE(absl::IsInternal((*reader)->DigestAndSeal()));
  EXPECT_TRUE(absl::IsInternal((*reader)->Remove()));
}

TEST_F(SlotTest, AReaderNoticesThatTheOwnerFillsAnew) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  absl::StatusOr<std::unique_ptr<Slot>> reader = Slot::OpenForReading(slot->path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const uint64_t generation = (*reader)->generation();
  slot->Free();
  EXPECT_EQ((*reader)->generation(), generation);   // the bytes are still those
  FillAndSeal(*slot, Identity(150'000, 18));
  EXPECT_NE((*reader)->generation(), generation);
  EXPECT_TRUE(absl::IsUnavailable((*reader)->Record().status()));
}

TEST_F(SlotTest, UnfinishedImagesOfALivingOwnerAreNotOpened) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  EXPECT_TRUE(absl::IsUnavailable(Slot::OpenForReading(slot->path()).status()));
  ASSERT_TRUE(slot->BeginFill(Identity(), {}, {}).ok());
  EXPECT_TRUE(absl::IsUnavailable(Slot::OpenForReading(slot->path()).status()));
  slot->MarkCaptured();
  EXPECT_TRUE(absl::IsUnavailable(Slot::OpenForReading(slot->path()).status()));
}

TEST_F(SlotTest, ASlotThatIsNotThereIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(Slot::OpenForReading(root_ + "/none").status()));
  EXPECT_TRUE(absl::IsNotFound(Slot::Adopt(root_ + "/none").status()));
  EXPECT_FALSE(os::Exists(root_ + "/none"));
}

TEST_F(SlotTest, RemoveTakesTheFileAndKeepsTheMapping) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  ASSERT_EQ(slot->Remove(), absl::OkStatus());
  EXPECT_FALSE(os::Exists(slot->path()));
  EXPECT_EQ(slot->image()[5], ByteAt(5, 17));
  EXPECT_EQ(slot->Remove(), absl::OkStatus());
}

TEST_F(SlotTest, TheJobsFolderGoesWithItsLastSlotAndComesBackWithTheNext) {
  const std::unique_ptr<Slot> first = MakeSlot(), second = MakeSlot();
  const std::string folder = os::DirName(first->path());
  ASSERT_EQ(first->Remove(), absl::OkStatus());
  EXPECT_TRUE(os::Exists(second->path()));
  ASSERT_EQ(second->Remove(), absl::OkStatus());
  EXPECT_FALSE(os::Exists(folder));
  EXPECT_TRUE(os::Exists(MakeSlot()->path()));
}

TEST_F(SlotTest, ManyThreadsMakeAndRemoveSlotsOfOneJob) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) EXPECT_EQ(MakeSlot()->Remove(), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SlotTest, DestructionLeavesTheFile) {
  std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  const std::string path = slot->path();
  slot.reset();
  EXPECT_TRUE(Slot::OpenForReading(path).ok());
}

TEST_F(SlotTest, ASecondHandleFreesOnlyWhatItSaw) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  absl::StatusOr<std::unique_ptr<Slot>> early = Slot::OpenOwn(slot->path());
  ASSERT_TRUE(early.ok()) << early.status();
  slot->Free();
  FillAndSeal(*slot, Identity(150'000, 18));
  (*early)->Free();
  EXPECT_EQ(slot->state(), State::kSealed);
  absl::StatusOr<std::unique_ptr<Slot>> now = Slot::OpenOwn(slot->path());
  ASSERT_TRUE(now.ok()) << now.status();
  (*now)->Free();
  EXPECT_EQ(slot->state(), State::kFree);
}

TEST_F(SlotTest, ADisownedSlotMayBeAdopted) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  EXPECT_TRUE(absl::IsUnavailable(Slot::Adopt(slot->path()).status()));
  slot->Disown();
  EXPECT_TRUE(absl::IsInternal(slot->BeginFill(Identity(), {}, {})));
  EXPECT_TRUE(absl::IsUnavailable(Slot::OpenOwn(slot->path()).status()));
  absl::StatusOr<std::unique_ptr<Slot>> adopted = Slot::Adopt(slot->path());
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ((*adopted)->state(), State::kSealed);
  EXPECT_TRUE(OnlySlot().owner_alive);
}

TEST_F(SlotTest, DamagedDigestsAndNotesAreDamaged) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot, Identity(), {{"loss", 0.25}});
  slot->digests()[1].low ^= 1;
  EXPECT_TRUE(IsDamaged(slot->Record().status())) << slot->Record().status();
  slot->digests()[1].low ^= 1;
  ASSERT_TRUE(slot->Record().ok());
  // The notes stand right behind the table of four digests.
  reinterpret_cast<char*>(slot->digests().data())[4 * sizeof(codec::Digest) + 3] ^= 1;
  EXPECT_TRUE(IsDamaged(slot->Record().status())) << slot->Record().status();
}

TEST_F(SlotTest, TransitionsOutOfOrderEndTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH({ MakeSlot()->MarkCaptured(); }, "");
  EXPECT_DEATH({ MakeSlot()->Seal(); }, "");
}

// Fails calls of one kind with one error.
class FailingCall : public os::IoHooks {
 public:
  FailingCall(os::Call call, int error) : call_(call), error_(error) { os::SetIoHooks(this); }
  ~FailingCall() override { os::SetIoHooks(nullptr); }
  os::CallVerdict Before(const os::CallInfo& info) override {
    os::CallVerdict verdict;
    if (info.call == call_) verdict.error_number = error_;
    return verdict;
  }

 private:
  const os::Call call_;
  const int error_;
};

TEST_F(SlotTest, MEM_01_RefusedRoomSaysSizesAndRemedyAndLeavesNoFile) {
  ASSERT_NE(MakeSlot(), nullptr);
  const FailingCall hook(os::Call::kFallocate, ENOSPC);
  const absl::Status status = Slot::Create(Options(20u << 20)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes wanted"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes free"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("NEVE_RAM_DIR"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/shm"));
  EXPECT_EQ(os::ListDirectory(os::JoinPath(ram_, TestUid(1).ToHex()))->size(), 1u);
}

TEST_F(SlotTest, AFailureAtAnyStepOfCreateLeavesNoFile) {
  ASSERT_NE(MakeSlot(), nullptr);
  for (const os::Call call : {os::Call::kOpen, os::Call::kFallocate, os::Call::kMmap, os::Call::kRename}) {
    const FailingCall hook(call, EIO);
    EXPECT_FALSE(Slot::Create(Options()).ok());
    os::SetIoHooks(nullptr);
    EXPECT_EQ(os::ListDirectory(os::JoinPath(ram_, TestUid(1).ToHex()))->size(), 1u) << static_cast<int>(call);
  }
}

TEST_F(SlotTest, RefusedMappingsFailTheOpen) {
  const std::unique_ptr<Slot> slot = MakeSlot();
  FillAndSeal(*slot);
  slot->Disown();
  const FailingCall hook(os::Call::kMmap, ENOMEM);
  EXPECT_TRUE(absl::IsResourceExhausted(Slot::OpenForReading(slot->path()).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(Slot::Adopt(slot->path()).status()));
}

}  // namespace
}  // namespace neve::slot
