#include "device/registrations.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

#include "device/simulated.h"

namespace neve::device {
namespace {

// Address space that nothing touches: a registration here only counts.
class Region {
 public:
  explicit Region(uint64_t bytes)
      : bytes_(bytes),
        begin_(static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~Region() { ::munmap(begin_, bytes_); }
  std::span<std::byte> get() const { return {begin_, bytes_}; }

 private:
  uint64_t bytes_;
  std::byte* begin_;
};

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::shared_ptr<Simulated> Make(uint64_t register_bytes_max = 0) {
  SimulatedOptions options;
  options.memory_bytes = 1 << 20;
  options.register_bytes_max = register_bytes_max;
  return Simulated::Create(options);
}

TEST(Registrations, NothingIsRegisteredBeforeADeviceIsUsed) {
  const Region region(3 * kGiB);
  const auto device = Make();
  Registrations registrations;
  registrations.Attach(region.get());
  EXPECT_FALSE(registrations.Covers(region.get()));
  registrations.UseDevice(device);
  EXPECT_TRUE(registrations.Covers(region.get()));
  EXPECT_TRUE(registrations.Covers(region.get().subspan(kGiB - 10, 20)));
  EXPECT_EQ(device->counts().registered_bytes, 3 * kGiB);
}

TEST(Registrations, ALargeRegionIsRegisteredInPiecesOfAGiB) {
  const Region region(2 * kGiB + 4096);
  const auto device = Make();
  Registrations registrations;
  registrations.UseDevice(device);
  registrations.Attach(region.get());
  EXPECT_EQ(device->counts().registrations, 3u);
  registrations.Detach(region.get());
  EXPECT_EQ(device->counts().registered_bytes, 0u);
  EXPECT_FALSE(registrations.Covers(region.get()));
}

TEST(Registrations, MEM_04_OverTheLimitOfOneCallSmallerPiecesAreTried) {
  const Region region(kGiB);
  const auto device = Make(100 << 20);
  Registrations registrations;
  registrations.UseDevice(device);
  registrations.Attach(region.get());
  EXPECT_TRUE(registrations.Covers(region.get()));
  EXPECT_EQ(device->counts().registrations, 16u);  // of 64 MiB
}

TEST(Registrations, MEM_04_WhatIsRefusedLateIsUndoneAsAWhole) {
  const Region region(2 * kGiB);
  const auto device = Make(1 << 20);
  Registrations registrations;
  registrations.UseDevice(device);
  registrations.Attach(region.get());
  EXPECT_FALSE(registrations.Covers(region.get()));
  EXPECT_EQ(device->counts().registered_bytes, 0u);
  const auto late = Make();
  late->FailAt(Fault::kRegister, 2);  // the second GiB, once: then pieces of 256 MiB go
  Registrations others;
  others.UseDevice(late);
  others.Attach(region.get());
  EXPECT_TRUE(others.Covers(region.get()));
  EXPECT_EQ(late->counts().registered_bytes, 2 * kGiB);
}

TEST(Registrations, MEM_03_WhatAnEarlierMappingLeftRegisteredIsRegisteredAnew) {
  const Region region(1 << 20);
  const auto device = Make();
  ASSERT_TRUE(device->RegisterHost(region.get()).ok());  // by somebody who unmapped and never unregistered
  Registrations registrations;
  registrations.UseDevice(device);
  registrations.Attach(region.get());
  EXPECT_TRUE(registrations.Covers(region.get()));
  registrations.Detach(region.get());
  EXPECT_EQ(device->counts().registered_bytes, 0u);
}

TEST(Registrations, RegionsThatGoWithTheirOwnerAreUnregistered) {
  const Region region(1 << 20);
  const auto device = Make();
  {
    Registrations registrations;
    registrations.UseDevice(device);
    registrations.Attach(region.get());
    EXPECT_EQ(device->counts().registered_bytes, uint64_t{1} << 20);
  }
  EXPECT_EQ(device->counts().registered_bytes, 0u);
}

}  // namespace
}  // namespace neve::device
