// An image in memory as a source of a restore: mapped, or read like a file; with faults by chunk.
#ifndef NEVE_TESTS_RESTORE_MEMORY_SOURCE_H_
#define NEVE_TESTS_RESTORE_MEMORY_SOURCE_H_

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/codec/digest.h"
#include "base/sync/mutex.h"
#include "restore/chunk_reader.h"

namespace neve::testing {

class MemoryReader : public storage::ImageReader {
 public:
  MemoryReader(std::vector<std::byte> image, uint64_t chunk_bytes, bool mapped)
      : image(std::move(image)), chunk_bytes_(chunk_bytes), mapped_(mapped) {}
  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
    const int now = ++in_flight;
    for (int most = most_in_flight; now > most && !most_in_flight.compare_exchange_weak(most, now);) {
    }
    ++reads;
    absl::Status status;
    if (const auto found = errors.find(offset / chunk_bytes_); found != errors.end()) status = found->second;
    if (status.ok() && offset + target.size() > image.size()) status = Damaged("the file is too short");
    if (status.ok()) std::memcpy(target.data(), image.data() + offset, target.size());
    --in_flight;
    done(status);
  }
  void ReadShared(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
    {
      sync::MutexLock lock(mutex);
      shared.insert(offset / chunk_bytes_);
    }
    Read(offset, target, std::move(done));
  }
  std::span<const std::byte> Mapped() const override {
    return mapped_ ? std::span<const std::byte>(image) : std::span<const std::byte>();
  }

  std::vector<std::byte> image;
  std::map<uint64_t, absl::Status> errors;  // by chunk: what reading it answers
  sync::Mutex mutex;
  std::set<uint64_t> shared;                // chunks asked for as shared ones
  std::atomic<int> in_flight{0}, most_in_flight{0}, reads{0};

 private:
  const uint64_t chunk_bytes_;
  const bool mapped_;
  format::CommitRecord record_;
};

inline std::vector<codec::Digest> DigestsOf(std::span<const std::byte> image, uint64_t chunk_bytes) {
  std::vector<codec::Digest> digests;
  for (uint64_t at = 0; at < image.size(); at += chunk_bytes) {
    digests.push_back(codec::DigestOf(image.subspan(at, std::min<uint64_t>(chunk_bytes, image.size() - at))));
  }
  return digests;
}

}  // namespace neve::testing

#endif  // NEVE_TESTS_RESTORE_MEMORY_SOURCE_H_
