// What the file tier answers when the system refuses: a clear status, the partial removed, everything else untouched.
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>

#include "base/obs/log.h"
#include "file_tier_fixture.h"

namespace neve::testing {
namespace {

namespace fs = std::filesystem;
using os::Call;
using os::CallInfo;
using os::CallVerdict;

bool IsImage(const CallInfo& info) { return info.path.ends_with(".safetensors"); }
bool IsTemporary(const CallInfo& info) { return info.path.find("/.tmp-") != std::string::npos; }

class FileFaultsTest : public FileTierTest {
 protected:
  void SetUp() override {
    tier_ = OpenTier();
    ASSERT_EQ(Save(*tier_, Image(1)), absl::OkStatus());
  }
  // Begins and writes image 2 while nothing fails.
  std::shared_ptr<storage::ImageWriter> Written() {
    const auto writer = Begin(*tier_, KeyOf(2), image_.record.image_bytes);
    EXPECT_TRUE(writer.ok()) << writer.status();
    EXPECT_EQ(Write(**writer, 0, image_.bytes.span()), absl::OkStatus());
    return *writer;
  }
  void ExpectOnlyTheFirst() {
    const auto listing = List(*tier_);
    ASSERT_TRUE(listing.ok()) << listing.status();
    EXPECT_EQ(listing->images.size(), 1u);
    EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(1)), absl::OkStatus());
    EXPECT_EQ(NamesIn(folder()), std::vector<std::string>{fs::path(SaveFolder(KeyOf(1))).filename()});
    EXPECT_EQ(NamesIn(SaveFolder(KeyOf(1))).size(), 2u);
  }

  std::unique_ptr<storage::Tier> tier_;
  const TestImage image_ = Image(2);
};

TEST_F(FileFaultsTest, DUR_02_NoRoomIsSaidBeforeAnyByteMoves) {
  {
    std::atomic<int> writes = 0;
    ScopedHooks hooks([&](const CallInfo& info) {
      writes += info.call == Call::kPwrite;
      return CallVerdict{.error_number = info.call == Call::kFallocate ? ENOSPC : 0};
    });
    const absl::Status status = Save(*tier_, image_);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(ErrnoOf(status), ENOSPC);
    EXPECT_NE(status.message().find("200001 bytes"), absl::string_view::npos) << status;
    EXPECT_NE(status.message().find("free"), absl::string_view::npos) << status;
    EXPECT_EQ(writes, 0);
  }
  ExpectOnlyTheFirst();
  EXPECT_EQ(Save(*tier_, image_), absl::OkStatus());
}

TEST_F(FileFaultsTest, DUR_02_NoRoomInTheMiddleOfAWriteLeavesNothing) {
  {
    ScopedHooks hooks([](const CallInfo& info) {
      return CallVerdict{.error_number = info.call == Call::kPwrite && info.offset >= 65536 ? ENOSPC : 0};
    });
    const absl::Status status = Save(*tier_, image_, 65536);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(ErrnoOf(status), ENOSPC);
  }
  ExpectOnlyTheFirst();
  EXPECT_EQ(Save(*tier_, image_), absl::OkStatus());
}

TEST_F(FileFaultsTest, DUR_02_FileSizeLimitIsAnErrorAndKillsNobody) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = Save(*tier_, image_);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ErrnoOf(status), EFBIG);
  ExpectOnlyTheFirst();
  EXPECT_EQ(Save(*tier_, image_), absl::OkStatus());
}

TEST_F(FileFaultsTest, DUR_02_SparesAreGivenUpWhenTheDiskIsFull) {
  ASSERT_EQ(Save(*tier_, Image(3, 5000)), absl::OkStatus());
  ASSERT_EQ(Save(*tier_, Image(4, 5000)), absl::OkStatus());
  ASSERT_EQ(Retire(*tier_, KeyOf(3)), absl::OkStatus());
  ASSERT_EQ(Retire(*tier_, KeyOf(4)), absl::OkStatus());
  ASSERT_EQ(NamesIn(folder() + "/.spare").size(), 2u);
  {
    // Room for the image is there only once all spares are gone.
    ScopedHooks hooks([&](const CallInfo& info) {
      return CallVerdict{.error_number = info.call == Call::kFallocate && !fs::is_empty(folder() + "/.spare") ? ENOSPC : 0};
    });
    EXPECT_EQ(Save(*tier_, image_), absl::OkStatus());
  }
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus());
}

