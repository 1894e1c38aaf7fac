// The directory of a zip archive, read with suspicion. What it lists has been checked: entries do not overlap, names are
// unique and stay inside, local headers say what the directory says, and no size reaches past the archive or claims more than
// its compression can hold. No entry's data is read.
//
// Refused (Damaged unless said): no end record (truncated: the entries that are whole are named); bytes after the end record,
// or before the first entry (concatenated archives are named as such); counts, sizes and offsets that do not add up; repeated
// names; names that are absolute, climb out by "..", or hold NUL; overlapping entries; local headers that differ. Unsupported:
// several disks, encryption, compression other than deflate.
//
// Bounds: a directory of at most kDirectoryBytesMax; memory: that and 64 bytes an entry.
#ifndef NEVE_FORMAT_ZIP_DIRECTORY_H_
#define NEVE_FORMAT_ZIP_DIRECTORY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/byte_source.h"

namespace neve::format {

struct ZipEntry {
  std::string_view name;
  uint64_t header_offset;  // of its local header
  uint64_t data_offset;
  uint64_t stored_bytes;  // as they lie in the archive
  uint64_t bytes;         // once inflated
  uint32_t crc;           // of those
  bool deflated;
  bool has_descriptor;  // 12 to 24 bytes after the data repeat crc and sizes
  bool has_crc = true;  // false: whoever wrote the archive left its checksums out
};

struct ZipOptions {
  bool lenient = false;  // bytes before and after the archive are allowed, and noted
  std::vector<std::string>* notes = nullptr;
};

class ZipDirectory {
 public:
  static constexpr uint64_t kDirectoryBytesMax = 256u << 20;

  // Whether the bytes begin as a zip archive does, or could end as one. `head`: the first bytes.
  static bool Looks(std::string_view head);

  static absl::StatusOr<ZipDirectory> Read(const ByteSource& source, const ZipOptions& options = {});
  ZipDirectory(ZipDirectory&&) = default;
  ZipDirectory& operator=(ZipDirectory&&) = default;

  std::span<const ZipEntry> entries() const { return entries_; }  // in the directory's order
  const ZipEntry* Find(std::string_view name) const;

  // Torch can be told to compute no checksums (torch.serialization.set_crc32_options), and then writes 0 for each. Where all
  // entries have 0, and one of them bytes, this takes them as entries without: true. An archive of which some have 0 keeps all,
  // since the checksum of some bytes is 0, and of none. For archives of torch only.
  bool ForgetAbsentChecksums();

 private:
  friend class ZipReader;
  ZipDirectory() = default;
  std::string text_;  // the central directory, which the names point into
  std::vector<ZipEntry> entries_;
  std::vector<uint32_t> by_name_;
};

// The bytes of an entry, inflated, at most `limit` of them (Damaged), its checksum, where it has one, compared (DataLoss).
absl::StatusOr<std::string> ReadZipEntry(const ByteSource& source, const ZipEntry& entry, uint64_t limit);

// Whether the record that follows the data says what the directory says; OK where there is none.
absl::Status CheckZipDescriptor(const ByteSource& source, const ZipEntry& entry);

}  // namespace neve::format

#endif  // NEVE_FORMAT_ZIP_DIRECTORY_H_
