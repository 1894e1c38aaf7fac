// Places and names: what is made, found, refused and left alone.
#include "storage/file/file_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "file_tier_fixture.h"

namespace neve::testing {
namespace {

namespace fs = std::filesystem;

mode_t ModeOf(const std::string& path) {
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777;
}

TEST_F(FileTierTest, MissingRootIsUnavailableAndNamed) {
  const std::string root = root_.path() + "/mount";
  const auto tier = OpenTier({.job_folder = root + "/job", .root = root});
  for (const absl::Status& status :
       {List(*tier).status(), Open(*tier, KeyOf(1)).status(), Begin(*tier, KeyOf(1), 4096).status(), Retire(*tier, KeyOf(1)),
        SetPinned(*tier, KeyOf(1), true), ReadNote(*tier, "job.json").status(), WriteNote(*tier, "job.json", "{}", true),
        RemoveNote(*tier, "job.json"), Heal(*tier, KeyOf(1), 0, Image(1).bytes.span())}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find(root), absl::string_view::npos) << status;
  }
  EXPECT_FALSE(fs::exists(root));
}

TEST_F(FileTierTest, MissingJobFolderIsAnEmptyListing) {
  const auto tier = OpenTier();
  const auto listing = List(*tier);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_FALSE(listing->exists);
  EXPECT_TRUE(absl::IsNotFound(ReadNote(*tier, "job.json").status()));
  EXPECT_TRUE(absl::IsNotFound(SetPinned(*tier, KeyOf(1), true)));
  EXPECT_EQ(Retire(*tier, KeyOf(1)), absl::OkStatus());
  EXPECT_EQ(RemoveNote(*tier, "job.json"), absl::OkStatus());
  EXPECT_TRUE(fs::is_empty(root_.path()));
}

TEST_F(FileTierTest, FirstWriteMakesTheParents) {
  const auto tier = OpenTier({.job_folder = root_.path() + "/a/b c/d\xc3\xa9'\"*/job"});
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1)), absl::OkStatus());
}

TEST_F(FileTierTest, OddCharactersInTheFolderWork) {
  for (const std::string& name : {std::string("new\nline"), std::string("  spaces "), std::string("-rf"), std::string("\xff\xfe"),
                                  std::string("%s%n"), std::string(200, 'x')}) {
    const auto tier = OpenTier({.job_folder = root_.path() + "/" + name, .root = root_.path()});
    ASSERT_EQ(Save(*tier, Image(1, 5000)), absl::OkStatus()) << name;
    EXPECT_EQ(CommittedCount(*tier), 1u) << name;
  }
}

TEST_F(FileTierTest, FolderWithoutAUsableNameIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(storage::OpenFileTier({}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(storage::OpenFileTier({.job_folder = std::string("a\0b", 3)}).status()));
}

TEST_F(FileTierTest, UnknownEngineIsAnErrorOfOpen) {
  EXPECT_FALSE(storage::OpenFileTier({.job_folder = folder(), .engine = "no such engine"}).ok());
}

TEST_F(FileTierTest, FileWhereTheJobFolderShouldBeIsUnavailable) {
  WriteText(folder(), "a file");
  const auto tier = OpenTier();
  for (const absl::Status& status : {List(*tier).status(), Begin(*tier, KeyOf(1), 4096).status(),
                                     WriteNote(*tier, "job.json", "{}", false), Open(*tier, KeyOf(1)).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("not a folder"), absl::string_view::npos) << status;
  }
}

TEST_F(FileTierTest, FileWhereTheRootShouldBeIsUnavailable) {
  WriteText(root_.path() + "/file", "a file");
  const auto tier = OpenTier({.job_folder = root_.path() + "/file/job", .root = root_.path() + "/file"});
  EXPECT_TRUE(absl::IsUnavailable(List(*tier).status()));
}

TEST_F(FileTierTest, FileWhereTheSaveFolderShouldBeIsUnavailable) {
  fs::create_directory(folder());
  WriteText(SaveFolder(KeyOf(1)), "a file");
  const auto tier = OpenTier();
  const absl::Status status = Begin(*tier, KeyOf(1), 4096).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(CommittedCount(*tier), 0u);
  EXPECT_EQ(Save(*tier, Image(2)), absl::OkStatus());
}

TEST_F(FileTierTest, KeysThatCannotBeAreInvalid) {
  const auto tier = OpenTier();
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(*tier, {.save = {1, 1}, .step = 1, .rank = 2, .world = 2}, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(*tier, {.save = {1, 1}, .step = kStepLimit}, 1).status()));
  EXPECT_TRUE(fs::is_empty(root_.path()));
}

