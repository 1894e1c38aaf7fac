#include "format/torch_zip_layout.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"
#include "base/codec/digest.h"

namespace neve::format {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDescriptor = 0x08074b50, kDirectoryEntry = 0x02014b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50, kEnd = 0x06054b50;
constexpr uint64_t kLocalHeaderBytes = 30, kDescriptorBytes = 16, kDescriptor64Bytes = 24;
constexpr uint64_t kDirectoryEntryBytes = 46, kEndsBytes = 56 + 20 + 22;
constexpr uint64_t kMax32 = 0xFFFFFFFF, kMax16 = 0xFFFF;
constexpr uint16_t kHasDescriptor = 0x0008, kUtf8Name = 0x0800;
constexpr uint16_t kExtraZip64 = 0x0001, kExtraPadding = 0x4246;   // "FB"
constexpr uint16_t kMadeBy64 = 0x031e, kNeeded64 = 45;
constexpr size_t kSerializationIdDigits = 40;

template <typename Number>
void Put(std::string* out, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

bool Is64(uint64_t record, uint64_t bytes) { return record >= kMax32 || bytes >= kMax32; }
uint32_t Low32(uint64_t number) { return static_cast<uint32_t>(std::min(number, kMax32)); }

// The zip64 fields of a local header or a directory entry, in the order that the format demands.
uint64_t Zip64Bytes(uint64_t record, uint64_t bytes) {
  if (!Is64(record, bytes)) return 0;
  return 4 + (bytes >= kMax32 ? 16 : 0) + (record >= kMax32 ? 8 : 0);
}
void PutZip64(std::string* out, uint64_t record, uint64_t bytes) {
  const uint64_t total = Zip64Bytes(record, bytes);
  if (total == 0) return;
  Put(out, kExtraZip64);
  Put(out, static_cast<uint16_t>(total - 4));
  if (bytes >= kMax32) {
    Put(out, bytes);   // as it is,
    Put(out, bytes);   // and stored
  }
  if (record >= kMax32) Put(out, record);
}

// Sizes and CRC-32 stand in the descriptor and in the directory, not here.
void PutLocalHeader(std::string* out, std::string_view name, uint64_t record, uint64_t data, uint64_t bytes) {
  const uint64_t extra = data - record - kLocalHeaderBytes - name.size();
  const uint64_t padding = extra - Zip64Bytes(record, bytes) - 4;
  Put(out, kLocalHeader);
  Put(out, uint16_t{0});   // version needed
  Put(out, static_cast<uint16_t>(bytes > 0 ? kUtf8Name | kHasDescriptor : kUtf8Name));
  Put(out, uint16_t{0});   // stored
  Put(out, uint32_t{0});   // no time, no date: equal states make equal files
  Put(out, uint32_t{0});
  Put(out, uint64_t{0});
  Put(out, static_cast<uint16_t>(name.size()));
  Put(out, static_cast<uint16_t>(extra));
  out->append(name);
  PutZip64(out, record, bytes);
  Put(out, kExtraPadding);
  Put(out, static_cast<uint16_t>(padding));
  out->append(padding, 'Z');
}

uint64_t DescriptorSize(uint64_t record, uint64_t bytes) {
  return bytes == 0 ? 0 : Is64(record, bytes) ? kDescriptor64Bytes : kDescriptorBytes;
}
void PutDescriptor(std::string* out, uint64_t record, uint64_t bytes, uint32_t crc) {
  if (bytes == 0) return;
  Put(out, kDescriptor);
  Put(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (Is64(record, bytes)) {
      Put(out, bytes);
    } else {
      Put(out, static_cast<uint32_t>(bytes));
    }
  }
}

uint64_t DirectoryEntrySize(uint64_t name_bytes, uint64_t record, uint64_t bytes) {
  return kDirectoryEntryBytes + name_bytes + Zip64Bytes(record, bytes);
}
void PutDirectoryEntry(std::string* out, std::string_view name, uint64_t record, uint64_t bytes, uint32_t crc) {
  Put(out, kDirectoryEntry);
  Put(out, uint32_t{0});   // versions made by and needed
  Put(out, static_cast<uint16_t>(bytes > 0 ? kUtf8Name | kHasDescriptor : kUtf8Name));
  Put(out, uint16_t{0});
  Put(out, uint32_t{0});
  Put(out, crc);
  Put(out, Low32(bytes));
  Put(out, Low32(bytes));
  Put(out, static_cast<uint16_t>(name.size()));
  Put(out, static_cast<uint16_t>(Zip64Bytes(record, bytes)));
  Put(out, uint64_t{0});   // no comment, disk 0, attributes
  Put(out, uint16_t{0});
  Put(out, Low32(record));
  out->append(name);
  PutZip64(out, record, bytes);
}

void PutEnds(std::string* out, uint64_t entries, uint64_t directory, uint64_t directory_end) {
  const uint64_t directory_bytes = directory_end - directory;
  Put(out, kEnd64);
  Put(out, uint64_t{44});   // of the rest of it
  Put(out, kMadeBy64);
  Put(out, kNeeded64);
  Put(out, uint64_t{0});    // disks
  Put(out, entries);
  Put(out, entries);
  Put(out, directory_bytes);
  Put(out, directory);
  Put(out, kLocator64);
  Put(out, uint32_t{0});
  Put(out, directory_end);
  Put(out, uint32_t{1});
  Put(out, kEnd);
  Put(out, uint32_t{0});
  Put(out, static_cast<uint16_t>(std::min(entries, kMax16)));
  Put(out, static_cast<uint16_t>(std::min(entries, kMax16)));
  Put(out, Low32(directory_bytes));
  Put(out, Low32(directory));
  Put(out, uint16_t{0});
}

int DecimalDigits(size_t number) {
  int digits = 1;
  for (; number >= 10; number /= 10) ++digits;
  return digits;
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

std::string TorchZipRoot(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) name = name.substr(0, dot);
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c < 0x7f && c != '\\'; });
  return name.empty() || name == "." || name == ".." || !plain ? "archive" : std::string(name);
}

