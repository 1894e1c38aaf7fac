#include "restore/chunk_reader.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "base/sync/mutex.h"
#include "base/sync/notification.h"

namespace neve::restore {
namespace {

struct FreeDeleter {
  void operator()(std::byte* pointer) const { std::free(pointer); }
};
using AlignedBuffer = std::unique_ptr<std::byte[], FreeDeleter>;

// On huge pages where the system grants them: fewer faults, and fewer pieces for the disk.
AlignedBuffer AllocateAligned(uint64_t bytes) {
  constexpr uint64_t kHugePageBytes = 2 << 20;
  const uint64_t boundary = bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  const uint64_t rounded = std::max((bytes + boundary - 1) / boundary * boundary, boundary);
  AlignedBuffer memory(static_cast<std::byte*>(std::aligned_alloc(boundary, rounded)));
  if (memory != nullptr && boundary == kHugePageBytes) (void)::madvise(memory.get(), rounded, MADV_HUGEPAGE);
  return memory;
}

absl::Status ReadBlocking(storage::ImageReader& reader, uint64_t offset, std::span<std::byte> target) {
  sync::Result<absl::Status> result;
  reader.Read(offset, target, [&result](absl::Status status) { result.Set(std::move(status)); });
  return result.Take();
}

// Shared by the workers of one ReadChunks.
class Delivery {
 public:
  Delivery(const ReadPlan& plan, std::span<const codec::Digest> digests, std::span<uint8_t> written)
      : plan_(plan), digests_(digests), written_(written) {}

  // Copies one chunk's bytes to the targets and says whether they matched. `shared`: somebody else may change the bytes
  // meanwhile, so the very bytes that were hashed must be the ones delivered. Not of a shared chunk that has boxes.
  bool Deliver(const ChunkPlan& chunk, const std::byte* bytes, codec::Store store, bool shared) const {
    const uint64_t begin = chunk.chunk * plan_.chunk_bytes();
    if (HasBox(chunk)) return DeliverBoxes(chunk, bytes);
    const bool by_block = shared && HasStrided(chunk);
    codec::RestoreHasher hasher(bytes, plan_.ChunkSize(chunk.chunk), by_block ? codec::Store::kCached : store);
    uint64_t position = begin;
    for (const Segment& segment : plan_.SegmentsOf(chunk)) {
      const Range& range = plan_.range(segment.range);
      if (!written_.empty()) std::atomic_ref<uint8_t>(written_[segment.range]).store(1, std::memory_order_relaxed);
      hasher.Skip(segment.offset - position);
      if (range.strided != nullptr && by_block) {
        alignas(64) std::byte block[8192];
        const uint64_t end = segment.range_offset + segment.bytes, step = sizeof(block) / range.item_bytes * range.item_bytes;
        for (uint64_t at = segment.range_offset; at < end; at += step) {
          const uint64_t count = std::min(step, end - at);
          hasher.CopyTo(block, count);
          range.strided->Scatter(range.target, at, at + count, block);
        }
      } else if (range.strided != nullptr) {
        range.strided->Scatter(range.target, segment.range_offset, segment.range_offset + segment.bytes,
                               bytes + (segment.offset - begin));
        hasher.Skip(segment.bytes);
      } else {
        hasher.CopyTo(range.target + segment.range_offset, segment.bytes);
      }
      position = segment.offset + segment.bytes;
    }
    if (digests_.empty()) return true;   // nothing to compare with: the caller was told so by has_digests()
    return hasher.Finish() == digests_[chunk.chunk];
  }

  uint64_t NeededBytes(const ChunkPlan& chunk) const {
    uint64_t bytes = 0;
    for (const Segment& segment : plan_.SegmentsOf(chunk)) {
      const tensor::BoxCopy* box = plan_.range(segment.range).box.get();
      bytes += box == nullptr ? segment.bytes : box->BytesIn(segment.range_offset, segment.range_offset + segment.bytes);
    }
    return bytes;
  }

  // Boxes come last.
  bool HasBox(const ChunkPlan& chunk) const { return plan_.range(plan_.SegmentsOf(chunk).back().range).box != nullptr; }