TEST_F(FileFaultsTest, FileSystemThatCannotReserveIsWrittenAllTheSame) {
  for (const int error : {EOPNOTSUPP, EINVAL, ENOSYS}) {
    ScopedHooks hooks(
        [error](const CallInfo& info) { return CallVerdict{.error_number = info.call == Call::kFallocate ? error : 0}; });
    EXPECT_EQ(Save(*tier_, Image(10 + static_cast<uint64_t>(error))), absl::OkStatus());
    EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(10 + static_cast<uint64_t>(error))), absl::OkStatus());
  }
}

TEST_F(FileFaultsTest, ReadOnlyFolderIsUnavailable) {
  {
    ScopedHooks hooks([](const CallInfo& info) {
      const bool changes = info.call == Call::kMkdir || (info.call == Call::kOpen && (info.flags & O_CREAT) != 0);
      return CallVerdict{.error_number = changes ? EROFS : 0};
    });
    for (const absl::Status& status :
         {Save(*tier_, image_), WriteNote(*tier_, "job.json", "{}", true), SetPinned(*tier_, KeyOf(1), true)}) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_EQ(ErrnoOf(status), EROFS) << status;
      EXPECT_NE(status.message().find(folder()), absl::string_view::npos) << status;
    }
  }
  ExpectOnlyTheFirst();
}

TEST_F(FileFaultsTest, FailedWriteMayBeRepeated) {
  auto writer = Begin(*tier_, KeyOf(2), image_.record.image_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  {
    ScopedHooks hooks([](const CallInfo& info) { return CallVerdict{.error_number = info.call == Call::kPwrite ? EIO : 0}; });
    const absl::Status status = Write(**writer, 0, image_.bytes.span());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ErrnoOf(status), EIO);
    EXPECT_NE(status.message().find(ImagePath(KeyOf(2))), absl::string_view::npos) << status;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, image_.record)));
  EXPECT_EQ(Write(**writer, 0, image_.bytes.span()), absl::OkStatus());
  EXPECT_EQ(Commit(**writer, image_.record), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus());
}

TEST_F(FileFaultsTest, FailedSyncIsNeverForgotten) {
  auto writer = Written();
  {
    ScopedHooks hooks([](const CallInfo& info) { return CallVerdict{.error_number = info.call == Call::kFdatasync ? EIO : 0}; });
    const absl::Status status = Commit(*writer, image_.record);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ErrnoOf(status), EIO);
  }
  // The kernel would say OK now, of pages that it has dropped.
  EXPECT_FALSE(Commit(*writer, image_.record).ok());
  writer = nullptr;
  ExpectOnlyTheFirst();
  EXPECT_EQ(Save(*tier_, image_), absl::OkStatus());
}

TEST_F(FileFaultsTest, CommitThatFailsAtTheRecordLeavesNoneAndMayBeRepeated) {
  const std::vector<std::function<bool(const CallInfo&)>> faults = {
      [](const CallInfo& info) { return info.call == Call::kFtruncate && IsImage(info); },
      [&](const CallInfo& info) { return info.call == Call::kFsync && info.path == SaveFolder(KeyOf(2)); },
      [&](const CallInfo& info) { return info.call == Call::kFsync && info.path == folder(); },
      [](const CallInfo& info) { return info.call == Call::kOpen && IsTemporary(info); },
      [](const CallInfo& info) { return info.call == Call::kPwrite && IsTemporary(info); },
      [](const CallInfo& info) { return info.call == Call::kFsync && IsTemporary(info); },
      [](const CallInfo& info) { return (info.call == Call::kRename || info.call == Call::kLink) && IsTemporary(info); },
      [&, renamed = false](const CallInfo& info) mutable {  // the fsync after the rename
        renamed |= info.call == Call::kRename && IsTemporary(info);
        return renamed && info.call == Call::kFsync;
      }};
  for (size_t i = 0; i < faults.size(); ++i) {
    auto writer = Written();
    std::atomic<int> met = 0;
    {
      ScopedHooks hooks([&](const CallInfo& info) {
        const bool fails = faults[i](info);
        met += fails;
        return CallVerdict{.error_number = fails ? EIO : 0};
      });
      const absl::Status status = Commit(*writer, image_.record);
      EXPECT_TRUE(absl::IsUnavailable(status)) << i << " " << status;
      EXPECT_EQ(ErrnoOf(status), EIO) << i;
    }
    EXPECT_GT(met, 0) << i;
    EXPECT_EQ(NamesIn(SaveFolder(KeyOf(2))).size(), 1u) << i << ": neither record nor temporary";
    EXPECT_EQ(Commit(*writer, image_.record), absl::OkStatus()) << i;
    writer = nullptr;
    EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus()) << i;
    ASSERT_EQ(Retire(*tier_, KeyOf(2)), absl::OkStatus());
  }
}

