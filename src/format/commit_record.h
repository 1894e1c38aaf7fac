// The commit record: small JSON beside an image. An image without one does not exist.
//
// {"format":1,"job":..,"uid":hex,"step":..,"incarnation":..,"sequence":..,"rank":..,"world":..,"time":seconds,
//  "tags":{..},"layout":hex,"image":{"file":..,"bytes":..,"chunk_bytes":..,"header_bytes":..},
//  "digests":[32 hex digits, ..],"provenance":{"neve":version,"host":..,..},"digest":32 hex digits}
//
// Invariants: "digest" stands last and is the XXH3-128 of every byte of the record before the comma that precedes it;
// digests has ceil(bytes / chunk_bytes) entries, each of one chunk (the last may be short). Unknown fields are kept out of
// the way (skipped); another "format" is Unsupported.
#ifndef NEVE_FORMAT_COMMIT_RECORD_H_
#define NEVE_FORMAT_COMMIT_RECORD_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "neve/types.h"

namespace neve::format {

inline constexpr uint64_t kRecordBytesMax = 1u << 30;
inline constexpr uint64_t kChunkBytesMin = 64u << 10, kChunkBytesMax = 1u << 30;

struct CommitRecord {
  std::string job;
  Uid uid;
  ImageKey key;
  int64_t time = 0;              // seconds since 1970, of the save call
  Tags tags;
  uint64_t layout_id = 0;
  uint64_t image_bytes = 0;
  uint64_t header_bytes = 0;     // where data begins
  uint64_t chunk_bytes = kDefaultChunkBytes;
  std::vector<codec::Digest> digests;
  std::map<std::string, std::string> provenance;

  uint64_t chunk_count() const { return chunk_bytes == 0 ? 0 : (image_bytes + chunk_bytes - 1) / chunk_bytes; }
  uint64_t ChunkBytesAt(uint64_t chunk) const {
    const uint64_t begin = chunk * chunk_bytes;
    return image_bytes - begin < chunk_bytes ? image_bytes - begin : chunk_bytes;
  }
};

std::string EncodeRecord(const CommitRecord& record);
// Damaged: not JSON, a field missing or of the wrong type or range, counts that do not fit. DataLoss: its own digest
// differs. Unsupported: another format. Never allocates more than a small multiple of text.size().
absl::StatusOr<CommitRecord> DecodeRecord(std::string_view text);

}  // namespace neve::format

#endif  // NEVE_FORMAT_COMMIT_RECORD_H_