  // The shared chunk that has boxes: copied to `scratch`, of a chunk's size, on the way through the hash.
  bool DeliverShared(const ChunkPlan& chunk, const std::byte* bytes, std::byte* scratch) const {
    const uint64_t size = plan_.ChunkSize(chunk.chunk);
    codec::RestoreHasher hasher(bytes, size, codec::Store::kCached);
    hasher.CopyTo(scratch, size);
    if (!digests_.empty() && hasher.Finish() != digests_[chunk.chunk]) return false;
    Scatter(chunk, scratch);
    return true;
  }

 private:
  // Of private bytes: hashed whole, then taken apart.
  bool DeliverBoxes(const ChunkPlan& chunk, const std::byte* bytes) const {
    if (!digests_.empty() && codec::DigestOf({bytes, plan_.ChunkSize(chunk.chunk)}) != digests_[chunk.chunk]) return false;
    Scatter(chunk, bytes);
    return true;
  }

  void Scatter(const ChunkPlan& chunk, const std::byte* bytes) const {
    const uint64_t begin = chunk.chunk * plan_.chunk_bytes();
    for (const Segment& segment : plan_.SegmentsOf(chunk)) {
      const Range& range = plan_.range(segment.range);
      if (!written_.empty()) std::atomic_ref<uint8_t>(written_[segment.range]).store(1, std::memory_order_relaxed);
      const std::byte* from = bytes + (segment.offset - begin);
      const uint64_t first = segment.range_offset, last = first + segment.bytes;
      if (range.box != nullptr) {
        range.box->Scatter(range.target, first, last, from);
      } else if (range.strided != nullptr) {
        range.strided->Scatter(range.target, first, last, from);
      } else {
        std::memcpy(range.target + first, from, segment.bytes);
      }
    }
  }

  bool HasStrided(const ChunkPlan& chunk) const {
    const auto segments = plan_.SegmentsOf(chunk);
    return std::any_of(segments.begin(), segments.end(),
                       [this](const Segment& segment) { return plan_.range(segment.range).strided != nullptr; });
  }

  const ReadPlan& plan_;
  std::span<const codec::Digest> digests_;
  std::span<uint8_t> written_;
};

struct FailedChunk {
  const ChunkPlan* chunk;
  absl::Status error;   // OK: the digest differed
};

// Reads chunks of a source that is not memory: reads run ahead, workers verify and deliver what has arrived.
class Stream {
 public:
  Stream(const ReadPlan& plan, std::span<const ChunkPlan* const> chunks, const Source& source, const Delivery& delivery,
         const ReadOptions& options, std::vector<FailedChunk>* failed)
      : plan_(plan), chunks_(chunks), source_(source), delivery_(delivery), others_(options.others), failed_(failed) {
    const int buffers = std::clamp<int>(options.staging_chunks, 1, static_cast<int>(std::min<size_t>(chunks.size(), 64)));
    for (int i = 0; i < buffers; ++i) {
      buffers_.push_back(AllocateAligned(plan.chunk_bytes()));
      if (buffers_.back() == nullptr) {
        buffers_.pop_back();
        break;
      }
      free_.push_back(i);
    }
  }
  bool usable() const { return !buffers_.empty(); }

  uint64_t Run(sync::Crew& crew) {
    IssueReads();
    auto work = [this](uint64_t, int) { Work(); };
    crew.Run(static_cast<uint64_t>(crew.threads()), sync::PartFn(work));
    return delivered_.load();
  }

 private:
  struct Arrived {
    int buffer;
    size_t chunk;
    absl::Status status;
  };

  // A part that is not wanted here is likely wanted by another.
  bool OthersWant(const ChunkPlan& chunk) const {
    if (others_ != OtherReaders::kOfParts) return others_ == OtherReaders::kOfAll;
    const auto segments = plan_.SegmentsOf(chunk);
    return delivery_.NeededBytes(chunk) < plan_.ChunkSize(chunk.chunk) ||
           std::any_of(segments.begin(), segments.end(), [this](const Segment& segment) { return plan_.range(segment.range).shared; });
  }