TEST_F(FileFaultsTest, FailedReadNamesTheFileAndMayBeRepeated) {
  const auto reader = Open(*tier_, KeyOf(1));
  ASSERT_TRUE(reader.ok()) << reader.status();
  {
    ScopedHooks hooks([](const CallInfo& info) { return CallVerdict{.error_number = info.call == Call::kPread ? EIO : 0}; });
    const absl::Status status = ReadAndVerify(**reader);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ErrnoOf(status), EIO);
    EXPECT_NE(status.message().find(ImagePath(KeyOf(1))), absl::string_view::npos) << status;
    EXPECT_EQ(ErrnoOf(Open(*tier_, KeyOf(1)).status()), EIO);
  }
  EXPECT_EQ(ReadAndVerify(**reader), absl::OkStatus());
}

TEST_F(FileFaultsTest, FailedHealIsReported) {
  const std::span<const std::byte> bytes = image_.bytes.span().first(4096);
  for (const Call call : {Call::kPwrite, Call::kFdatasync}) {
    ScopedHooks hooks([call](const CallInfo& info) { return CallVerdict{.error_number = info.call == call ? EIO : 0}; });
    EXPECT_EQ(ErrnoOf(Heal(*tier_, KeyOf(1), 0, bytes)), EIO);
  }
}

TEST_F(FileFaultsTest, ShortTransfersAreContinued) {
  {
    ScopedHooks hooks([](const CallInfo& info) {
      const bool image = (info.call == Call::kPwrite || info.call == Call::kPread) && IsImage(info);
      return CallVerdict{.shorten_to = image ? 8192 : -1};
    });
    EXPECT_EQ(Save(*tier_, image_), absl::OkStatus());
    EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus());
  }
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(2)), absl::OkStatus());
}

TEST_F(FileFaultsTest, DirectIoThatIsRefusedFallsBackWithOneLogLine) {
  static std::atomic<int> lines;
  lines = 0;
  obs::SetSink([](obs::Level, const std::string& line) { lines += line.find("O_DIRECT") != std::string::npos; });
  // Refused when the file is opened; and, as some file systems do, when the first bytes move.
  for (const bool at_open : {true, false}) {
    const auto tier = OpenTier();
    const int lines_before = lines;
    ScopedHooks hooks([at_open](const CallInfo& info) {
      if (at_open) return CallVerdict{.error_number = info.call == Call::kOpen && (info.flags & O_DIRECT) != 0 ? EINVAL : 0};
      // Only direct transfers of this image are whole blocks.
      const bool moves = (info.call == Call::kPwrite || info.call == Call::kPread) && IsImage(info);
      return CallVerdict{.error_number = moves && info.length % 4096 == 0 ? EINVAL : 0};
    });
    const ImageKey key = KeyOf(at_open ? 20 : 21);
    EXPECT_EQ(Save(*tier, Image(key, 60'001)), absl::OkStatus());
    EXPECT_EQ(OpenAndVerify(*tier, key), absl::OkStatus());
    EXPECT_EQ(lines - lines_before, 1);
  }
  obs::SetSink(nullptr);
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(20)), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(21)), absl::OkStatus());
}

TEST_F(FileFaultsTest, ListingFailsWhereASaveCannotBeRead) {
  ScopedHooks hooks([&](const CallInfo& info) {
    return CallVerdict{.error_number = info.call == Call::kList && info.path == SaveFolder(KeyOf(1)) ? EACCES : 0};
  });
  const absl::Status status = List(*tier_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find(SaveFolder(KeyOf(1))), absl::string_view::npos) << status;
}

