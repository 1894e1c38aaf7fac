// A tier's calls as blocking ones, for tests, and images with contents made from a seed.
#ifndef NEVE_TESTS_SUPPORT_BLOCKING_TIER_H_
#define NEVE_TESTS_SUPPORT_BLOCKING_TIER_H_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/codec/digest.h"
#include "base/sync/notification.h"
#include "storage/tier.h"

namespace neve::testing {

template <typename Start>
absl::Status Await(Start start) {
  sync::Result<absl::Status> result;
  start([&](absl::Status status) { result.Set(std::move(status)); });
  return result.Take();
}

template <typename T, typename Start>
absl::StatusOr<T> AwaitValue(Start start) {
  sync::Result<std::shared_ptr<absl::StatusOr<T>>> result;
  start([&](absl::StatusOr<T> value) { result.Set(std::make_shared<absl::StatusOr<T>>(std::move(value))); });
  return std::move(*result.Take());
}

// Memory that begins at a multiple of 4096 and is readable and writable up to the next one.
class PaddedBuffer {
 public:
  explicit PaddedBuffer(uint64_t bytes)
      : bytes_(bytes),
        room_(std::max<uint64_t>(4096, (bytes + 4095) / 4096 * 4096)),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, room_))) {
    std::memset(data_.get(), 0, room_);
  }
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  uint64_t bytes_, room_;
  std::unique_ptr<std::byte, Free> data_;
};

inline void FillFromSeed(std::span<std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i % 8 == 0) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
    }
    bytes[i] = static_cast<std::byte>(state >> (8 * (i % 8)));
  }
}

struct TestImage {
  format::CommitRecord record;
  PaddedBuffer bytes;
};

inline ImageKey KeyOf(uint64_t sequence, uint32_t rank = 0, uint32_t world = 1, uint32_t incarnation = 1) {
  return {.save = {incarnation, sequence}, .step = sequence * 10, .rank = rank, .world = world};
}

// An image whose every byte depends on its seed, with the record that belongs to it.
inline TestImage MakeImage(const ImageKey& key, uint64_t bytes, uint64_t seed, const std::string& job, const Uid& uid) {
  TestImage image{.record = {}, .bytes = PaddedBuffer(bytes)};
  FillFromSeed(image.bytes.span(), seed);
  format::CommitRecord& record = image.record;
  record.job = job;
  record.uid = uid;
  record.key = key;
  record.time = 1'700'000'000;
  record.layout_id = 0x1234;
  record.image_bytes = bytes;
  record.header_bytes = std::min<uint64_t>(bytes, 4096);
  record.chunk_bytes = format::kChunkBytesMin;
  record.tags = {{"seed", static_cast<int64_t>(seed)}};
  for (uint64_t chunk = 0; chunk < record.chunk_count(); ++chunk) {
    record.digests.push_back(codec::DigestOf(image.bytes.span().subspan(chunk * record.chunk_bytes, record.ChunkBytesAt(chunk))));
  }
  return image;
}