  void IssueReads() {
    while (true) {
      int buffer;
      size_t chunk;
      {
        sync::MutexLock lock(mutex_);
        if (free_.empty() || next_ == chunks_.size() || in_flight_ >= std::max(1, source_.queue_depth)) return;
        buffer = free_.back();
        free_.pop_back();
        chunk = next_++;
        ++in_flight_;
      }
      const uint64_t index = chunks_[chunk]->chunk;
      const std::span<std::byte> target(buffers_[buffer].get(), plan_.ChunkSize(index));
      auto done = [this, buffer, chunk](absl::Status status) {
        sync::MutexLock lock(mutex_);
        --in_flight_;
        arrived_.push_back(Arrived{buffer, chunk, std::move(status)});
        condition_.NotifyAll();
      };
      if (OthersWant(*chunks_[chunk])) {
        source_.reader->ReadShared(index * plan_.chunk_bytes(), target, std::move(done));
      } else {
        source_.reader->Read(index * plan_.chunk_bytes(), target, std::move(done));
      }
    }
  }

  void Work() {
    while (true) {
      IssueReads();
      Arrived arrived;
      {
        sync::MutexLock lock(mutex_);
        condition_.Wait(mutex_, [this] { return !arrived_.empty() || finished_ == chunks_.size(); });
        if (arrived_.empty()) return;
        arrived = std::move(arrived_.front());
        arrived_.pop_front();
      }
      const ChunkPlan& chunk = *chunks_[arrived.chunk];
      IssueReads();
      const bool good =
          arrived.status.ok() && delivery_.Deliver(chunk, buffers_[arrived.buffer].get(), codec::Store::kStream, false);
      if (good) delivered_.fetch_add(delivery_.NeededBytes(chunk), std::memory_order_relaxed);
      sync::MutexLock lock(mutex_);
      if (!good) failed_->push_back(FailedChunk{&chunk, std::move(arrived.status)});
      free_.push_back(arrived.buffer);
      if (++finished_ == chunks_.size()) condition_.NotifyAll();
    }
  }

  const ReadPlan& plan_;
  const std::span<const ChunkPlan* const> chunks_;
  const Source& source_;
  const Delivery& delivery_;
  const OtherReaders others_;
  std::vector<AlignedBuffer> buffers_;
  sync::Mutex mutex_;
  sync::Condition condition_;
  std::vector<int> free_ NEVE_GUARDED_BY(mutex_);
  std::deque<Arrived> arrived_ NEVE_GUARDED_BY(mutex_);
  std::vector<FailedChunk>* failed_ NEVE_GUARDED_BY(mutex_);
  size_t next_ NEVE_GUARDED_BY(mutex_) = 0;
  size_t finished_ NEVE_GUARDED_BY(mutex_) = 0;
  int in_flight_ NEVE_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> delivered_{0};
};

// Whether all that is wanted of the chunk are long contiguous ranges.
bool IsPlain(const ReadPlan& plan, const ChunkPlan& chunk, uint64_t plain_bytes) {
  const auto segments = plan.SegmentsOf(chunk);
  return std::all_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    const Range& range = plan.range(segment.range);
    return range.strided == nullptr && range.box == nullptr && segment.bytes >= plain_bytes;
  });
}

// Where there are no digests a chunk need not be seen whole: plain ones are read right into their targets, by the whole crew.
uint64_t ReadPlain(const ReadPlan& plan, std::span<const ChunkPlan* const> chunks, const Source& source, std::span<uint8_t> written,
                   sync::Crew& crew, std::vector<FailedChunk>* failed) {
  sync::Mutex mutex;
  std::atomic<uint64_t> delivered{0};
  auto work = [&](uint64_t part, int) {
    absl::Status status;
    uint64_t bytes = 0;
    for (const Segment& segment : plan.SegmentsOf(*chunks[part])) {
      if (!written.empty()) std::atomic_ref<uint8_t>(written[segment.range]).store(1, std::memory_order_relaxed);
      status.Update(ReadBlocking(*source.reader, segment.offset,
                                 {plan.range(segment.range).target + segment.range_offset, segment.bytes}));
      bytes += segment.bytes;
    }
    if (status.ok()) {
      delivered.fetch_add(bytes, std::memory_order_relaxed);
    } else {
      sync::MutexLock lock(mutex);
      failed->push_back(FailedChunk{chunks[part], std::move(status)});
    }
  };
  crew.Run(chunks.size(), sync::PartFn(work));
  return delivered.load();
}

