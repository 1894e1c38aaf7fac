// Tier: a place for images. One interface for ram, peer, file and object; one conformance suite that each passes.
//
// Contract
//   Thread     Every call may come from any thread and returns at once; `done` runs exactly once, on a thread of the tier
//              (or inside the call, for tiers that are memory). A `done` never blocks; it may call the tier again.
//   Memory     Spans are borrowed until `done` ran.
//   Keys       An image is known by its ImageKey. Nothing is ever replaced: BeginImage of a key that has a record fails
//              with Invalid; leftovers without a record under that key are removed first.
//   Commit     An image exists once its record does. The record is written last, after the image is durable here
//              (Durability says against what). After a crash between any two steps the image is whole or absent.
//   Errors     NotFound: the place was reachable and has no such thing. Unavailable/Exhausted: could not, retrying may help.
//              Damaged: a record or file that cannot be parsed. Messages name the path.
//   Nothing is created by Open*, List, ReadNote.
#ifndef NEVE_STORAGE_TIER_H_
#define NEVE_STORAGE_TIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/commit_record.h"
#include "neve/types.h"

namespace neve::storage {

using Done = std::function<void(absl::Status)>;
template <typename T>
using DoneWith = std::function<void(absl::StatusOr<T>)>;

struct TierInfo {
  TierKind kind;
  std::string place;            // as people see it: "file:/nvme/ckpt/gpt", "ram:"
  bool durable = false;         // survives the loss of power
  uint64_t alignment = 1;       // offsets, sizes and addresses that need no bounce copy are multiples of this
  int queue_depth = 8;          // writes or reads worth having in flight at once
};

// What a listing knows of one image, from names and sizes; no data is read.
struct ImageEntry {
  ImageKey key;
  bool has_record = false;
  bool has_image = false;
  uint64_t image_bytes = 0;     // size found
  uint64_t stored_bytes = 0;    // room taken
  bool pinned = false;
  std::string path;             // of the record or image, for messages
};

struct Listing {
  bool exists = true;                   // the job has a place here (a missing job folder under an existing root: false)
  std::vector<ImageEntry> images;
  uint32_t incarnation_max = 0;         // greatest in any name, complete or not, claims included
};

// An image being written. Destroying it without Commit aborts: the bytes are removed, now or at the next life's first save.
class ImageWriter {
 public:
  virtual ~ImageWriter() = default;
  // Writes bytes [offset, offset + source.size()) of the image. Ranges do not overlap; any order; several in flight.
  // offset is a multiple of info().alignment; size too, except at the end of the image; the source is then readable up
  // to the next multiple (slots are padded).
  virtual void Write(uint64_t offset, std::span<const std::byte> source, Done done) = 0;
  // After every Write has completed with OK. Makes the image durable, then writes the record and makes it durable.
  virtual void Commit(const format::CommitRecord& record, Done done) = 0;
};

// An image open for reading. Keeps the bytes readable even if the image is retired meanwhile.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  virtual const format::CommitRecord& record() const = 0;
  // Reads bytes [offset, offset + target.size()). offset and target address are multiples of info().alignment; the target
  // is rounded up to it in memory. Bytes are not verified here. Short file: Damaged.
  virtual void Read(uint64_t offset, std::span<std::byte> target, Done done) = 0;
  // The same, of bytes that others of this host are likely to ask for too: a tier that can leave them where those find them does, so
  // that the device gives them once.
  virtual void ReadShared(uint64_t offset, std::span<std::byte> target, Done done) { Read(offset, target, std::move(done)); }
  // Memory tiers: the image itself, readable while this lives, else empty. Content must be verified as it is copied.
  virtual std::span<const std::byte> Mapped() const { return {}; }
};

class Tier {
 public:
  virtual ~Tier() = default;   // waits for calls in flight
  virtual const TierInfo& info() const = 0;

  // Tells of memory that many writes will come from, so that it is registered once. Best effort.
  virtual void AttachRegion(std::span<std::byte> region) {}
  virtual void DetachRegion(std::span<std::byte> region) {}

  virtual void List(DoneWith<Listing> done) = 0;
  // Reads the record (NotFound, Damaged, DataLoss as DecodeRecord) and checks that the image has the size it says
  // (Damaged). Data is not read.
  virtual void OpenImage(const ImageKey& key, DoneWith<std::shared_ptr<ImageReader>> done) = 0;
  // Reserves room where the tier can. Exhausted when there is none, before any byte moves.
  virtual void BeginImage(const ImageKey& key, uint64_t image_bytes, DoneWith<std::shared_ptr<ImageWriter>> done) = 0;
  // Overwrites one range of a committed image whose bytes there do not match their digest with bytes that do.
  virtual void Heal(const ImageKey& key, uint64_t offset, std::span<const std::byte> source, Done done) = 0;
  // Record first, then bytes. Gone already: OK.
  virtual void Retire(const ImageKey& key, Done done) = 0;
  virtual void SetPinned(const ImageKey& key, bool pinned, Done done) = 0;
  // Makes the records of that save which a listing shows durable, whichever rank wrote them: a name may be seen before it is.
  virtual void Settle(const ImageKey& key, Done done) { done(absl::OkStatus()); }

  // Small named objects of the job ("job.json", "life-0003.json"). Exclusive: Unavailable/EEXIST when it is there.
  virtual void ReadNote(const std::string& name, DoneWith<std::string> done) = 0;
  virtual void WriteNote(const std::string& name, const std::string& content, bool exclusive, Done done) = 0;
  virtual void RemoveNote(const std::string& name, Done done) = 0;
};

}  // namespace neve::storage

#endif  // NEVE_STORAGE_TIER_H_