TEST_F(FileFaultsTest, RET_03_WhatVanishesWhileItIsListedIsGone) {
  ASSERT_EQ(Save(*tier_, image_), absl::OkStatus());
  for (const bool folder_vanishes : {true, false}) {
    ScopedHooks hooks([&](const CallInfo& info) {
      const bool meets = folder_vanishes ? info.call == Call::kList && info.path == SaveFolder(KeyOf(2))
                                         : info.call == Call::kStat && info.path == ImagePath(KeyOf(2));
      return CallVerdict{.error_number = meets ? ENOENT : 0};
    });
    const auto listing = List(*tier_);
    ASSERT_TRUE(listing.ok()) << listing.status();
    EXPECT_EQ(listing->images.size(), folder_vanishes ? 1u : 2u);
    if (!folder_vanishes) {
      EXPECT_FALSE(listing->images[1].has_image);
    }
  }
}

TEST_F(FileFaultsTest, RET_06_FileThatCannotBeDeletedIsAnErrorAndALaterRetireFinishes) {
  ASSERT_EQ(Save(*tier_, image_), absl::OkStatus());
  {
    ScopedHooks hooks([](const CallInfo& info) {
      const bool removes = (info.call == Call::kUnlink || info.call == Call::kRename) && IsImage(info);
      return CallVerdict{.error_number = removes ? EPERM : 0};
    });
    const absl::Status status = Retire(*tier_, KeyOf(2));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find(ImagePath(KeyOf(2))), absl::string_view::npos) << status;
  }
  EXPECT_EQ(CommittedCount(*tier_), 1u) << "a half-deleted save is no checkpoint";
  EXPECT_EQ(Retire(*tier_, KeyOf(2)), absl::OkStatus());
  EXPECT_FALSE(fs::exists(SaveFolder(KeyOf(2))));
}

TEST_F(FileFaultsTest, RET_06_RecordThatCannotBeDeletedLeavesTheImageWhole) {
  {
    ScopedHooks hooks([](const CallInfo& info) {
      const bool removes = info.call == Call::kUnlink && info.path.ends_with(".commit.json");
      return CallVerdict{.error_number = removes ? EBUSY : 0};
    });
    EXPECT_EQ(ErrnoOf(Retire(*tier_, KeyOf(1))), EBUSY);
  }
  EXPECT_EQ(OpenAndVerify(*tier_, KeyOf(1)), absl::OkStatus());
}

// Every single call of a save and a retirement fails once: whatever the answer, what has a record is whole, what was there
// before is there, and the next save works.
TEST_F(FileFaultsTest, NoSingleFailureCostsAnotherImageOrLeavesAHalfOne) {
  ASSERT_EQ(Save(*tier_, Image(3)), absl::OkStatus());
  ASSERT_EQ(Retire(*tier_, KeyOf(3)), absl::OkStatus());  // so that a spare takes part
  uint64_t sequence = 100;
  for (int failing = 1;; ++failing) {
    const ImageKey key = KeyOf(++sequence), next = KeyOf(++sequence);
    std::atomic<int> calls = 0;
    absl::Status saved, retired;
    {
      ScopedHooks hooks([&](const CallInfo&) { return CallVerdict{.error_number = ++calls == failing ? EIO : 0}; });
      saved = Save(*tier_, Image(key, 30'001), 16'384);
      if (saved.ok()) retired = Retire(*tier_, key);
    }
    const auto listing = List(*tier_);
    ASSERT_TRUE(listing.ok()) << listing.status();
    for (const storage::ImageEntry& entry : listing->images) {
      if (entry.has_record) {
        ASSERT_EQ(OpenAndVerify(*tier_, entry.key), absl::OkStatus()) << "call " << failing;
      }
    }
    ASSERT_EQ(OpenAndVerify(*tier_, KeyOf(1)), absl::OkStatus()) << "call " << failing;
    if (!saved.ok()) {
      ASSERT_TRUE(absl::IsNotFound(Open(*tier_, key).status())) << "call " << failing << ": " << saved;
    }
    ASSERT_EQ(Save(*tier_, Image(next, 30'001)), absl::OkStatus()) << "call " << failing;
    ASSERT_EQ(Retire(*tier_, next), absl::OkStatus()) << "call " << failing;
    ASSERT_EQ(Retire(*tier_, key), absl::OkStatus()) << "call " << failing;
    if (calls < failing) {
      EXPECT_EQ(saved, absl::OkStatus());
      EXPECT_EQ(retired, absl::OkStatus());
      EXPECT_GT(failing, 30) << "the calls of a save were seen";
      break;
    }
  }
}

}  // namespace
}  // namespace neve::testing
