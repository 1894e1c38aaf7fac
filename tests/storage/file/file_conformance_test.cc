#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "conformance/tier_conformance.h"
#include "file_tier_fixture.h"

namespace neve::testing {
namespace {

class FilePlace : public TierPlace {
 public:
  explicit FilePlace(storage::FileTierOptions options) : options_(std::move(options)) {
    options_.root = root_.path();
    options_.job_folder = root_.path() + "/job";
  }
  std::unique_ptr<storage::Tier> Open() override {
    absl::StatusOr<std::unique_ptr<storage::Tier>> tier = storage::OpenFileTier(options_);
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }
  Uid uid() const override { return TestUid(); }
  bool Untouched() override { return std::filesystem::is_empty(root_.path()); }
  bool Damage(const ImageKey& key, uint64_t offset, uint64_t bytes) override {
    const std::string path = options_.job_folder + "/" + format::FormatSaveName({.step = key.step, .save = key.save}) + "/" +
                             format::FormatImageName(key.rank, key.world);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::string text(bytes, '\0');
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(text.data(), static_cast<std::streamsize>(bytes));
    for (char& c : text) c = static_cast<char>(~c);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(text.data(), static_cast<std::streamsize>(bytes));
    return file.good();
  }

 private:
  TemporaryFolder root_;
  storage::FileTierOptions options_;
};

TierParam Param(std::string name, storage::FileTierOptions options) {
  return {std::move(name), [options] { return std::make_unique<FilePlace>(options); }};
}

INSTANTIATE_TEST_SUITE_P(File, TierConformance,
                         ::testing::Values(Param("direct", {}), Param("threads", {.engine = "threads"}),
                                           Param("buffered", {.direct = false}), Param("deep", {.queue_depth = 32}),
                                           Param("no_spares", {.queue_depth = 1, .spares_max = 0})),
                         TierParamName);

}  // namespace
}  // namespace neve::testing