TEST_F(FileTierTest, NotesHavePlainNames) {
  const auto tier = OpenTier();
  for (const std::string name : {"", ".", "..", "a/b", "../x", ".spare", ".tmp-1", "step-000000000010.i0001.s000001"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(WriteNote(*tier, name, "x", false))) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(ReadNote(*tier, name).status())) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(RemoveNote(*tier, name))) << name;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(WriteNote(*tier, "big", std::string((1u << 20) + 1, 'x'), false)));
  EXPECT_TRUE(fs::is_empty(root_.path()));
}

TEST_F(FileTierTest, DUR_04_LinkToAnotherDiskStaysALink) {
  const TemporaryFolder disk;
  fs::create_directory_symlink(disk.path(), folder());
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  ASSERT_EQ(WriteNote(*tier, "job.json", "{}", true), absl::OkStatus());
  EXPECT_TRUE(fs::is_symlink(folder()));
  EXPECT_FALSE(fs::is_empty(disk.path()));
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1)), absl::OkStatus());
  EXPECT_EQ(Retire(*tier, KeyOf(1)), absl::OkStatus());
}

TEST_F(FileTierTest, DUR_04_SaveMovedToAnotherDiskBehindALinkIsRead) {
  const TemporaryFolder disk;
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  const std::string moved = disk.path() + "/moved";
  fs::copy(SaveFolder(KeyOf(1)), moved, fs::copy_options::recursive);
  fs::remove_all(SaveFolder(KeyOf(1)));
  fs::create_directory_symlink(moved, SaveFolder(KeyOf(1)));
  EXPECT_EQ(CommittedCount(*tier), 1u);
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1)), absl::OkStatus());
}

TEST_F(FileTierTest, LinkToADiskThatIsNotThereIsUnavailable) {
  fs::create_directory_symlink(root_.path() + "/unmounted", folder());
  const auto tier = OpenTier();
  EXPECT_TRUE(absl::IsUnavailable(List(*tier).status()));
  EXPECT_TRUE(absl::IsUnavailable(Begin(*tier, KeyOf(1), 4096).status()));
  EXPECT_FALSE(fs::exists(root_.path() + "/unmounted"));
}

TEST_F(FileTierTest, DUR_05_ModesAreThoseOfTheUmask) {
  const struct {
    mode_t mask, file, folder;
  } cases[] = {{022, 0644, 0755}, {027, 0640, 0750}, {077, 0600, 0700}};
  for (const auto& [mask, file, folder_mode] : cases) {
    const TemporaryFolder root;
    const mode_t before = ::umask(mask);
    const std::string job = root.path() + "/parent/job";
    {
      const auto tier = OpenTier({.job_folder = job, .root = root.path()});
      EXPECT_EQ(Save(*tier, Image(1)), absl::OkStatus());
      EXPECT_EQ(WriteNote(*tier, "job.json", "{}", true), absl::OkStatus());
      EXPECT_EQ(SetPinned(*tier, KeyOf(1), true), absl::OkStatus());
      // A recycled file too.
      EXPECT_EQ(Save(*tier, Image(2)), absl::OkStatus());
      EXPECT_EQ(Retire(*tier, KeyOf(1)), absl::OkStatus());
      EXPECT_EQ(Save(*tier, Image(3)), absl::OkStatus());
    }
    ::umask(before);
    EXPECT_EQ(ModeOf(root.path() + "/parent"), folder_mode);
    for (const auto& entry : fs::recursive_directory_iterator(job)) {
      EXPECT_EQ(ModeOf(entry.path()), entry.is_directory() ? folder_mode : file) << entry.path();
    }
  }
}

