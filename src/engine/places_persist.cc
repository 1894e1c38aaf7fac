#include "engine/places_persist.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "base/sync/crew.h"
#include "base/sync/mutex.h"
#include "engine/blocking.h"

namespace neve::engine {
namespace {

constexpr uint64_t kPieceBytes = 4u << 20;

absl::Status CheckDigests(std::span<const std::byte> image, const format::CommitRecord& record, const std::string& path) {
  if (record.digests.size() != record.chunk_count()) {
    return Damaged(absl::StrFormat("%s: %d digests for %d chunks", path, record.digests.size(), record.chunk_count()));
  }
  const std::unique_ptr<sync::Crew> crew = sync::Crew::Create(1);
  sync::Mutex mutex;
  int64_t bad = -1;
  auto check = [&](uint64_t chunk, int) {
    const std::span<const std::byte> bytes = image.subspan(chunk * record.chunk_bytes, record.ChunkBytesAt(chunk));
    if (codec::DigestOf(bytes) == record.digests[chunk]) return;
    sync::MutexLock lock(mutex);
    if (bad < 0 || static_cast<int64_t>(chunk) < bad) bad = static_cast<int64_t>(chunk);
  };
  crew->Run(record.chunk_count(), check);
  if (bad < 0) return absl::OkStatus();
  return DataLoss(absl::StrFormat("%s: chunk %d (offset %d) differs from its digest; not persisted", path, bad,
                                  static_cast<uint64_t>(bad) * record.chunk_bytes));
}

// A few writes in flight at once; the first error stops the rest.
absl::Status WriteAll(std::span<const std::byte> image, int queue_depth, storage::ImageWriter* writer,
                      const std::function<void(uint64_t)>& advance) {
  sync::Mutex mutex;
  sync::Condition condition;
  int in_flight = 0;
  absl::Status first;
  for (uint64_t offset = 0; offset < image.size(); offset += kPieceBytes) {
    const std::span<const std::byte> piece = image.subspan(offset, std::min<uint64_t>(kPieceBytes, image.size() - offset));
    {
      sync::MutexLock lock(mutex);
      condition.Wait(mutex, [&] { return in_flight < queue_depth; });
      if (!first.ok()) break;
      ++in_flight;
    }
    writer->Write(offset, piece, [&, bytes = piece.size()](absl::Status status) {
      if (status.ok() && advance) advance(bytes);
      sync::MutexLock lock(mutex);
      if (first.ok()) first = std::move(status);
      --in_flight;
      condition.NotifyAll();
    });
  }
  sync::MutexLock lock(mutex);
  condition.Wait(mutex, [&] { return in_flight == 0; });
  return first;
}

}  // namespace

absl::Status PersistSlot(const slot::Slot& slot, const format::CommitRecord& record, storage::Tier* tier,
                         const std::function<void(uint64_t)>& advance) {
  if (record.image_bytes > slot.image().size()) {
    return Damaged(absl::StrFormat("%s: an image of %d bytes in a slot of %d", slot.path(), record.image_bytes,
                                   slot.image().size()));
  }
  const std::span<const std::byte> image = slot.image().first(record.image_bytes);
  NEVE_RETURN_IF_ERROR(CheckDigests(image, record, slot.path()));
  NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<storage::ImageWriter> writer,
                        (Await<std::shared_ptr<storage::ImageWriter>>([&](auto done) {
                          tier->BeginImage(record.key, record.image_bytes, std::move(done));
                        })));
  NEVE_RETURN_IF_ERROR(WriteAll(image, std::max(1, tier->info().queue_depth), writer.get(), advance));
  return AwaitStatus([&](storage::Done done) { writer->Commit(record, std::move(done)); });
}

absl::Status EnsureIdentity(storage::Tier* tier, const format::JobIdentity& identity) {
  const std::string name(format::kJobFile);
  const absl::Status made = AwaitStatus([&](storage::Done done) {
    tier->WriteNote(name, format::EncodeJobIdentity(identity), /*exclusive=*/true, std::move(done));
  });
  if (ErrnoOf(made) != EEXIST) return made;
  NEVE_ASSIGN_OR_RETURN(const std::string text,
                        (Await<std::string>([&](auto done) { tier->ReadNote(name, std::move(done)); })));
  NEVE_ASSIGN_OR_RETURN(const format::JobIdentity there, format::DecodeJobIdentity(text));
  if (there.uid == identity.uid) return absl::OkStatus();
  return Invalid(absl::StrFormat("%s holds job %s of uid %s, RAM holds %s of uid %s", tier->info().place, there.name,
                                 there.uid.ToHex(), identity.name, identity.uid.ToHex()));
}

}  // namespace neve::engine
