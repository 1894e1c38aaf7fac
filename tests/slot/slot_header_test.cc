#include "slot/slot_header.h"

#include <fcntl.h>

#include <cstring>
#include <fstream>

#include "slot/slot_fixture.h"

namespace neve::slot {
namespace {

class SlotHeaderTest : public SlotFixture {
 protected:
  // A sealed slot of nobody: what every reader and adopter may touch.
  std::string SealedSlot() {
    const std::unique_ptr<Slot> slot = MakeSlot();
    FillAndSeal(*slot, Identity(), {{"loss", 0.5}});
    slot->Disown();
    return slot->path();
  }
  static std::string ReadWhole(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void WriteWhole(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  // Everything that reads a slot, on a file of unknown content. Returns whether a reader got a record.
  bool TryAll(const std::string& path) {
    EXPECT_TRUE(Scan(ram_, TestUid(1)).ok());
    bool whole = false;
    absl::StatusOr<std::unique_ptr<Slot>> reader = Slot::OpenForReading(path);
    if (reader.ok()) {
      EXPECT_LE((*reader)->digests().size(), 4u);
      const absl::StatusOr<format::CommitRecord> record = (*reader)->Record();
      whole = record.ok() && !record->digests.empty();
      if (whole) {
        EXPECT_EQ(record->key, Identity().key);
        EXPECT_EQ(record->image_bytes, Identity().image_bytes);
        EXPECT_EQ(record->tags, (Tags{{"loss", 0.5}}));
        EXPECT_EQ(codec::DigestOf((*reader)->image().first(64 << 10)), record->digests[0]);
      }
    }
    Slot::OpenOwn(path).status().IgnoreError();
    absl::StatusOr<std::unique_ptr<Slot>> adopted = Slot::Adopt(path);
    if (adopted.ok()) {
      (*adopted)->DigestAndSeal().IgnoreError();
      (*adopted)->Record().status().IgnoreError();
      (*adopted)->Disown();
    }
    return whole;
  }
};

TEST_F(SlotHeaderTest, EveryFlippedByteOfTheHeaderIsHarmless) {
  const std::string path = SealedSlot();
  const std::string good = ReadWhole(path);
  ASSERT_TRUE(TryAll(path));
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (size_t at = 0; at < kHeaderPageBytes; ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      const char flipped = static_cast<char>(good[at] ^ mask);
      ASSERT_EQ(::pwrite(fd, &flipped, 1, static_cast<off_t>(at)), 1);
      SCOPED_TRACE("byte " + std::to_string(at) + " mask " + std::to_string(mask));
      TryAll(path);
      if (HasFailure()) return;
      ASSERT_EQ(::pwrite(fd, good.data(), kHeaderPageBytes, 0), static_cast<ssize_t>(kHeaderPageBytes));
    }
  }
  ::close(fd);
  EXPECT_TRUE(TryAll(path));
}

TEST_F(SlotHeaderTest, FlippedFieldsAreDamaged) {
  const std::string path = SealedSlot();
  const std::string good = ReadWhole(path);
  const struct {
    size_t offset;
    const char* what;
  } fields[] = {
      {0, "not a slot"},
      {offsetof(SlotHeader, geometry.image_offset), "slot header"},
      {offsetof(SlotHeader, geometry_digest), "slot header"},
      {offsetof(SlotHeader, phase), "unknown state"},
      {offsetof(SlotHeader, phase) + 1, "identity"},
      {offsetof(SlotHeader, identity.step), "identity"},
      {offsetof(SlotHeader, identity_digest), "identity"},
      {offsetof(SlotHeader, seal.table_digest), "seal"},
      {offsetof(SlotHeader, seal_digest), "seal"},
  };
  for (const auto& field : fields) {
    std::string bad = good;
    bad[field.offset] = static_cast<char>(bad[field.offset] ^ 0x40);
    WriteWhole(path, bad);
    const absl::Status status = Slot::OpenForReading(path).status();
    EXPECT_TRUE(IsDamaged(status)) << field.offset << ": " << status;
    EXPECT_NE(std::string(status.message()).find(field.what), std::string::npos) << status;
    EXPECT_TRUE(IsDamaged(OnlySlot().status)) << field.offset;
  }
}

TEST_F(SlotHeaderTest, ADamagedOwnerDoesNotLookDead) {
  std::string path;
  {
    const std::unique_ptr<Slot> slot = MakeSlot();
    FillAndSeal(*slot);
    path = slot->path();
  }
  std::string bytes = ReadWhole(path);
  bytes[offsetof(SlotHeader, owner.start_time)] ^= 1;
  WriteWhole(path, bytes);
  EXPECT_TRUE(IsDamaged(Slot::Adopt(path).status()));
}

TEST_F(SlotHeaderTest, AnotherVersionIsUnsupported) {
  const std::string path = SealedSlot();
  std::string bytes = ReadWhole(path);
  Geometry geometry;
  std::memcpy(&geometry, bytes.data(), sizeof geometry);
  geometry.version = 2;
  const codec::Digest digest = DigestOfBlock(geometry);
  std::memcpy(bytes.data(), &geometry, sizeof geometry);
  std::memcpy(bytes.data() + offsetof(SlotHeader, geometry_digest), &digest, sizeof digest);
  WriteWhole(path, bytes);
  EXPECT_TRUE(absl::IsUnimplemented(Slot::OpenForReading(path).status()));
}

// Sizes that are wrong although every digest is right: nothing in the header is trusted beyond the file's own size.
TEST_F(SlotHeaderTest, SizesBeyondTheFileAreDamagedEvenWithAGoodDigest) {
  const std::string path = SealedSlot();
  const std::string good = ReadWhole(path);
  const size_t offsets[] = {offsetof(Geometry, image_offset),   offsetof(Geometry, image_capacity),
                            offsetof(Geometry, digest_offset),  offsetof(Geometry, digest_capacity),
                            offsetof(Geometry, notes_offset),   offsetof(Geometry, notes_capacity),
                            offsetof(Geometry, job_bytes)};
  for (const size_t offset : offsets) {
    for (const uint64_t value : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 52, ~uint64_t{0} << 12}) {
      std::string bytes = good;
      std::memcpy(bytes.data() + offset, &value, sizeof value);
      Geometry geometry;
      std::memcpy(&geometry, bytes.data(), sizeof geometry);
      const codec::Digest digest = DigestOfBlock(geometry);
      std::memcpy(bytes.data() + offsetof(SlotHeader, geometry_digest), &digest, sizeof digest);
      WriteWhole(path, bytes);
      EXPECT_TRUE(IsDamaged(Slot::OpenForReading(path).status())) << offset << " " << value;
      EXPECT_FALSE(Slot::Adopt(path).ok());
    }
  }
}

TEST_F(SlotHeaderTest, IdentitiesThatMakeNoSenseAreDamagedEvenWithAGoodDigest) {
  const std::string path = SealedSlot();
  const std::string good = ReadWhole(path);
  const size_t offsets[] = {offsetof(IdentityBlock, image_bytes), offsetof(IdentityBlock, header_bytes),
                            offsetof(IdentityBlock, chunk_bytes), offsetof(IdentityBlock, notes_bytes),
                            offsetof(IdentityBlock, step)};
  for (const size_t offset : offsets) {
    IdentityBlock identity;
    std::memcpy(&identity, good.data() + offsetof(SlotHeader, identity), sizeof identity);
    std::memset(reinterpret_cast<char*>(&identity) + offset, 0xff, 8);
    const codec::Digest digest = DigestOfBlock(identity);
    std::string bytes = good;
    std::memcpy(bytes.data() + offsetof(SlotHeader, identity), &identity, sizeof identity);
    std::memcpy(bytes.data() + offsetof(SlotHeader, identity_digest), &digest, sizeof digest);
    WriteWhole(path, bytes);
    EXPECT_TRUE(IsDamaged(Slot::OpenForReading(path).status())) << offset;
  }
}

TEST_F(SlotHeaderTest, TruncatedFilesAreDamaged) {
  const std::string path = SealedSlot();
  const std::string good = ReadWhole(path);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{1111}, size_t{4095}, size_t{4096}, size_t{5000}, good.size() - 4096, good.size() - 1}) {
    WriteWhole(path, good.substr(0, size));
    EXPECT_TRUE(IsDamaged(Slot::OpenForReading(path).status())) << size;
    EXPECT_TRUE(IsDamaged(Slot::Adopt(path).status())) << size;
    EXPECT_TRUE(IsDamaged(OnlySlot().status)) << size;
  }
}