TEST_F(FileTierTest, RET_04_ForeignThingsAndHalfSavesArePassedOver) {
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  fs::create_directory(SaveFolder(KeyOf(3)));  // empty
  fs::create_directory(SaveFolder(KeyOf(4)));
  WriteText(RecordPath(KeyOf(4)), "{}");  // only a record
  fs::create_directory(SaveFolder(KeyOf(5)));
  WriteText(ImagePath(KeyOf(5)), "half");  // only an image
  WriteText(SaveFolder(KeyOf(6)), "a file of a save's name");
  fs::create_directory(folder() + "/.tmp-50");
  WriteText(folder() + "/.tmp-0123456789abcdef", "x");
  WriteText(SaveFolder(KeyOf(1)) + "/.tmp-0123456789abcdef", "x");
  WriteText(SaveFolder(KeyOf(1)) + "/notes.txt", "x");
  fs::create_directory(SaveFolder(KeyOf(1)) + "/shard-00001-of-00002.safetensors");
  fs::create_directory(folder() + "/60");
  WriteText(folder() + "/step-70", "x");
  WriteText(folder() + "/life-banana.json", "x");
  fs::create_symlink("nowhere", folder() + "/" + format::FormatSaveName({.step = 80, .save = {1, 8}}));
  const auto listing = List(*tier);
  ASSERT_TRUE(listing.ok()) << listing.status();
  ASSERT_EQ(listing->images.size(), 3u);
  EXPECT_EQ(listing->images[0].key, KeyOf(1));
  EXPECT_TRUE(listing->images[0].has_record && listing->images[0].has_image);
  EXPECT_GE(listing->images[0].stored_bytes, listing->images[0].image_bytes);
  EXPECT_EQ(listing->images[1].key, KeyOf(4));
  EXPECT_TRUE(listing->images[1].has_record && !listing->images[1].has_image);
  EXPECT_EQ(listing->images[2].key, KeyOf(5));
  EXPECT_TRUE(!listing->images[2].has_record && listing->images[2].has_image);
  EXPECT_EQ(listing->images[2].image_bytes, 4u);
}

TEST_F(FileTierTest, ImagesThatDoNotFitTheirRecordAreDamaged) {
  const auto tier = OpenTier();
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) ASSERT_EQ(Save(*tier, Image(sequence)), absl::OkStatus());
  fs::resize_file(ImagePath(KeyOf(1)), 100'000);
  fs::remove(ImagePath(KeyOf(2)));
  WriteText(RecordPath(KeyOf(3)), "");
  fs::copy_file(RecordPath(KeyOf(5)), RecordPath(KeyOf(4)), fs::copy_options::overwrite_existing);
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
    const absl::Status status = Open(*tier, KeyOf(sequence)).status();
    EXPECT_TRUE(IsDamaged(status)) << sequence << " " << status;
    EXPECT_NE(status.message().find(folder()), absl::string_view::npos) << status;
  }
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(5)), absl::OkStatus());
}

TEST_F(FileTierTest, RecordThatWasTamperedWithIsDataLoss) {
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  std::ifstream in(RecordPath(KeyOf(1)));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  text.replace(text.find("\"job\":\"job\""), 11, "\"job\":\"jab\"");
  WriteText(RecordPath(KeyOf(1)), text);
  EXPECT_TRUE(absl::IsDataLoss(Open(*tier, KeyOf(1)).status()));
}

