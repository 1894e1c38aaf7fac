// ChunkReader: fills a plan's targets, each chunk from the nearest source whose bytes match their digest.
//
// Memory sources are copied and verified in one loop by the whole crew. Other sources are read `queue_depth` chunks ahead into
// at most `staging_chunks` aligned buffers, and verified and scattered by the crew as they arrive. Without digests, long contiguous
// ranges are read right into their targets.
//
// Invariants
//   - A target byte is final only when the chunk it came from matched the record's digest (where there is one).
//   - A chunk that fails in one source is taken from the next, counted, reported once per source, and written back over the
//     bad copy (Heal) when the source allows it.
//   - When no source has a good copy the result names chunk, offset and sources: Unavailable when one of them could not be
//     reached, Damaged when the nearest is too short, else DataLoss.
//   - Bytes of a memory source, whose owner may change them at any time, reach a target only by way of the hash; what is wanted as
//     boxes by way of a private copy of the chunk.
#ifndef NEVE_RESTORE_CHUNK_READER_H_
#define NEVE_RESTORE_CHUNK_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "base/obs/metrics.h"
#include "base/sync/crew.h"
#include "restore/read_plan.h"
#include "storage/tier.h"

namespace neve::restore {

struct Source {
  std::string name;                               // tier name, for messages and counts
  std::string place;
  std::shared_ptr<storage::ImageReader> reader;
  int queue_depth = 4;
  uint64_t alignment = 1;
  // Writes good bytes over a bad copy; null: not possible. Blocking.
  std::function<absl::Status(uint64_t offset, std::span<const std::byte>)> heal;
};

struct ReadResult {
  std::map<std::string, uint64_t> bytes;          // delivered, by source name
  uint64_t chunks_failed = 0, chunks_healed = 0;
};

// Who else of this host reads the same image at the same time, so that what they want too is read once (ImageReader::ReadShared).
enum class OtherReaders {
  kNone,
  kOfParts,   // of other parts: shared ranges, and chunks that are not wanted whole, are theirs too
  kOfAll,
};

struct ReadOptions {
  int staging_chunks = 8;                         // bounds memory: staging_chunks x chunk size
  uint64_t plain_bytes = 64 << 10;                // without digests: ranges from this length on are read into their targets
  OtherReaders others = OtherReaders::kNone;
};

// sources: nearest first, at least one. digests: of every chunk of the image, or empty when there are none (a file without a
// record). written: empty, or one byte per range, set to 1 before its target is first touched.
absl::Status ReadChunks(const ReadPlan& plan, std::span<const Source> sources, std::span<const codec::Digest> digests,
                        sync::Crew& crew, const ReadOptions& options, std::span<uint8_t> written, ReadResult* result);

// Verifies every chunk of one source without delivering bytes. `bad` receives the chunks that do not match.
absl::Status VerifyChunks(const Source& source, uint64_t image_bytes, uint64_t chunk_bytes,
                          std::span<const codec::Digest> digests, sync::Crew& crew, std::vector<uint64_t>* bad);

}  // namespace neve::restore

#endif  // NEVE_RESTORE_CHUNK_READER_H_