// Every chunk from one memory source, by the whole crew.
uint64_t DeliverMapped(const ReadPlan& plan, std::span<const std::byte> image, const Delivery& delivery, sync::Crew& crew,
                       std::vector<FailedChunk>* failed) {
  sync::Mutex mutex;
  std::atomic<uint64_t> delivered{0};
  std::vector<AlignedBuffer> scratch(static_cast<size_t>(crew.threads()));   // a worker's own, made when it needs one
  const auto deliver = [&](const ChunkPlan& chunk, int worker) -> absl::StatusOr<bool> {
    const uint64_t begin = chunk.chunk * plan.chunk_bytes();
    if (begin + plan.ChunkSize(chunk.chunk) > image.size()) return Damaged("the image is shorter than its record says");
    if (!delivery.HasBox(chunk)) return delivery.Deliver(chunk, image.data() + begin, codec::Store::kStream, true);
    AlignedBuffer& own = scratch[static_cast<size_t>(worker)];
    if (own == nullptr) own = AllocateAligned(plan.chunk_bytes());
    if (own == nullptr) return Exhausted(absl::StrFormat("no memory for a buffer of %d bytes", plan.chunk_bytes()));
    return delivery.DeliverShared(chunk, image.data() + begin, own.get());
  };
  auto work = [&](uint64_t part, int worker) {
    const ChunkPlan& chunk = plan.chunks()[part];
    const absl::StatusOr<bool> good = deliver(chunk, worker);
    if (good.ok() && *good) {
      delivered.fetch_add(delivery.NeededBytes(chunk), std::memory_order_relaxed);
    } else {
      sync::MutexLock lock(mutex);
      failed->push_back(FailedChunk{&chunk, good.status()});
    }
  };
  if (plan.chunks().size() <= 1) {
    for (uint64_t i = 0; i < plan.chunks().size(); ++i) work(i, 0);
  } else {
    crew.Run(plan.chunks().size(), sync::PartFn(work));
  }
  return delivered.load();
}

std::string Failure(const FailedChunk& failed, const Source& source) {
  return absl::StrFormat("%s: %s", source.place.empty() ? source.name : source.place,
                         failed.error.ok() ? "its bytes differ from their digest" : std::string(failed.error.message()));
}

}  // namespace

absl::Status ReadChunks(const ReadPlan& plan, std::span<const Source> sources, std::span<const codec::Digest> digests,
                        sync::Crew& crew, const ReadOptions& options, std::span<uint8_t> written, ReadResult* result) {
  if (plan.chunks().empty()) return absl::OkStatus();
  if (sources.empty()) return Internal("a read needs a source");
  if (!digests.empty() && plan.chunks().back().chunk >= digests.size()) {
    return Damaged("the record has fewer digests than the image has chunks");
  }
  const Delivery delivery(plan, digests, written);
  std::vector<FailedChunk> failed;
  const Source& nearest = sources.front();
  if (const auto image = nearest.reader->Mapped(); !image.empty()) {
    result->bytes[nearest.name] += DeliverMapped(plan, image, delivery, crew, &failed);
  } else {
    std::vector<const ChunkPlan*> staged, plain;
    for (const ChunkPlan& chunk : plan.chunks()) {
      (digests.empty() && IsPlain(plan, chunk, options.plain_bytes) ? plain : staged).push_back(&chunk);
    }
    uint64_t& delivered = result->bytes[nearest.name];
    if (!plain.empty()) delivered += ReadPlain(plan, plain, nearest, written, crew, &failed);
    if (!staged.empty()) {
      Stream stream(plan, staged, nearest, delivery, options, &failed);
      if (!stream.usable()) return Exhausted(absl::StrFormat("no memory for a staging buffer of %d bytes", plan.chunk_bytes()));
      delivered += stream.Run(crew);
    }
  }
  result->chunks_failed += failed.size();
  std::sort(failed.begin(), failed.end(),
            [](const FailedChunk& a, const FailedChunk& b) { return a.chunk->chunk < b.chunk->chunk; });
  if (!failed.empty()) {
    obs::Log(obs::Level::kWarning, absl::StrFormat("event=chunks_bad source=%s count=%d first_chunk=%d what=\"%s\"", nearest.name,
                                                   failed.size(), failed.front().chunk->chunk, Failure(failed.front(), nearest)));
  }
  // The rare part: one chunk at a time from the other places, then back over the bad copy.
  AlignedBuffer buffer;
  for (const FailedChunk& bad : failed) {
    const uint64_t begin = bad.chunk->chunk * plan.chunk_bytes();
    const uint64_t bytes = plan.ChunkSize(bad.chunk->chunk);
    std::string tried = Failure(bad, nearest);
    bool delivered = false;
    absl::Status unreachable = absl::IsUnavailable(bad.error) ? bad.error : absl::OkStatus();
    for (size_t s = 1; s < sources.size() && !delivered; ++s) {
      if (buffer == nullptr) buffer = AllocateAligned(plan.chunk_bytes());
      if (buffer == nullptr) return Exhausted("no memory for a staging buffer");
      FailedChunk again{bad.chunk, ReadBlocking(*sources[s].reader, begin, {buffer.get(), bytes})};
      if (again.error.ok() && delivery.Deliver(*bad.chunk, buffer.get(), codec::Store::kCached, false)) {
        delivered = true;
        result->bytes[sources[s].name] += delivery.NeededBytes(*bad.chunk);
        for (size_t h = 0; h < s; ++h) {
          if (!sources[h].heal) continue;
          const absl::Status healed = sources[h].heal(begin, {buffer.get(), bytes});
          if (healed.ok()) {
            ++result->chunks_healed;
          } else {
            obs::Log(obs::Level::kWarning, absl::StrFormat("event=heal_failed source=%s chunk=%d error=\"%s\"", sources[h].name,
                                                           bad.chunk->chunk, std::string(healed.message())));
          }
        }
      } else {
        if (unreachable.ok() && absl::IsUnavailable(again.error)) unreachable = again.error;
        tried += "; " + Failure(again, sources[s]);
      }
    }
    if (!delivered) {
      const std::string message = absl::StrFormat("no good copy of chunk %d (image bytes [%d, %d)): %s", bad.chunk->chunk, begin,
                                                  begin + bytes, tried);
      // A place that did not answer may hold a good copy: nothing is lost yet.
      if (!unreachable.ok()) return Unavailable(message, ErrnoOf(unreachable));
      if (!bad.error.ok() && IsDamaged(bad.error)) return Damaged(message);
      return DataLoss(message);
    }
  }
  plan.FinishStaged();
  return absl::OkStatus();
}

