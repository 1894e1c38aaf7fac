#include "format/verified_contents.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace neve::format {
namespace {

class VerifiedContents final : public Contents {
 public:
  VerifiedContents(std::unique_ptr<Contents> image, CommitRecord record)
      : image_(std::move(image)), record_(std::move(record)), checked_(record_.chunk_count()) {}

  ContentsKind kind() const override { return image_->kind(); }
  std::span<const std::string> files() const override { return image_->files(); }
  std::string_view header_text() const override { return image_->header_text(); }
  const ImageHeader& header() const override { return image_->header(); }
  uint64_t image_bytes() const override { return image_->image_bytes(); }
  std::span<const LogicalTensor> tensors() const override { return image_->tensors(); }
  std::span<const OpaqueObject> opaque() const override { return image_->opaque(); }
  std::span<const std::string> notes() const override { return image_->notes(); }
  std::vector<Extent> Locate(uint64_t offset, uint64_t bytes) const override { return image_->Locate(offset, bytes); }

  // Whole chunks are read into the target and checked there; parts of one, after it was read and checked on its own.
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override {
    std::vector<std::byte> chunk_memory;
    while (!target.empty()) {
      const uint64_t chunk = offset / record_.chunk_bytes, begin = chunk * record_.chunk_bytes;
      if (chunk >= record_.chunk_count()) return image_->Read(offset, target);   // which refuses it
      const uint64_t chunk_bytes = record_.ChunkBytesAt(chunk);
      const uint64_t take = std::min<uint64_t>(target.size(), begin + chunk_bytes - offset);
      const std::span<std::byte> piece = target.first(take);
      if (checked_[chunk].load(std::memory_order_acquire)) {
        NEVE_RETURN_IF_ERROR(image_->Read(offset, piece));
      } else if (take == chunk_bytes) {
        NEVE_RETURN_IF_ERROR(image_->Read(offset, piece));
        NEVE_RETURN_IF_ERROR(Compare(chunk, piece));
      } else {
        chunk_memory.resize(chunk_bytes);
        NEVE_RETURN_IF_ERROR(image_->Read(begin, chunk_memory));
        NEVE_RETURN_IF_ERROR(Compare(chunk, chunk_memory));
        std::copy_n(chunk_memory.begin() + static_cast<ptrdiff_t>(offset - begin), take, piece.begin());
      }
      offset += take;
      target = target.subspan(take);
    }
    return absl::OkStatus();
  }

  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override {
    std::vector<std::byte> bytes;
    for (uint64_t chunk = 0; chunk < record_.chunk_count(); ++chunk) {
      bytes.resize(record_.ChunkBytesAt(chunk));
      const uint64_t begin = chunk * record_.chunk_bytes;
      absl::Status status = image_->Read(begin, bytes);
      if (status.ok()) status = Compare(chunk, bytes);
      if (IsDamaged(status) || status.code() == absl::StatusCode::kDataLoss) {
        problems->push_back({IsDamaged(status), 0, begin, "", std::string(status.message())});
      } else {
        NEVE_RETURN_IF_ERROR(status);
      }
      if (progress) progress(begin + bytes.size());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Compare(uint64_t chunk, std::span<const std::byte> bytes) const {
    if (codec::DigestOf(bytes) != record_.digests[chunk]) {
      return DataLoss(absl::StrFormat("%s: chunk %d (offset %d) differs from its digest", image_->files().front(), chunk,
                                      chunk * record_.chunk_bytes));
    }
    checked_[chunk].store(true, std::memory_order_release);
    return absl::OkStatus();
  }

  std::unique_ptr<Contents> image_;
  CommitRecord record_;
  mutable std::vector<std::atomic<bool>> checked_;   // one a chunk
};

}  // namespace

absl::StatusOr<std::unique_ptr<Contents>> Verified(std::unique_ptr<Contents> image, CommitRecord record) {
  const std::string path = image->files().front();
  if (record.image_bytes != image->image_bytes()) {
    return Damaged(absl::StrFormat("%s has %d bytes, its record says %d", path, image->image_bytes(), record.image_bytes));
  }
  const uint64_t header_bytes = image->header_text().size();
  std::vector<std::byte> header(header_bytes);
  auto verified = std::make_unique<VerifiedContents>(std::move(image), std::move(record));
  NEVE_RETURN_IF_ERROR(verified->Read(0, header));
  return verified;
}

}  // namespace neve::format
