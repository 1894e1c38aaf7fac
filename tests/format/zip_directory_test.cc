#include "format/zip_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/inflate.h"
#include "format/zip_text.h"

namespace neve::format {
namespace {

using ::testing::HasSubstr;

struct Opened {
  std::unique_ptr<ByteSource> source;
  absl::StatusOr<ZipDirectory> zip;
  std::vector<std::string> notes;
  std::string message() const { return std::string(zip.status().message()); }
};

Opened Open(std::string text, bool lenient = false) {
  Opened opened{MakeMemorySource(std::move(text), "some.pt"), absl::UnknownError("not read yet"), {}};
  opened.zip = ZipDirectory::Read(*opened.source, {.lenient = lenient, .notes = &opened.notes});
  return opened;
}

const std::vector<ZipFile> kTwo = {{"a/data.pkl", "pickle", false, true}, {"a/data/0", "01234567"}};

TEST(ZipDirectoryTest, EntriesComeWithPlaceSizeAndChecksum) {
  const std::string text = ZipText(kTwo);
  const Opened opened = Open(text);
  ASSERT_TRUE(opened.zip.ok()) << opened.message();
  ASSERT_EQ(opened.zip->entries().size(), 2u);
  const ZipEntry* entry = opened.zip->Find("a/data/0");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(text.substr(entry->data_offset, entry->bytes), "01234567");
  EXPECT_EQ(*ReadZipEntry(*opened.source, *entry, 100), "01234567");
  EXPECT_EQ(opened.zip->Find("a/data"), nullptr);
  for (const ZipEntry& each : opened.zip->entries()) EXPECT_TRUE(CheckZipDescriptor(*opened.source, each).ok());
}

TEST(ZipDirectoryTest, DeflatedEntriesAreInflated) {
  const std::string content = std::string(100'000, 'x') + "end";
  const Opened opened = Open(ZipText({{"d", content, true}}));
  ASSERT_TRUE(opened.zip.ok()) << opened.message();
  EXPECT_EQ(*ReadZipEntry(*opened.source, opened.zip->entries()[0], 1 << 20), content);
}

TEST(ZipDirectoryTest, AnInflaterReadsFromAnyPosition) {
  std::string content;
  for (int i = 0; i < 100'000; ++i) content += std::to_string(i);
  const Opened opened = Open(ZipText({{"d", content, true}}));
  const ZipEntry& entry = opened.zip->entries()[0];
  Inflater inflater(*opened.source, entry.data_offset, entry.stored_bytes, entry.bytes);
  for (const uint64_t at : {uint64_t{300'000}, uint64_t{10}, uint64_t{11}, entry.bytes - 5}) {
    std::string part(5, '\0');
    ASSERT_TRUE(inflater.Read(at, std::as_writable_bytes(std::span(part))).ok());
    EXPECT_EQ(part, content.substr(at, 5));
  }
}

TEST(ZipDirectoryTest, ZipSixtyFourEndRecordsAreRead) {
  const Opened opened = Open(ZipText(kTwo, "", true));
  ASSERT_TRUE(opened.zip.ok()) << opened.message();
  EXPECT_EQ(opened.zip->entries().size(), 2u);
}

TEST(ZipDirectoryTest, ACommentMayFollow) { EXPECT_TRUE(Open(ZipText(kTwo, "a comment")).zip.ok()); }

TEST(ZipDirectoryTest, PT_22_TruncatedArchivesSayWhatIsWhole) {
  const std::string text = ZipText(kTwo);
  const Opened opened = Open(text.substr(0, text.size() - 30));
  EXPECT_TRUE(IsDamaged(opened.zip.status()));
  EXPECT_THAT(opened.message(), HasSubstr("truncated"));
  EXPECT_THAT(opened.message(), HasSubstr(std::to_string(text.size() - 30) + " bytes"));
  EXPECT_THAT(opened.message(), HasSubstr("entries that are whole: \"a/data.pkl\", \"a/data/0\""));
}

TEST(ZipDirectoryTest, PT_22_EveryPrefixIsRefused) {
  const std::string text = ZipText(kTwo);
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_TRUE(IsDamaged(Open(text.substr(0, bytes)).zip.status())) << bytes;
  }
}

TEST(ZipDirectoryTest, PT_22_TrailingDataIsRefusedOrNoted) {
  for (const size_t bytes : {size_t{1}, size_t{70'000}}) {
    const std::string text = ZipText(kTwo) + std::string(bytes, '\0');
    const Opened strict = Open(text);
    EXPECT_TRUE(IsDamaged(strict.zip.status()));
    EXPECT_THAT(strict.message(), HasSubstr("trailing data: " + std::to_string(bytes) + " bytes follow"));
    const Opened lenient = Open(text, true);
    EXPECT_TRUE(lenient.zip.ok()) << lenient.message();
    EXPECT_EQ(lenient.notes.size(), 1u);
  }
}

TEST(ZipDirectoryTest, PT_12_ConcatenatedArchivesAreNamed) {
  const Opened opened = Open(ZipText(kTwo) + ZipText(kTwo));
  EXPECT_TRUE(IsDamaged(opened.zip.status()));
  EXPECT_THAT(opened.message(),
              HasSubstr("archives are concatenated: the last one begins at byte " + std::to_string(ZipText(kTwo).size())));
}

TEST(ZipDirectoryTest, BytesBeforeTheArchiveAreRefusedOrNoted) {
  EXPECT_THAT(Open("sixbyt" + ZipText(kTwo)).message(), HasSubstr("6 bytes precede"));
  const Opened lenient = Open("sixbyt" + ZipText(kTwo), true);
  ASSERT_TRUE(lenient.zip.ok()) << lenient.message();
  EXPECT_EQ(*ReadZipEntry(*lenient.source, *lenient.zip->Find("a/data/0"), 100), "01234567");
}

TEST(ZipDirectoryTest, RepeatedNamesAreRefused) {
  EXPECT_THAT(Open(ZipText({{"a", "1"}, {"b", "2"}, {"a", "3"}})).message(), HasSubstr("two entries are named \"a\""));
}

TEST(ZipDirectoryTest, NamesThatLeaveTheArchiveAreRefused) {
  for (const std::string name : {"../a", "a/../../b", "/etc/passwd", "a\\b", ".."}) {
    EXPECT_TRUE(IsDamaged(Open(ZipText({{name, "1"}})).zip.status())) << name;
  }
  EXPECT_TRUE(IsDamaged(Open(ZipText({{std::string("a\0b", 3), "1"}})).zip.status()));
  EXPECT_TRUE(Open(ZipText({{"a..b/..c", "1"}})).zip.ok());
}

TEST(ZipDirectoryTest, OverlappingEntriesAreRefused) {
  ZipFile second{"b", "22"};
  second.header_offset = 0;
  second.local_name = "a";
  EXPECT_THAT(Open(ZipText({{"a", "1"}, second})).message(), HasSubstr("entries overlap"));
}

TEST(ZipDirectoryTest, SizesThatReachFurtherAreRefused) {
  ZipFile file{"a", "12345678"};
  file.claimed = 1'000'000;
  EXPECT_THAT(Open(ZipText({file})).message(), HasSubstr("reach past the directory"));
}

TEST(ZipDirectoryTest, BombsAreRefusedByTheirClaim) {
  ZipFile file{"a", "tiny", true};
  file.claimed = 2'000'000'000;
  const Opened opened = Open(ZipText({file}));
  EXPECT_TRUE(IsDamaged(opened.zip.status()));
  EXPECT_THAT(opened.message(), HasSubstr("cannot hold the 2000000000 that it claims"));
}

TEST(ZipDirectoryTest, AnInflationOfAnotherSizeIsRefused) {
  for (const int64_t claimed : {3, 5}) {
    ZipFile file{"a", "tiny", true, true};
    file.claimed = claimed;
    const Opened opened = Open(ZipText({file}));
    ASSERT_TRUE(opened.zip.ok()) << opened.message();
    EXPECT_TRUE(IsDamaged(ReadZipEntry(*opened.source, opened.zip->entries()[0], 100).status())) << claimed;
  }
}

TEST(ZipDirectoryTest, ALocalHeaderOfAnotherNameIsRefused) {
  ZipFile file{"a", "1"};
  file.local_name = "b";
  EXPECT_THAT(Open(ZipText({file})).message(), HasSubstr("its local header names it \"b\""));
}

TEST(ZipDirectoryTest, PT_21_AChecksumThatDiffersIsDataLoss) {
  ZipFile file{"a", "1"};
  file.crc_off = 1;
  const Opened opened = Open(ZipText({file}));
  ASSERT_TRUE(opened.zip.ok()) << opened.message();
  EXPECT_TRUE(absl::IsDataLoss(ReadZipEntry(*opened.source, opened.zip->entries()[0], 100).status()));
}

TEST(ZipDirectoryTest, AnEntryOverTheLimitIsNotInflated) {
  const Opened opened = Open(ZipText({{"a", std::string(1000, 'x'), true}}));
  EXPECT_TRUE(IsDamaged(ReadZipEntry(*opened.source, opened.zip->entries()[0], 999).status()));
}

}  // namespace
}  // namespace neve::format
