// A file tier in simulation: a disk that tells written from durable bytes, and a tier over it whose answers come later,
// in random order, some of them errors. One thread; everything follows from the seed of its executor.
#ifndef NEVE_TESTS_SUPPORT_SIM_TIER_H_
#define NEVE_TESTS_SUPPORT_SIM_TIER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/sync/executor.h"
#include "base/sync/seeded_random.h"
#include "storage/tier.h"

namespace neve::testing {

// Names and contents as POSIX promises them: contents are durable by Sync of the file, names by SyncName, anything else
// may or may not have made it. A kill of the process changes nothing here; Crash is the loss of power.
class SimDisk {
 public:
  struct File {
    std::string live, durable;
  };
  using FilePtr = std::shared_ptr<File>;

  explicit SimDisk(uint64_t seed) : random_(seed) {}
  FilePtr Find(const std::string& name) const;       // null: not there
  FilePtr Create(const std::string& name);           // a new, empty file under that name
  void Link(const std::string& name, FilePtr file);  // the rename of a finished file to its name
  void Remove(const std::string& name);
  void Write(File& file, uint64_t offset, std::span<const std::byte> bytes);
  void Sync(File& file) { file.durable = file.live; }
  void SyncName(const std::string& name);
  // Of what was not synced, each name and each block is the old or the new one by chance.
  void Crash();
  const std::map<std::string, FilePtr>& names() const { return live_; }
  uint64_t torn_files() const { return torn_; }
  uint64_t lost_names() const { return lost_; }

 private:
  bool Chance(uint64_t one_in) { return random_.Below(one_in) == 0; }
  sync::SeededRandom random_;
  std::map<std::string, FilePtr> live_, durable_;
  uint64_t torn_ = 0, lost_ = 0;
};

enum class SimFault {
  kBegin,         // EIO before anything happened
  kNoRoom,        // ENOSPC before anything happened
  kWrite,         // EIO after part of the bytes
  kCommitBefore,  // EIO, and no record
  kCommitUnsure,  // EIO after the record got its name, which may or may not be durable and may have been taken back
  kCommitLost,    // the record is durable, the answer an error
  kList,
  kRetire,  // EIO before anything happened
  kSlow,    // seconds instead of milliseconds
  kCount,
};
std::string_view Name(SimFault fault);

struct SimFaults {
  bool on = true;
  std::array<uint32_t, static_cast<size_t>(SimFault::kCount)> per_mille{};
  std::array<uint64_t, static_cast<size_t>(SimFault::kCount)> injected{};
};

// Destroy it only after Kill, or when nothing is in flight.
class SimTier : public storage::Tier {
 public:
  SimTier(SimDisk& disk, sync::SimExecutor& executor, SimFaults& faults);
  ~SimTier() override { Kill(); }
  // The process is gone: writers that are dropped from now on take nothing back. Drop the executor's tasks next.
  void Kill() { *alive_ = false; }

  const storage::TierInfo& info() const override { return info_; }
  void List(storage::DoneWith<storage::Listing> done) override;
  void OpenImage(const ImageKey& key, storage::DoneWith<std::shared_ptr<storage::ImageReader>> done) override;
  void BeginImage(const ImageKey& key, uint64_t image_bytes,
                  storage::DoneWith<std::shared_ptr<storage::ImageWriter>> done) override;
  void Heal(const ImageKey& key, uint64_t offset, std::span<const std::byte> source, storage::Done done) override;
  void Retire(const ImageKey& key, storage::Done done) override;
  void SetPinned(const ImageKey& key, bool pinned, storage::Done done) override;
  void ReadNote(const std::string& name, storage::DoneWith<std::string> done) override;
  void WriteNote(const std::string& name, const std::string& content, bool exclusive, storage::Done done) override;
  void RemoveNote(const std::string& name, storage::Done done) override;

 private:
  class Writer;
  class Reader;
  bool Hits(SimFault fault);
  void Later(sync::Executor::Task task);  // at a random time soon; much later when that fault hits
  SimDisk& disk_;
  sync::SimExecutor& executor_;
  SimFaults& faults_;
  storage::TierInfo info_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace neve::testing

#endif  // NEVE_TESTS_SUPPORT_SIM_TIER_H_