absl::Status VerifyChunks(const Source& source, uint64_t image_bytes, uint64_t chunk_bytes,
                          std::span<const codec::Digest> digests, sync::Crew& crew, std::vector<uint64_t>* bad) {
  sync::Mutex mutex;
  const uint64_t count = digests.size();
  if (const auto image = source.reader->Mapped(); !image.empty()) {
    auto work = [&](uint64_t chunk, int) {
      const uint64_t begin = chunk * chunk_bytes;
      const uint64_t bytes = std::min(chunk_bytes, image_bytes - begin);
      const bool good = begin + bytes <= image.size() && codec::DigestOf(image.subspan(begin, bytes)) == digests[chunk];
      if (!good) {
        sync::MutexLock lock(mutex);
        bad->push_back(chunk);
      }
    };
    crew.Run(count, sync::PartFn(work));
  } else {
    absl::Status first_error;
    std::vector<AlignedBuffer> buffers(static_cast<size_t>(crew.threads()));
    for (AlignedBuffer& buffer : buffers) {
      buffer = AllocateAligned(chunk_bytes);
      if (buffer == nullptr) return Exhausted(absl::StrFormat("no memory for a staging buffer of %d bytes", chunk_bytes));
    }
    auto work = [&](uint64_t chunk, int worker) {
      const uint64_t begin = chunk * chunk_bytes;
      const uint64_t bytes = std::min(chunk_bytes, image_bytes - begin);
      std::byte* buffer = buffers[static_cast<size_t>(worker)].get();
      absl::Status status = ReadBlocking(*source.reader, begin, {buffer, bytes});
      const bool good = status.ok() && codec::DigestOf({buffer, bytes}) == digests[chunk];
      if (!good) {
        sync::MutexLock lock(mutex);
        if (!status.ok() && first_error.ok()) first_error = status;
        bad->push_back(chunk);
      }
    };
    crew.Run(count, sync::PartFn(work));
    if (!first_error.ok()) return first_error;
  }
  std::sort(bad->begin(), bad->end());
  return absl::OkStatus();
}

}  // namespace neve::restore