uint64_t TorchZipLayout::DataOffset(uint64_t record, uint64_t name_bytes, uint64_t bytes) const {
  const uint64_t begin = record + kLocalHeaderBytes + name_bytes + Zip64Bytes(record, bytes) + 4;
  return (begin + alignment_ - 1) / alignment_ * alignment_;
}

TorchZipLayout::Record TorchZipLayout::Append(std::string_view name, std::string_view content, uint64_t base,
                                              std::string* out) const {
  Record record{root_ + "/" + std::string(name), base + out->size(), content.size(), codec::Crc32(0, Bytes(content))};
  PutLocalHeader(out, record.name, record.offset, DataOffset(record.offset, record.name.size(), record.bytes), record.bytes);
  out->append(content);
  PutDescriptor(out, record.offset, record.bytes, record.crc);
  return record;
}

std::string TorchZipLayout::StorageName(size_t index) const { return root_ + "/data/" + std::to_string(index); }

absl::StatusOr<TorchZipLayout> TorchZipLayout::Build(std::string_view root, uint64_t alignment, std::string_view pickle,
                                                     std::span<const uint64_t> storage_bytes) {
  if (!std::has_single_bit(alignment) || alignment > kTorchZipAlignmentMax) {
    return Invalid(absl::StrFormat("storages cannot be aligned to %d bytes: a power of two up to %d is possible", alignment,
                                   kTorchZipAlignmentMax));
  }
  if (root.empty() || root.size() > 1024 || root.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
    return Invalid("the root folder of an archive has a name of 1 to 1024 bytes without slashes");
  }
  TorchZipLayout layout;
  layout.root_ = root;
  layout.alignment_ = alignment;
  layout.head_.reserve(pickle.size() + 5 * (alignment + 256));
  const std::string alignment_text = std::to_string(alignment);
  for (const auto& [name, content] : {std::pair<std::string_view, std::string_view>{"data.pkl", pickle},
                                      {".format_version", "1"},
                                      {".storage_alignment", alignment_text},
                                      {"byteorder", "little"}}) {
    layout.head_records_.push_back(layout.Append(name, content, 0, &layout.head_));
  }
  const size_t count = storage_bytes.size();
  layout.records_.reserve(count + 1);
  layout.data_.reserve(count);
  layout.bytes_.assign(storage_bytes.begin(), storage_bytes.end());
  uint64_t at = layout.head_.size();
  uint64_t directory_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bytes = storage_bytes[i];
    if (bytes >= uint64_t{1} << 62 || at >= uint64_t{1} << 62) return Invalid("the storages are larger than any file");
    const uint64_t name_bytes = root.size() + 6 + static_cast<uint64_t>(DecimalDigits(i));
    layout.records_.push_back(at);
    layout.data_.push_back(layout.DataOffset(at, name_bytes, bytes));
    directory_bytes += DirectoryEntrySize(name_bytes, at, bytes);
    at = layout.data_.back() + bytes + DescriptorSize(at, bytes);
  }
  layout.records_.push_back(at);
  // The tail's size is known, though its content is not.
  for (const Record& record : layout.head_records_) {
    directory_bytes += DirectoryEntrySize(record.name.size(), record.offset, record.bytes);
  }
  for (const auto& [name, bytes] : {std::pair<std::string_view, uint64_t>{"version", 2},
                                    {".data/serialization_id", kSerializationIdDigits}}) {
    const uint64_t name_bytes = root.size() + 1 + name.size();
    directory_bytes += DirectoryEntrySize(name_bytes, at, bytes);
    at = layout.DataOffset(at, name_bytes, bytes) + bytes + DescriptorSize(at, bytes);
  }
  layout.archive_bytes_ = at + directory_bytes + kEndsBytes;
  return layout;
}