TEST_F(FileTierTest, ImageCutWhileItIsOpenIsDamagedWhenRead) {
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  const auto reader = Open(*tier, KeyOf(1));
  ASSERT_TRUE(reader.ok()) << reader.status();
  fs::resize_file(ImagePath(KeyOf(1)), 100'000);
  const absl::Status status = ReadAndVerify(**reader);
  EXPECT_TRUE(IsDamaged(status)) << status;
}

// How many pages of a file lie in memory.
uint64_t PagesInMemory(const std::string& path) {
  const uint64_t bytes = fs::file_size(path);
  const int fd = ::open(path.c_str(), O_RDONLY);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  EXPECT_EQ(::mincore(mapped, bytes, pages.data()), 0);
  ::munmap(mapped, bytes);
  ::close(fd);
  return static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST_F(FileTierTest, WhatIsReadForOthersTooIsFoundInMemoryByThem) {
  const auto tier = OpenTier();
  const TestImage image = Image(1, 8 << 20);
  ASSERT_EQ(Save(*tier, image), absl::OkStatus());
  const auto reader = Open(*tier, KeyOf(1));
  ASSERT_TRUE(reader.ok()) << reader.status();
  PaddedBuffer target(1 << 20);
  ASSERT_EQ(ReadShared(**reader, 4 << 20, target.span()), absl::OkStatus());
  EXPECT_TRUE(std::ranges::equal(target.span(), image.bytes.span().subspan(4 << 20, 1 << 20)));
  EXPECT_GE(PagesInMemory(ImagePath(KeyOf(1))), 256u);
}

TEST_F(FileTierTest, SharedReadsOfAFileWhoseNameIsAnothersAreOfTheFile) {
  const auto tier = OpenTier();
  const TestImage image = Image(1, 1 << 20);
  ASSERT_EQ(Save(*tier, image), absl::OkStatus());
  const auto reader = Open(*tier, KeyOf(1));
  ASSERT_TRUE(reader.ok()) << reader.status();
  fs::remove(ImagePath(KeyOf(1)));
  PaddedBuffer target(1 << 20);
  ASSERT_EQ(ReadShared(**reader, 0, target.span()), absl::OkStatus());   // the name leads nowhere
  EXPECT_TRUE(std::ranges::equal(target.span(), image.bytes.span()));
  const auto again = Open(*tier, KeyOf(1));
  EXPECT_FALSE(again.ok());
  ASSERT_EQ(Save(*tier, Image(2, 1 << 20)), absl::OkStatus());
  const auto other = Open(*tier, KeyOf(2));
  ASSERT_TRUE(other.ok()) << other.status();
  fs::remove(ImagePath(KeyOf(2)));
  WriteText(ImagePath(KeyOf(2)), std::string(1 << 20, 'x'));
  ASSERT_EQ(ReadShared(**other, 0, target.span()), absl::OkStatus());
  EXPECT_FALSE(std::ranges::all_of(target.span(), [](std::byte byte) { return byte == std::byte{'x'}; }));
}

TEST_F(FileTierTest, LeftoverWithoutRecordIsReplaced) {
  const auto tier = OpenTier();
  fs::create_directories(SaveFolder(KeyOf(1)));
  WriteText(ImagePath(KeyOf(1)), std::string(500'000, 'x'));
  ASSERT_EQ(Save(*tier, Image(1)), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1)), absl::OkStatus());
}

TEST_F(FileTierTest, FolderRemovedUnderAWriterFailsTheCommitAndStaysRemoved) {
  const auto tier = OpenTier();
  const TestImage image = Image(1);
  auto writer = Begin(*tier, KeyOf(1), image.record.image_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ(Write(**writer, 0, image.bytes.span()), absl::OkStatus());
  fs::remove_all(folder());
  const absl::Status status = Commit(**writer, image.record);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  *writer = nullptr;
  EXPECT_FALSE(List(*tier)->exists);
  EXPECT_EQ(Save(*tier, image), absl::OkStatus());
}

TEST_F(FileTierTest, ImageReplacedUnderAWriterFailsTheCommitAndIsLeftAlone) {
  const auto tier = OpenTier();
  const TestImage image = Image(1);
  auto writer = Begin(*tier, KeyOf(1), image.record.image_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ(Write(**writer, 0, image.bytes.span()), absl::OkStatus());
  fs::remove(ImagePath(KeyOf(1)));
  WriteText(ImagePath(KeyOf(1)), "of somebody else");
  EXPECT_TRUE(absl::IsUnavailable(Commit(**writer, image.record)));
  *writer = nullptr;
  EXPECT_EQ(CommittedCount(*tier), 0u);
  EXPECT_TRUE(fs::exists(ImagePath(KeyOf(1))));
}

TEST_F(FileTierTest, CommitBeforeAllBytesAreWrittenIsRefused) {
  const auto tier = OpenTier();
  const TestImage image = Image(1);
  auto writer = Begin(*tier, KeyOf(1), image.record.image_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, image.record)));
  ASSERT_EQ(Write(**writer, 0, image.bytes.span().first(4096)), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, image.record)));
  ASSERT_EQ(Write(**writer, 4096, image.bytes.span().subspan(4096)), absl::OkStatus());
  EXPECT_EQ(Commit(**writer, image.record), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, image.record))) << "twice";
  *writer = nullptr;
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1)), absl::OkStatus());
}

