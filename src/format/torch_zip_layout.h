// The layout of a torch zip archive, byte for byte as torch.save of torch 2.13 writes it (but for the serialization id, which
// only has to be a fingerprint):
//
//   head       data.pkl, .format_version, .storage_alignment, byteorder        known at once
//   storages   data/0, data/1, ... : local header, the bytes, data descriptor  descriptors hold the CRC-32 of the bytes
//   tail       version, .data/serialization_id, the central directory          needs every CRC-32
//
// All names stand below one root folder. Every record is stored, not compressed, and its bytes begin at a multiple of the
// alignment: the local header is stretched by an extra field "FB" of Zs. A record of 4 GiB or more, or one that begins
// there, has a zip64 field before it, and 64-bit sizes in its descriptor. An empty record has no descriptor. torch.load(mmap=True)
// finds storages by computing these very offsets (torch.utils.serialization.config.load.calculate_storage_offsets), so none of
// it is a matter of taste.
#ifndef NEVE_FORMAT_TORCH_ZIP_LAYOUT_H_
#define NEVE_FORMAT_TORCH_ZIP_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"

namespace neve::format {

inline constexpr uint64_t kTorchZipAlignment = 64;         // what torch.save uses
inline constexpr uint64_t kTorchZipAlignmentMax = 32768;   // an extra field is less than 64 KiB long

// The root folder that torch gives an archive of that path: the file's name without its last suffix, or "archive" where the
// name has other than ASCII characters or nothing before the suffix.
std::string TorchZipRoot(std::string_view path);

class TorchZipLayout {
 public:
  // Where the record of a storage lies in the archive.
  struct Storage {
    uint64_t record;   // of its local header
    uint64_t data;     // of its bytes
    uint64_t bytes;
    uint64_t end;      // of its descriptor, where the next record begins
    uint64_t descriptor() const { return data + bytes; }
  };

  // pickle: data.pkl, which names storage i by the key "<i>". Invalid: an alignment that is no power of two, or too large; a
  // root that no folder can have.
  static absl::StatusOr<TorchZipLayout> Build(std::string_view root, uint64_t alignment, std::string_view pickle,
                                              std::span<const uint64_t> storage_bytes);

  std::string_view head() const { return head_; }
  size_t storage_count() const { return data_.size(); }
  Storage storage(size_t index) const;
  // The storage in whose record the offset lies; the offset is in [head().size(), tail_offset()).
  size_t StorageAt(uint64_t offset) const;
  uint64_t tail_offset() const { return records_.back(); }
  uint64_t archive_bytes() const { return archive_bytes_; }

  // The bytes from a storage's `record` to its `data`, and from its `descriptor()` to its `end`; both replace what `out` held.
  void LocalHeader(size_t index, std::string* out) const;
  void Descriptor(size_t index, uint32_t crc, std::string* out) const;
  // The bytes from tail_offset() to archive_bytes(). crcs: one a storage.
  std::string Tail(std::span<const uint32_t> crcs) const;

 private:
  struct Record {   // one that is no storage
    std::string name;
    uint64_t offset, bytes;
    uint32_t crc;
  };
  uint64_t DataOffset(uint64_t record, uint64_t name_bytes, uint64_t bytes) const;
  // Appends a whole record, which begins at archive offset `base` + out->size().
  Record Append(std::string_view name, std::string_view content, uint64_t base, std::string* out) const;
  std::string StorageName(size_t index) const;

  std::string root_;
  uint64_t alignment_ = kTorchZipAlignment;
  std::string head_;
  std::vector<Record> head_records_;
  std::vector<uint64_t> records_;   // of each storage, and tail_offset()
  std::vector<uint64_t> data_;
  std::vector<uint64_t> bytes_;
  uint64_t archive_bytes_ = 0;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_TORCH_ZIP_LAYOUT_H_
