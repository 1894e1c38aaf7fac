#include <stdlib.h>

#include <filesystem>

#include "base/os/syscalls.h"
#include "conformance/tier_conformance.h"
#include "slot/slot.h"
#include "storage/ram/ram_tier.h"

namespace neve::testing {
namespace {

class RamPlace final : public TierPlace {
 public:
  RamPlace() {
    std::string pattern = ::testing::TempDir() + "/neve-ram-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    uid_.bytes.fill(0x77);
  }
  ~RamPlace() override { std::filesystem::remove_all(root_); }

  std::unique_ptr<storage::Tier> Open() override { return storage::OpenRamTier({root_ + "/ram", uid_, job()}); }
  Uid uid() const override { return uid_; }
  bool Untouched() override { return !os::Exists(root_ + "/ram"); }
  bool Damage(const ImageKey& key, uint64_t offset, uint64_t bytes) override {
    const absl::StatusOr<std::vector<slot::SlotInfo>> slots = slot::Scan(root_ + "/ram", uid_);
    if (!slots.ok()) return false;
    for (const slot::SlotInfo& info : *slots) {
      if (info.key != key) continue;
      absl::StatusOr<std::unique_ptr<slot::Slot>> slot = slot::Slot::OpenOwn(info.path);
      if (!slot.ok()) return false;
      for (std::byte& byte : (*slot)->image().subspan(offset, bytes)) byte = ~byte;
      return true;
    }
    return false;
  }
  bool keeps_notes() const override { return false; }
  bool keeps_pins() const override { return false; }

 private:
  std::string root_;
  Uid uid_;
};

INSTANTIATE_TEST_SUITE_P(Ram, TierConformance, ::testing::Values(TierParam{"ram", [] { return std::make_unique<RamPlace>(); }}),
                         TierParamName);

}  // namespace
}  // namespace neve::testing
