#include "engine/contents_reader.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"
#include "base/sync/mutex.h"
#include "format/byte_source.h"
#include "format/zip_directory.h"

namespace neve {
namespace {

// Bytes of the image that are one record of the file.
struct Record {
  uint64_t offset, bytes;
  uint32_t crc;
  size_t tensor;   // of the header
};

class ContentsReader final : public storage::ImageReader {
 public:
  ContentsReader(std::shared_ptr<const format::Contents> contents, std::vector<Record> records)
      : contents_(std::move(contents)), records_(std::move(records)) {}

  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override { done(ReadSummed(offset, target)); }

 private:
  struct Piece {
    uint64_t bytes;
    uint32_t crc;
  };

  absl::Status ReadSummed(uint64_t offset, std::span<std::byte> target) {
    NEVE_RETURN_IF_ERROR(contents_->Read(offset, target));
    const uint64_t end = offset + target.size();
    auto at = std::upper_bound(records_.begin(), records_.end(), offset,
                               [](uint64_t first, const Record& record) { return first < record.offset + record.bytes; });
    for (; at != records_.end() && at->offset < end; ++at) {
      const uint64_t begin = std::max(at->offset, offset), last = std::min(at->offset + at->bytes, end);
      const Piece piece{last - begin, codec::Crc32(0, target.subspan(begin - offset, last - begin))};
      const bool whole = piece.bytes == at->bytes;
      if (whole ? piece.crc != at->crc : !Join(*at, begin, piece)) {
        return DataLoss(absl::StrFormat("%s: the bytes of tensor \"%s\" differ from their checksum (CRC-32 %08x wanted)",
                                        contents_->files().front(), contents_->header().tensors[at->tensor].name, at->crc));
      }
    }
    return absl::OkStatus();
  }

  // Adds a piece of a record; false: it was the last, and the sum is another.
  bool Join(const Record& record, uint64_t begin, Piece piece) {
    sync::MutexLock lock(mutex_);
    std::map<uint64_t, Piece>& pieces = pieces_[record.offset];
    pieces[begin] = piece;
    uint64_t next = record.offset;
    uint32_t crc = 0;
    for (const auto& [offset, known] : pieces) {
      if (offset != next) return true;
      crc = codec::Crc32Combine(crc, known.crc, known.bytes);
      next += known.bytes;
    }
    return next != record.offset + record.bytes || crc == record.crc;
  }

  const std::shared_ptr<const format::Contents> contents_;
  const std::vector<Record> records_;   // by offset
  const format::CommitRecord record_;
  sync::Mutex mutex_;
  std::unordered_map<uint64_t, std::map<uint64_t, Piece>> pieces_ NEVE_GUARDED_BY(mutex_);   // of records, by their offset
};

// The records that stored tensors are, all of them and as they lie.
absl::StatusOr<std::vector<Record>> RecordsOf(const format::Contents& contents) {
  std::vector<Record> records;
  if (contents.kind() != format::ContentsKind::kTorchZip) return records;
  NEVE_ASSIGN_OR_RETURN(const auto source, format::OpenFileSource(contents.files().front()));
  NEVE_ASSIGN_OR_RETURN(const format::ZipDirectory directory, format::ZipDirectory::Read(*source));
  std::unordered_map<uint64_t, const format::ZipEntry*> entries;   // by where their bytes are
  for (const format::ZipEntry& entry : directory.entries()) {
    if (!entry.deflated && entry.bytes != 0) entries[entry.data_offset] = &entry;
  }
  const format::ImageHeader& header = contents.header();
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const format::HeaderTensor& tensor = header.tensors[i];
    const std::vector<format::Extent> extents = contents.Locate(tensor.offset, tensor.bytes);
    if (extents.size() != 1) continue;
    const auto entry = entries.find(extents[0].file_offset);
    if (entry != entries.end() && entry->second->bytes == tensor.bytes) {
      records.push_back({tensor.offset, tensor.bytes, entry->second->crc, i});
    }
  }
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.offset < b.offset; });
  return records;
}

}  // namespace

absl::StatusOr<std::shared_ptr<storage::ImageReader>> ReaderOf(std::shared_ptr<const format::Contents> contents) {
  NEVE_ASSIGN_OR_RETURN(std::vector<Record> records, RecordsOf(*contents));
  return std::make_shared<ContentsReader>(std::move(contents), std::move(records));
}

}  // namespace neve
