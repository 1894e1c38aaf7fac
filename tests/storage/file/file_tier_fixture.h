// Temporary job folders for the tests of the file tier.
#ifndef NEVE_TESTS_STORAGE_FILE_FILE_TIER_FIXTURE_H_
#define NEVE_TESTS_STORAGE_FILE_FILE_TIER_FIXTURE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/os/io_hooks.h"
#include "format/names.h"
#include "storage/file/file_tier.h"
#include "support/blocking_tier.h"

namespace neve::testing {

inline Uid TestUid() {
  Uid uid;
  uid.bytes.fill(0x5a);
  return uid;
}

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "/neve-file-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Hooks from one function; removed with it.
class ScopedHooks : public os::IoHooks {
 public:
  using Before_ = std::function<os::CallVerdict(const os::CallInfo&)>;
  explicit ScopedHooks(Before_ before) : before_(std::move(before)) { os::SetIoHooks(this); }
  ~ScopedHooks() override { os::SetIoHooks(nullptr); }
  os::CallVerdict Before(const os::CallInfo& info) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return before_(info);
  }

 private:
  std::mutex mutex_;
  Before_ before_;
};

class FileTierTest : public ::testing::Test {
 protected:
  storage::FileTierOptions Options() const { return {.job_folder = folder(), .root = root_.path()}; }
  std::string folder() const { return root_.path() + "/job"; }
  std::string SaveFolder(const ImageKey& key) const {
    return folder() + "/" + format::FormatSaveName({.step = key.step, .save = key.save});
  }
  std::string ImagePath(const ImageKey& key) const {
    return SaveFolder(key) + "/" + format::FormatImageName(key.rank, key.world);
  }
  std::string RecordPath(const ImageKey& key) const {
    return SaveFolder(key) + "/" + format::FormatRecordName(key.rank, key.world);
  }
  std::unique_ptr<storage::Tier> OpenTier() const { return OpenTier(Options()); }
  static std::unique_ptr<storage::Tier> OpenTier(const storage::FileTierOptions& options) {
    absl::StatusOr<std::unique_ptr<storage::Tier>> tier = storage::OpenFileTier(options);
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }
  static TestImage Image(uint64_t sequence, uint64_t bytes = 200'001) { return Image(KeyOf(sequence), bytes); }
  static TestImage Image(const ImageKey& key, uint64_t bytes = 200'001) {
    return MakeImage(key, bytes, key.save.sequence * 1000 + key.rank, "job", TestUid());
  }
  static size_t CommittedCount(storage::Tier& tier) {
    const absl::StatusOr<storage::Listing> listing = List(tier);
    EXPECT_TRUE(listing.ok()) << listing.status();
    size_t count = 0;
    if (listing.ok()) {
      for (const storage::ImageEntry& image : listing->images) count += image.has_record;
    }
    return count;
  }
  static std::vector<std::string> NamesIn(const std::string& path) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  static void WriteText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

  TemporaryFolder root_;
};

}  // namespace neve::testing

#endif  // NEVE_TESTS_STORAGE_FILE_FILE_TIER_FIXTURE_H_
