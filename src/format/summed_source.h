// Bytes whose checksums are compared as they are read. A zip archive has one CRC-32 for each of its records, however large, and
// readers take records in parts, in any order and on several threads; so the parts are summed as they come, and the read that
// completes a record compares.
//
// Invariants
//   - Every byte of a range is summed exactly once, whatever the reads repeat or overlap.
//   - Once all used bytes of a range were read, its checksum was compared, or that last read failed. A range whose checksum
//     differed stays bad: no later read of it succeeds.
//   - A read of a whole range takes no lock.
// Threads: any. Memory: 56 bytes a range, and a little for each that was read in part. Errors: the source's; DataLoss for the
// read after which a checksum differs (names file, record and both sums).
#ifndef NEVE_FORMAT_SUMMED_SOURCE_H_
#define NEVE_FORMAT_SUMMED_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error/status.h"
#include "base/sync/mutex.h"
#include "format/byte_source.h"

namespace neve::format {

// Bytes of a source that have one checksum.
struct SummedRange {
  uint64_t offset, bytes;             // bytes > 0
  uint32_t crc;
  uint64_t used_offset, used_bytes;   // what of it is there to be read: the rest is summed when all of that was
  std::string_view name;              // of a tensor, for messages; outlives the source
};

class SummedSource final : public ByteSource {
 public:
  // `ranges`: in any order, without overlap, within the source.
  SummedSource(std::shared_ptr<const ByteSource> source, std::vector<SummedRange> ranges);

  uint64_t size() const override { return source_->size(); }
  const std::string& name() const override { return source_->name(); }
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override;

  // Compares the checksums of ranges that were read in part, for which it reads them whole.
  absl::Status CheckRead() const;

 private:
  enum State : uint8_t { kUnread, kPart, kGood, kBad };
  struct Part {
    uint64_t bytes;
    uint32_t crc;
  };
  using Parts = std::map<uint64_t, Part>;   // by offset; neighbours are joined

  absl::Status Add(size_t index, uint64_t offset, std::span<const std::byte> bytes) const;
  absl::Status AddPart(size_t index, uint64_t offset, std::span<const std::byte> bytes) const;
  absl::Status Finish(size_t index, uint64_t offset, Part part) const;
  absl::Status Compare(size_t index, uint32_t crc) const;
  absl::Status SumSource(uint64_t offset, uint64_t bytes, uint32_t* crc) const;
  absl::Status Differs(size_t index) const;

  const std::shared_ptr<const ByteSource> source_;
  std::vector<SummedRange> ranges_;                      // by offset
  mutable std::vector<std::atomic<uint8_t>> states_;     // of each range
  mutable sync::Mutex mutex_;
  mutable std::unordered_map<size_t, Parts> parts_ NEVE_GUARDED_BY(mutex_);   // of ranges that were read in part
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_SUMMED_SOURCE_H_
