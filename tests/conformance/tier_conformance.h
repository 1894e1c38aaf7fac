// What every tier does alike. A tier registers with a factory of places:
//
//   INSTANTIATE_TEST_SUITE_P(File, TierConformance, ::testing::Values(TierParam{"direct", [] { return MakePlace(..); }}),
//                            TierParamName);
//
// Each test gets a place of its own, empty, and opens tiers on it.
#ifndef NEVE_TESTS_CONFORMANCE_TIER_CONFORMANCE_H_
#define NEVE_TESTS_CONFORMANCE_TIER_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/blocking_tier.h"

namespace neve::testing {

class TierPlace {
 public:
  virtual ~TierPlace() = default;
  // Another tier on the same place; may be called while earlier ones live.
  virtual std::unique_ptr<storage::Tier> Open() = 0;
  virtual Uid uid() const = 0;
  virtual std::string job() const { return "conformance"; }
  // Whether nothing at all was created in the place.
  virtual bool Untouched() = 0;
  // Flips every bit of a range of a committed image, below the tier. False: this tier has no way to.
  virtual bool Damage(const ImageKey& key, uint64_t offset, uint64_t bytes) { return false; }
  virtual bool keeps_notes() const { return true; }
  virtual bool keeps_pins() const { return true; }
  virtual bool heals() const { return true; }
  virtual uint64_t many() const { return 50; }  // how many images it holds without trouble
};

struct TierParam {
  std::string name;
  std::function<std::unique_ptr<TierPlace>()> make;
};

inline std::string TierParamName(const ::testing::TestParamInfo<TierParam>& info) { return info.param.name; }

class TierConformance : public ::testing::TestWithParam<TierParam> {
 protected:
  void SetUp() override {
    place_ = GetParam().make();
    ASSERT_NE(place_, nullptr);
    tier_ = place_->Open();
    ASSERT_NE(tier_, nullptr);
  }

  TestImage Image(const ImageKey& key, uint64_t bytes, uint64_t seed = 1) {
    return MakeImage(key, bytes, seed, place_->job(), place_->uid());
  }
  std::vector<storage::ImageEntry> Committed() {
    const absl::StatusOr<storage::Listing> listing = List(*tier_);
    EXPECT_TRUE(listing.ok()) << listing.status();
    std::vector<storage::ImageEntry> images;
    if (listing.ok()) {
      std::copy_if(listing->images.begin(), listing->images.end(), std::back_inserter(images),
                   [](const storage::ImageEntry& image) { return image.has_record; });
    }
    return images;
  }

  std::unique_ptr<TierPlace> place_;
  std::unique_ptr<storage::Tier> tier_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformance);

TEST_P(TierConformance, EmptyPlaceListsNothingAndReadingCreatesNothing) {
  const absl::StatusOr<storage::Listing> listing = List(*tier_);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_TRUE(listing->images.empty());
  EXPECT_EQ(listing->incarnation_max, 0u);
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, KeyOf(1)).status()));
  if (place_->keeps_notes()) {
    EXPECT_TRUE(absl::IsNotFound(ReadNote(*tier_, "job.json").status()));
  }
  EXPECT_TRUE(place_->Untouched());
}

TEST_P(TierConformance, CommittedImageIsListedOpenedAndRead) {
  const TestImage image = Image(KeyOf(7, 3, 8, 2), (4u << 20) + 4096 + 17);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  const absl::StatusOr<storage::Listing> listing = List(*tier_);
  ASSERT_TRUE(listing.ok()) << listing.status();
  ASSERT_EQ(listing->images.size(), 1u);
  EXPECT_TRUE(listing->exists);
  EXPECT_EQ(listing->images[0].key, image.record.key);
  EXPECT_TRUE(listing->images[0].has_record);
  EXPECT_TRUE(listing->images[0].has_image);
  EXPECT_FALSE(listing->images[0].pinned);
  EXPECT_EQ(listing->images[0].image_bytes, image.record.image_bytes);
  EXPECT_EQ(listing->incarnation_max, 2u);
  absl::StatusOr<std::shared_ptr<storage::ImageReader>> reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->record().digests, image.record.digests);
  EXPECT_EQ((*reader)->record().tags, image.record.tags);
  EXPECT_EQ(ReadAndVerify(**reader), absl::OkStatus());
}