inline absl::StatusOr<storage::Listing> List(storage::Tier& tier) {
  return AwaitValue<storage::Listing>([&](auto done) { tier.List(std::move(done)); });
}
inline absl::StatusOr<std::shared_ptr<storage::ImageWriter>> Begin(storage::Tier& tier, const ImageKey& key, uint64_t bytes) {
  return AwaitValue<std::shared_ptr<storage::ImageWriter>>([&](auto done) { tier.BeginImage(key, bytes, std::move(done)); });
}
inline absl::StatusOr<std::shared_ptr<storage::ImageReader>> Open(storage::Tier& tier, const ImageKey& key) {
  return AwaitValue<std::shared_ptr<storage::ImageReader>>([&](auto done) { tier.OpenImage(key, std::move(done)); });
}
inline absl::Status Write(storage::ImageWriter& writer, uint64_t offset, std::span<const std::byte> source) {
  return Await([&](auto done) { writer.Write(offset, source, std::move(done)); });
}
inline absl::Status Commit(storage::ImageWriter& writer, const format::CommitRecord& record) {
  return Await([&](auto done) { writer.Commit(record, std::move(done)); });
}
inline absl::Status Read(storage::ImageReader& reader, uint64_t offset, std::span<std::byte> target) {
  return Await([&](auto done) { reader.Read(offset, target, std::move(done)); });
}
inline absl::Status ReadShared(storage::ImageReader& reader, uint64_t offset, std::span<std::byte> target) {
  return Await([&](auto done) { reader.ReadShared(offset, target, std::move(done)); });
}
inline absl::Status Retire(storage::Tier& tier, const ImageKey& key) {
  return Await([&](auto done) { tier.Retire(key, std::move(done)); });
}
inline absl::Status SetPinned(storage::Tier& tier, const ImageKey& key, bool pinned) {
  return Await([&](auto done) { tier.SetPinned(key, pinned, std::move(done)); });
}
inline absl::Status Heal(storage::Tier& tier, const ImageKey& key, uint64_t offset, std::span<const std::byte> source) {
  return Await([&](auto done) { tier.Heal(key, offset, source, std::move(done)); });
}
inline absl::StatusOr<std::string> ReadNote(storage::Tier& tier, const std::string& name) {
  return AwaitValue<std::string>([&](auto done) { tier.ReadNote(name, std::move(done)); });
}
inline absl::Status WriteNote(storage::Tier& tier, const std::string& name, const std::string& content, bool exclusive) {
  return Await([&](auto done) { tier.WriteNote(name, content, exclusive, std::move(done)); });
}
inline absl::Status RemoveNote(storage::Tier& tier, const std::string& name) {
  return Await([&](auto done) { tier.RemoveNote(name, std::move(done)); });
}

// Begins, writes in pieces of `piece` bytes, several at once, and commits. The writer is gone when this returns.
inline absl::Status Save(storage::Tier& tier, const TestImage& image, uint64_t piece = 1u << 20) {
  NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<storage::ImageWriter> writer,
                        Begin(tier, image.record.key, image.record.image_bytes));
  const std::span<const std::byte> bytes = image.bytes.span();
  std::vector<std::unique_ptr<sync::Result<absl::Status>>> results;
  for (uint64_t offset = 0; offset < bytes.size(); offset += piece) {
    results.push_back(std::make_unique<sync::Result<absl::Status>>());
    writer->Write(offset, bytes.subspan(offset, std::min<uint64_t>(piece, bytes.size() - offset)),
                  [result = results.back().get()](absl::Status status) { result->Set(std::move(status)); });
  }
  absl::Status status;
  for (const auto& result : results) status.Update(result->Take());
  NEVE_RETURN_IF_ERROR(status);
  return Commit(*writer, image.record);
}

// Reads the image and checks each chunk against the record that the tier gave: DataLoss names the first chunk that differs.
inline absl::Status ReadAndVerify(storage::ImageReader& reader) {
  const format::CommitRecord& record = reader.record();
  PaddedBuffer buffer(record.image_bytes);
  NEVE_RETURN_IF_ERROR(Read(reader, 0, buffer.span()));
  for (uint64_t chunk = 0; chunk < record.chunk_count(); ++chunk) {
    const auto bytes = buffer.span().subspan(chunk * record.chunk_bytes, record.ChunkBytesAt(chunk));
    if (codec::DigestOf(bytes) != record.digests[chunk]) return DataLoss("chunk " + std::to_string(chunk) + " differs");
  }
  return absl::OkStatus();
}

inline absl::Status OpenAndVerify(storage::Tier& tier, const ImageKey& key) {
  NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<storage::ImageReader> reader, Open(tier, key));
  return ReadAndVerify(*reader);
}

}  // namespace neve::testing

#endif  // NEVE_TESTS_SUPPORT_BLOCKING_TIER_H_