TorchZipLayout::Storage TorchZipLayout::storage(size_t index) const {
  return {records_[index], data_[index], bytes_[index], records_[index + 1]};
}

size_t TorchZipLayout::StorageAt(uint64_t offset) const {
  return static_cast<size_t>(std::upper_bound(records_.begin(), records_.end() - 1, offset) - records_.begin()) - 1;
}

void TorchZipLayout::LocalHeader(size_t index, std::string* out) const {
  out->clear();
  PutLocalHeader(out, StorageName(index), records_[index], data_[index], bytes_[index]);
}

void TorchZipLayout::Descriptor(size_t index, uint32_t crc, std::string* out) const {
  out->clear();
  PutDescriptor(out, records_[index], bytes_[index], crc);
}

std::string TorchZipLayout::Tail(std::span<const uint32_t> crcs) const {
  std::string tail;
  tail.reserve(archive_bytes_ - tail_offset());
  const Record version = Append("version", "3\n", tail_offset(), &tail);
  // A fingerprint of the names and of the contents, each 20 digits: torch shows it, nothing reads it.
  const codec::Digest names = codec::DigestOf(Bytes(absl::StrFormat("%s %d", root_, crcs.size())));
  std::string sums = std::to_string(head_records_.front().crc);
  for (uint32_t crc : crcs) Put(&sums, crc);
  const codec::Digest contents = codec::DigestOf(Bytes(sums));
  const Record id = Append(".data/serialization_id", absl::StrFormat("%020d%020d", names.low, contents.low), tail_offset(), &tail);
  const uint64_t directory = tail_offset() + tail.size();
  for (const Record& record : head_records_) PutDirectoryEntry(&tail, record.name, record.offset, record.bytes, record.crc);
  for (size_t i = 0; i < crcs.size(); ++i) PutDirectoryEntry(&tail, StorageName(i), records_[i], bytes_[i], crcs[i]);
  for (const Record& record : {version, id}) PutDirectoryEntry(&tail, record.name, record.offset, record.bytes, record.crc);
  PutEnds(&tail, head_records_.size() + crcs.size() + 2, directory, tail_offset() + tail.size());
  return tail;
}

}  // namespace neve::format