TEST_F(SlotHeaderTest, RandomGarbageNeverCrashes) {
  const std::string path = SealedSlot();
  const std::string good = ReadWhole(path);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    // Half of the rounds keep the geometry, so that the later checks are reached.
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    const size_t begin = round % 2 == 0 ? 0 : std::min<size_t>(bytes.size(), offsetof(SlotHeader, owner));
    for (size_t at = begin; at < std::min<size_t>(bytes.size(), 8192); ++at) bytes[at] = static_cast<char>(random());
    WriteWhole(path, bytes);
    EXPECT_FALSE(TryAll(path));
  }
}

TEST_F(SlotHeaderTest, FilesThatAreNoSlotsOfOursAreInvalidAndNotFollowed) {
  const std::string path = SealedSlot();
  const std::string folder = os::DirName(path);
  const std::string link = folder + "/r0-0123456789abcdef.slot";
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_FALSE(Slot::OpenForReading(link).ok());
  EXPECT_FALSE(Slot::Adopt(link).ok());
  const std::string fifo = folder + "/r1-0123456789abcdef.slot";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Slot::OpenForReading(fifo).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Slot::Adopt(fifo).status()));
}

TEST(SlotNameTest, NamesAreOurOwnOnly) {
  EXPECT_TRUE(IsSlotName(MakeSlotName(0)));
  EXPECT_TRUE(IsSlotName(MakeSlotName(123456)));
  for (const char* name :
       {"", "r", ".slot", "r-.slot", "r1-.slot", "r1-0123456789abcdef", "r1-0123456789ABCDEF.slot", "r01-0123456789abcdef.slot",
        "rx-0123456789abcdef.slot", "r1-0123456789abcdef.slot2", "x1-0123456789abcdef.slot", "r-0123456789abcdef.slot",
        "r99999999999999999999-0123456789abcdef.slot"}) {
    EXPECT_FALSE(IsSlotName(name)) << name;
  }
}

TEST(SlotNameTest, TemporaryNamesTellTheirOwner) {
  os::ProcessId owner = os::CurrentProcess(), parsed = owner;
  parsed.pid = 0;
  parsed.start_time = 0;
  ASSERT_TRUE(ParseTemporaryName(MakeTemporaryName(owner), &parsed));
  EXPECT_EQ(parsed, owner);
  for (const char* name : {"", ".tmp-", ".tmp-1", ".tmp-1-2", ".tmp-1-2-", ".tmp-x-2-0123456789abcdef",
                           ".tmp-1-2-0123456789abcde", "tmp-1-2-0123456789abcdef"}) {
    EXPECT_FALSE(ParseTemporaryName(name, &parsed)) << name;
  }
}

}  // namespace
}  // namespace neve::slot