TEST_F(FileTierTest, WritesThatDoNotFitAreRefused) {
  const auto tier = OpenTier();
  const TestImage image = Image(1, 10'000);
  auto writer = Begin(*tier, KeyOf(1), 10'000);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::span<const std::byte> bytes = image.bytes.span();
  EXPECT_TRUE(absl::IsInvalidArgument(Write(**writer, 1, bytes.first(4096))));
  EXPECT_TRUE(absl::IsInvalidArgument(Write(**writer, 0, bytes.first(4095))));
  EXPECT_TRUE(absl::IsInvalidArgument(Write(**writer, 4096, bytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(Write(**writer, ~uint64_t{4095}, bytes)));
}

TEST_F(FileTierTest, ImageOfNoBytesIsCommitted) {
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(1, 0)), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1)), absl::OkStatus());
  EXPECT_EQ(fs::file_size(ImagePath(KeyOf(1))), 0u);
}

TEST_F(FileTierTest, RetireTakesTheEmptyFolderButNothingOfOthers) {
  const auto tier = OpenTier();
  ASSERT_EQ(Save(*tier, Image(KeyOf(1, 0, 2))), absl::OkStatus());
  ASSERT_EQ(Save(*tier, Image(KeyOf(1, 1, 2))), absl::OkStatus());
  ASSERT_EQ(Save(*tier, Image(2)), absl::OkStatus());
  ASSERT_EQ(SetPinned(*tier, KeyOf(1, 0, 2), true), absl::OkStatus());
  WriteText(SaveFolder(KeyOf(1)) + "/.tmp-0123456789abcdef", "left by a life that was killed");
  WriteText(SaveFolder(KeyOf(1)) + "/complete.json", "{}");
  WriteText(SaveFolder(KeyOf(2)) + "/notes.txt", "of somebody else");
  ASSERT_EQ(Retire(*tier, KeyOf(1, 0, 2)), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier, KeyOf(1, 1, 2)), absl::OkStatus());
  ASSERT_EQ(Retire(*tier, KeyOf(1, 1, 2)), absl::OkStatus());
  EXPECT_FALSE(fs::exists(SaveFolder(KeyOf(1))));
  ASSERT_EQ(Retire(*tier, KeyOf(2)), absl::OkStatus());
  EXPECT_EQ(NamesIn(SaveFolder(KeyOf(2))), std::vector<std::string>{"notes.txt"});
}

TEST_F(FileTierTest, RET_03_RanksThatRetireTheSameImagesDoNotDisturbEachOther) {
  constexpr int kRanks = 4;
  constexpr uint64_t kRounds = 5;
  std::vector<std::unique_ptr<storage::Tier>> tiers;
  for (int i = 0; i < kRanks; ++i) tiers.push_back(OpenTier());
  for (uint64_t round = 1; round <= kRounds; ++round) {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      ASSERT_EQ(Save(*tiers[rank], Image(KeyOf(round, rank, kRanks), 5000)), absl::OkStatus());
    if (round == 1) continue;
    std::vector<std::unique_ptr<sync::Result<absl::Status>>> results;
    for (const auto& tier : tiers) {
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        results.push_back(std::make_unique<sync::Result<absl::Status>>());
        tier->Retire(KeyOf(round - 1, rank, kRanks),
                     [r = results.back().get()](absl::Status status) { r->Set(std::move(status)); });
      }
      EXPECT_TRUE(List(*tiers[0]).ok());
    }
    for (const auto& result : results) EXPECT_EQ(result->Take(), absl::OkStatus());
    EXPECT_EQ(CommittedCount(*tiers[0]), static_cast<size_t>(kRanks));
    EXPECT_FALSE(fs::exists(SaveFolder(KeyOf(round - 1))));
  }
}

}  // namespace
}  // namespace neve::testing
