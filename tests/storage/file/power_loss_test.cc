// After every step of saving and retiring, with spares in use, the power goes: each image is whole or it is not there.
#include <map>

#include "file_tier_fixture.h"
#include "support/recording_disk.h"

namespace neve::testing {
namespace {

class PowerLossTest : public FileTierTest {
 protected:
  struct Life {
    size_t committed = ~size_t{0};  // operations recorded when the commit had returned
    size_t retiring = ~size_t{0};   // and when the retirement began
  };

  // Generations through the same blocks, of growing and shrinking sizes, then all but the last retired.
  void SaveAndRetire(RecordingDisk& disk) {
    const std::unique_ptr<storage::Tier> tier = OpenTier();
    ASSERT_EQ(WriteNote(*tier, "job.json", "{\"format\":1}", true), absl::OkStatus());
    const uint64_t sizes[] = {40'001, 61'440, 20'000, 70'001};
    for (uint64_t sequence = 1; sequence <= std::size(sizes); ++sequence) {
      const TestImage image = Image(sequence, sizes[sequence - 1]);
      ASSERT_EQ(Save(*tier, image, 16'384), absl::OkStatus());
      lives_[image.record.key].committed = disk.size();
      if (sequence < 2) continue;
      const ImageKey old = KeyOf(sequence - 1);
      lives_[old].retiring = disk.size();
      ASSERT_EQ(Retire(*tier, old), absl::OkStatus());
    }
  }

  void CheckCrash(const RecordingDisk& disk, size_t count, CrashKind kind, uint64_t seed) {
    const TemporaryFolder after;
    disk.Crash(count, kind, seed, after.path());
    const std::unique_ptr<storage::Tier> tier =
        OpenTier({.job_folder = after.path() + "/job", .root = after.path(), .engine = "threads"});
    const absl::StatusOr<storage::Listing> listing = List(*tier);
    ASSERT_TRUE(listing.ok()) << listing.status();
    std::map<ImageKey, bool> whole;
    for (const storage::ImageEntry& entry : listing->images) {
      if (!entry.has_record) continue;
      const absl::Status status = OpenAndVerify(*tier, entry.key);
      EXPECT_EQ(status, absl::OkStatus()) << "a record without its whole image: " << entry.path;
      whole[entry.key] = status.ok();
    }
    for (const auto& [key, life] : lives_) {
      if (life.committed <= count && count <= life.retiring) {
        EXPECT_TRUE(whole[key]) << "lost: sequence " << key.save.sequence;
      }
    }
  }

  std::map<ImageKey, Life> lives_;
};

TEST_F(PowerLossTest, DUR_03_EveryCrashLeavesImagesWholeOrAbsent) {
  RecordingDisk disk(root_.path());
  SaveAndRetire(disk);
  disk.Stop();
  ASSERT_FALSE(HasFatalFailure());
  for (size_t count = 0; count <= disk.size(); ++count) {
    for (const CrashKind kind : kCrashKinds) {
      const uint64_t seed = count * std::size(kCrashKinds) + static_cast<uint64_t>(kind);
      CheckCrash(disk, count, kind, seed);
      ASSERT_FALSE(HasFailure()) << "crash kind " << static_cast<int>(kind) << " seed " << seed << " after operation " << count
                                 << (count > 0 ? ": " + disk.Describe(count - 1) : "");
    }
  }
}

// The order itself, so that a change of it is seen even where the model above is too kind.
TEST_F(PowerLossTest, DUR_03_DataIsSyncedBeforeTheRecordAndNamesBefore) {
  RecordingDisk disk(root_.path());
  {
    const std::unique_ptr<storage::Tier> tier = OpenTier();
    ASSERT_EQ(Save(*tier, Image(1, 20'000)), absl::OkStatus());
  }
  disk.Stop();
  std::vector<std::string> steps;
  for (size_t i = 0; i < disk.size(); ++i) steps.push_back(disk.Describe(i));
  const auto at = [&](const std::string& begin, const std::string& part, size_t from = 0) {
    for (size_t i = from; i < steps.size(); ++i) {
      if (steps[i].starts_with(begin) && steps[i].find(part) != std::string::npos) return i;
    }
    ADD_FAILURE() << begin << " " << part << " missing";
    return steps.size();
  };
  const std::string save = "/job/" + format::FormatSaveName({.step = 10, .save = {1, 1}});
  const size_t written = at("pwrite", ".safetensors");
  const size_t cut = at("ftruncate", ".safetensors", written);
  const size_t synced = at("fdatasync", ".safetensors", cut);
  const size_t save_named = at("fsync " + save + " ", "", synced);
  const size_t job_named = at("fsync /job ", "", synced);
  const size_t record_written = at("pwrite", ".tmp-", std::max(save_named, job_named));
  const size_t record_synced = at("fsync", ".tmp-", record_written);
  const size_t renamed = at("rename", ".commit.json", record_synced);
  EXPECT_LT(renamed, at("fsync " + save + " ", "", renamed));
}

}  // namespace
}  // namespace neve::testing