TEST_P(TierConformance, RecordKeepsTheUidOfTheJob) {
  const TestImage image = Image(KeyOf(1), 4096);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->record().uid, place_->uid());
  EXPECT_EQ((*reader)->record().job, place_->job());
}

TEST_P(TierConformance, EveryTailSizeComesBack) {
  uint64_t sequence = 0;
  for (const uint64_t bytes : {1u, 8u, 4095u, 4096u, 4097u, 8192u, 65536u, 65537u, (1u << 20) - 1, 1u << 20, (1u << 20) + 1,
                               (4u << 20) - 4096, 4u << 20, (4u << 20) + 1}) {
    ++sequence;
    const TestImage image = Image(KeyOf(sequence), bytes, sequence);
    ASSERT_EQ(Save(*tier_, image), absl::OkStatus()) << bytes;
    EXPECT_EQ(OpenAndVerify(*tier_, image.record.key), absl::OkStatus()) << bytes;
  }
  for (const storage::ImageEntry& entry : Committed()) EXPECT_GT(entry.image_bytes, 0u);
}

TEST_P(TierConformance, RangesAreReadByThemselves) {
  const TestImage image = Image(KeyOf(1), 300'001);
  ASSERT_EQ(Save(*tier_, image, 65536), absl::OkStatus());
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const uint64_t offset : {uint64_t{0}, uint64_t{4096}, uint64_t{65536}, uint64_t{73 * 4096}}) {
    for (const uint64_t wanted : {uint64_t{1}, uint64_t{4096}, uint64_t{5000}, uint64_t{300'001}}) {
      const uint64_t bytes = std::min(wanted, image.record.image_bytes - offset);
      PaddedBuffer target(bytes);
      ASSERT_EQ(Read(**reader, offset, target.span()), absl::OkStatus());
      EXPECT_TRUE(std::ranges::equal(target.span(), image.bytes.span().subspan(offset, bytes))) << offset << " " << bytes;
      PaddedBuffer shared(bytes);
      ASSERT_EQ(ReadShared(**reader, offset, shared.span()), absl::OkStatus());
      EXPECT_TRUE(std::ranges::equal(shared.span(), target.span())) << offset << " " << bytes;
    }
  }
}

TEST_P(TierConformance, ReadBeyondTheEndIsRefused) {
  const TestImage image = Image(KeyOf(1), 10'000);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  PaddedBuffer target(4096);
  EXPECT_FALSE(Read(**reader, 8192, target.span()).ok());
  EXPECT_FALSE(ReadShared(**reader, 8192, target.span()).ok());
}

TEST_P(TierConformance, MemoryThatIsNotAlignedWorks) {
  const TestImage image = Image(KeyOf(1), (9u << 20) + 123);
  PaddedBuffer shifted(image.record.image_bytes + 3);
  const std::span<std::byte> source = shifted.span().subspan(3);
  std::ranges::copy(image.bytes.span(), source.begin());
  {
    const auto writer = Begin(*tier_, image.record.key, image.record.image_bytes);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ(Write(**writer, 0, source), absl::OkStatus());
    ASSERT_EQ(Commit(**writer, image.record), absl::OkStatus());
  }
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::ranges::fill(source, std::byte{0});
  ASSERT_EQ(Read(**reader, 0, source), absl::OkStatus());
  EXPECT_TRUE(std::ranges::equal(source, image.bytes.span()));
}

TEST_P(TierConformance, AbsentKeysAreNotFound) {
  ASSERT_EQ(Save(*tier_, Image(KeyOf(2, 0, 2), 5000)), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, KeyOf(1, 0, 2)).status()));
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, KeyOf(2, 1, 2)).status()));
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, KeyOf(2, 0, 3)).status()));
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, KeyOf(2, 0, 2, 9)).status()));
  EXPECT_EQ(Retire(*tier_, KeyOf(1, 0, 2)), absl::OkStatus());
}

TEST_P(TierConformance, AbortLeavesNothingListed) {
  const TestImage image = Image(KeyOf(1), 200'000);
  {
    const auto writer = Begin(*tier_, image.record.key, image.record.image_bytes);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ(Write(**writer, 0, image.bytes.span()), absl::OkStatus());
    EXPECT_TRUE(Committed().empty());
  }
  const absl::StatusOr<storage::Listing> listing = List(*tier_);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_TRUE(listing->images.empty());
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, image.record.key).status()));
  EXPECT_EQ(Save(*tier_, image), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier_, image.record.key), absl::OkStatus());
}

TEST_P(TierConformance, CommittedKeyIsNeverReplaced) {
  const TestImage image = Image(KeyOf(1), 70'000);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(*tier_, image.record.key, 70'000).status()));
  EXPECT_EQ(OpenAndVerify(*tier_, image.record.key), absl::OkStatus());
}

TEST_P(TierConformance, CommitOfAnotherImageIsRefused) {
  const TestImage image = Image(KeyOf(1), 70'000);
  const auto writer = Begin(*tier_, image.record.key, image.record.image_bytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ(Write(**writer, 0, image.bytes.span()), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, Image(KeyOf(2), 70'000).record)));
  EXPECT_TRUE(absl::IsInvalidArgument(Commit(**writer, Image(KeyOf(1), 60'000).record)));
  EXPECT_TRUE(Committed().empty());
  EXPECT_EQ(Commit(**writer, image.record), absl::OkStatus());
}

TEST_P(TierConformance, RetiredImageIsGone) {
  const TestImage first = Image(KeyOf(1), 70'000, 1), second = Image(KeyOf(2), 70'000, 2);
  ASSERT_EQ(Save(*tier_, first), absl::OkStatus());
  ASSERT_EQ(Save(*tier_, second), absl::OkStatus());
  EXPECT_EQ(Retire(*tier_, first.record.key), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Open(*tier_, first.record.key).status()));
  EXPECT_EQ(OpenAndVerify(*tier_, second.record.key), absl::OkStatus());
  EXPECT_EQ(Committed().size(), 1u);
  EXPECT_EQ(Retire(*tier_, first.record.key), absl::OkStatus()) << "gone already";
}

TEST_P(TierConformance, DUR_07_OpenReaderKeepsItsBytes) {
  const TestImage image = Image(KeyOf(1), 500'001);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (uint64_t sequence = 2; sequence < 7; ++sequence) {
    ASSERT_EQ(Save(*tier_, Image(KeyOf(sequence), 500'001, sequence)), absl::OkStatus());
    // A tier that cannot take away what is being read may say so.
    Retire(*tier_, KeyOf(sequence - 1)).IgnoreError();
  }
  EXPECT_EQ(ReadAndVerify(**reader), absl::OkStatus());
}

TEST_P(TierConformance, PinShowsInTheListing) {
  if (!place_->keeps_pins()) GTEST_SKIP() << "this tier keeps no pins";
  const ImageKey key = KeyOf(1);
  ASSERT_EQ(Save(*tier_, Image(key, 5000)), absl::OkStatus());
  ASSERT_EQ(Save(*tier_, Image(KeyOf(2), 5000)), absl::OkStatus());
  ASSERT_EQ(SetPinned(*tier_, key, true), absl::OkStatus());
  ASSERT_EQ(SetPinned(*tier_, key, true), absl::OkStatus());
  for (const storage::ImageEntry& entry : Committed()) EXPECT_EQ(entry.pinned, entry.key == key);
  ASSERT_EQ(SetPinned(*tier_, key, false), absl::OkStatus());
  for (const storage::ImageEntry& entry : Committed()) EXPECT_FALSE(entry.pinned);
  EXPECT_TRUE(absl::IsNotFound(SetPinned(*tier_, KeyOf(3), true)));
}

TEST_P(TierConformance, NotesAreWrittenReadAndRemoved) {
  if (!place_->keeps_notes()) {
    EXPECT_TRUE(absl::IsUnimplemented(WriteNote(*tier_, "job.json", "{}", false)));
    return;
  }
  ASSERT_EQ(WriteNote(*tier_, "job.json", "{\"a\":1}", true), absl::OkStatus());
  EXPECT_EQ(*ReadNote(*tier_, "job.json"), "{\"a\":1}");
  const absl::Status again = WriteNote(*tier_, "job.json", "{\"a\":2}", true);
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
  EXPECT_EQ(ErrnoOf(again), EEXIST);
  EXPECT_EQ(*ReadNote(*tier_, "job.json"), "{\"a\":1}");
  ASSERT_EQ(WriteNote(*tier_, "job.json", "", false), absl::OkStatus());
  EXPECT_EQ(*ReadNote(*tier_, "job.json"), "");
  ASSERT_EQ(RemoveNote(*tier_, "job.json"), absl::OkStatus());
  EXPECT_EQ(RemoveNote(*tier_, "job.json"), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(ReadNote(*tier_, "job.json").status()));
}

TEST_P(TierConformance, OneOfManyExclusiveNotesWins) {
  if (!place_->keeps_notes()) GTEST_SKIP() << "this tier keeps no notes";
  constexpr int kWriters = 6;
  std::vector<absl::Status> results(kWriters);
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      const std::unique_ptr<storage::Tier> tier = place_->Open();
      results[i] = WriteNote(*tier, "life-0001.json", std::to_string(i), true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto winner = std::ranges::find_if(results, [](const absl::Status& status) { return status.ok(); });
  ASSERT_NE(winner, results.end());
  EXPECT_EQ(std::ranges::count_if(results, [](const absl::Status& status) { return status.ok(); }), 1);
  EXPECT_EQ(*ReadNote(*tier_, "life-0001.json"), std::to_string(winner - results.begin()));
}

TEST_P(TierConformance, ClaimsCountForTheGreatestIncarnation) {
  if (!place_->keeps_notes()) GTEST_SKIP() << "this tier keeps no notes";
  ASSERT_EQ(Save(*tier_, Image(KeyOf(1, 0, 1, 3), 5000)), absl::OkStatus());
  EXPECT_EQ(List(*tier_)->incarnation_max, 3u);
  ASSERT_EQ(WriteNote(*tier_, "life-0012.json", "{}", true), absl::OkStatus());
  EXPECT_EQ(List(*tier_)->incarnation_max, 12u);
}

TEST_P(TierConformance, HealMakesADamagedRangeWhole) {
  if (!place_->heals()) GTEST_SKIP() << "this tier heals nothing";
  const TestImage image = Image(KeyOf(1), 3 * 65536 + 77);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  if (!place_->Damage(image.record.key, 65536, 100)) GTEST_SKIP() << "no way to damage an image below this tier";
  ASSERT_TRUE(place_->Damage(image.record.key, 3 * 65536, 77));
  EXPECT_TRUE(absl::IsDataLoss(OpenAndVerify(*tier_, image.record.key)));
  ASSERT_EQ(Heal(*tier_, image.record.key, 65536, image.bytes.span().subspan(65536, 65536)), absl::OkStatus());
  ASSERT_EQ(Heal(*tier_, image.record.key, 3 * 65536, image.bytes.span().subspan(3 * 65536)), absl::OkStatus());
  EXPECT_EQ(OpenAndVerify(*tier_, image.record.key), absl::OkStatus());
  EXPECT_EQ(Committed()[0].image_bytes, image.record.image_bytes);
  EXPECT_TRUE(absl::IsNotFound(Heal(*tier_, KeyOf(2), 0, image.bytes.span().first(4096))));
  EXPECT_TRUE(absl::IsInvalidArgument(Heal(*tier_, image.record.key, 3 * 65536, image.bytes.span().first(4096))));
}

TEST_P(TierConformance, ImagesAreWrittenFromManyThreadsAtOnce) {
  constexpr uint64_t kThreads = 4, kImages = 3;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t sequence = 1; sequence <= kImages; ++sequence) {
        const ImageKey key = KeyOf(sequence, static_cast<uint32_t>(thread), kThreads);
        EXPECT_EQ(Save(*tier_, Image(key, 400'000 + thread, sequence * 100 + thread), 65536), absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<storage::ImageEntry> images = Committed();
  EXPECT_EQ(images.size(), kThreads * kImages);
  for (const storage::ImageEntry& entry : images) EXPECT_EQ(OpenAndVerify(*tier_, entry.key), absl::OkStatus());
}

TEST_P(TierConformance, ManyImagesAreListed) {
  const uint64_t many = place_->many();
  for (uint64_t sequence = 1; sequence <= many; ++sequence) {
    ASSERT_EQ(Save(*tier_, Image(KeyOf(sequence), 4096 + sequence, sequence)), absl::OkStatus());
  }
  std::vector<storage::ImageEntry> images = Committed();
  ASSERT_EQ(images.size(), many);
  std::ranges::sort(images, {}, &storage::ImageEntry::key);
  for (uint64_t i = 0; i < many; ++i) {
    EXPECT_EQ(images[i].key, KeyOf(i + 1));
    EXPECT_EQ(images[i].image_bytes, 4096 + i + 1);
  }
}

TEST_P(TierConformance, AnotherTierOnThePlaceSeesTheImages) {
  const TestImage image = Image(KeyOf(1), 123'456);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  const std::unique_ptr<storage::Tier> other = place_->Open();
  EXPECT_EQ(OpenAndVerify(*other, image.record.key), absl::OkStatus());
}

TEST_P(TierConformance, AttachedMemoryIsWrittenFromAndReadInto) {
  const TestImage image = Image(KeyOf(1), (5u << 20) + 9);
  PaddedBuffer region(12u << 20);
  tier_->AttachRegion(region.span());
  const std::span<std::byte> source = region.span().subspan(4096, image.record.image_bytes);
  std::ranges::copy(image.bytes.span(), source.begin());
  {
    const auto writer = Begin(*tier_, image.record.key, image.record.image_bytes);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ(Write(**writer, 0, source), absl::OkStatus());
    ASSERT_EQ(Commit(**writer, image.record), absl::OkStatus());
  }
  std::ranges::fill(source, std::byte{0});
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(Read(**reader, 0, source), absl::OkStatus());
  EXPECT_TRUE(std::ranges::equal(source, image.bytes.span()));
  tier_->DetachRegion(region.span());
  EXPECT_EQ(OpenAndVerify(*tier_, image.record.key), absl::OkStatus());
}

TEST_P(TierConformance, ReadersAndWritersMayOutliveTheTier) {
  const TestImage image = Image(KeyOf(1), 5000);
  ASSERT_EQ(Save(*tier_, image), absl::OkStatus());
  const auto reader = Open(*tier_, image.record.key);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto writer = Begin(*tier_, KeyOf(2), 5000);
  ASSERT_TRUE(writer.ok()) << writer.status();
  tier_.reset();
  PaddedBuffer target(5000);
  Read(**reader, 0, target.span()).IgnoreError();  // any answer, but one
  *writer = nullptr;
  tier_ = place_->Open();
  EXPECT_EQ(Committed().size(), 1u);
}

}  // namespace neve::testing

#endif  // NEVE_TESTS_CONFORMANCE_TIER_CONFORMANCE_H_
