#include "format/zip_directory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"
#include "format/inflate.h"
#include "format/json_text.h"
#include "format/name_order.h"

namespace neve::format {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kLocalMagic = "PK\3\4"sv, kCentralMagic = "PK\1\2"sv, kEndMagic = "PK\5\6"sv, kEnd64Magic = "PK\6\6"sv,
                           kLocatorMagic = "PK\6\7"sv, kDescriptorMagic = "PK\7\x8"sv;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kCommentBytesMax = 65535;
constexpr uint64_t kTrailingSearchBytes = 4u << 20;  // how far from the end an end record is looked for, to say what follows it
constexpr uint64_t kWholeSearchBytes = 8u << 20;     // how much of a truncated archive is searched for whole entries
constexpr uint64_t kWindowBytes = 64u << 10;         // local headers that lie so close are read together
constexpr uint64_t kHeaderReadBytes = 512;           // one that lies alone: torch's fit, whatever their padding up to 256
constexpr uint64_t kInflationMax = 1032;             // deflate cannot do better
constexpr uint32_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kMax16 = 0xFFFF, kEncrypted = 1 | 1 << 6 | 1 << 13, kDescriptorFollows = 1 << 3;
constexpr uint16_t kZip64Field = 1;

uint64_t Load(std::string_view text, uint64_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text[at + static_cast<uint64_t>(i)]);
  return value;
}
uint16_t Load16(std::string_view text, uint64_t at) { return static_cast<uint16_t>(Load(text, at, 2)); }
uint32_t Load32(std::string_view text, uint64_t at) { return static_cast<uint32_t>(Load(text, at, 4)); }
uint64_t Load64(std::string_view text, uint64_t at) { return Load(text, at, 8); }

// The zip64 field of an extra area, "" when there is none; nullopt: the area is malformed.
std::optional<std::string_view> Zip64Field(std::string_view extra) {
  std::string_view found = "";
  while (extra.size() >= 4) {
    const uint16_t id = Load16(extra, 0), bytes = Load16(extra, 2);
    if (bytes > extra.size() - 4) return std::nullopt;
    if (id == kZip64Field && found.empty()) found = extra.substr(4, bytes);
    extra.remove_prefix(4 + size_t{bytes});
  }
  return found;  // fewer than four bytes left over are padding that some tools write
}

// What the 32-bit fields of a header say, with the zip64 field in place of those that are all ones.
struct Sizes {
  uint64_t bytes, stored_bytes, header_offset;
};
bool WidenSizes(std::string_view zip64, bool with_offset, Sizes* sizes) {
  for (uint64_t* const field : {&sizes->bytes, &sizes->stored_bytes, &sizes->header_offset}) {
    if (field == &sizes->header_offset && !with_offset) break;
    if (*field != kMax32) continue;
    if (zip64.empty()) continue;  // exactly 4 GiB - 1, without zip64
    if (zip64.size() < 8) return false;
    *field = Load64(zip64, 0);
    zip64.remove_prefix(8);
  }
  return true;
}

const char* NameProblem(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.find('\0') != std::string_view::npos) return "holds NUL";
  if (name.front() == '/' || name.find('\\') != std::string_view::npos) return "is absolute or holds a backslash";
  for (std::string_view rest = name; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part == "..") return "climbs out of the archive by \"..\"";
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  return nullptr;
}

}  // namespace

class ZipReader {
 public:
  ZipReader(const ByteSource& source, const ZipOptions& options) : source_(source), options_(options) {}

  absl::StatusOr<ZipDirectory> Read() {
    NEVE_RETURN_IF_ERROR(FindEnd());
    NEVE_RETURN_IF_ERROR(ReadDirectory());
    NEVE_RETURN_IF_ERROR(CheckNames());
    NEVE_RETURN_IF_ERROR(ReadLocalHeaders());
    return std::move(directory_);
  }

 private:
  absl::Status Bad(const std::string& what) const { return Damaged(source_.name() + ": " + what); }
  absl::Status Untidy(const std::string& what) {
    if (!options_.lenient) return Bad(what);
    if (options_.notes != nullptr) options_.notes->push_back(source_.name() + ": " + what);
    return absl::OkStatus();
  }

  // ---- the end record ----

  // The last end record of `tail` whose comment reaches exactly to the end; else the last of all; npos: none.
  static size_t FindEndRecord(std::string_view tail) {
    size_t last = std::string_view::npos;
    for (size_t at = tail.rfind(kEndMagic); at != std::string_view::npos;
         at = at == 0 ? std::string_view::npos : tail.rfind(kEndMagic, at - 1)) {
      if (tail.size() - at < kEndBytes) continue;
      if (tail.size() - at - kEndBytes == Load16(tail, at + 20)) return at;
      if (last == std::string_view::npos) last = at;
      if (tail.size() - at > kEndBytes + kCommentBytesMax) break;  // none further off can reach the end
    }
    return last;
  }

  absl::Status FindEnd() {
    uint64_t tail_bytes = std::min<uint64_t>(source_.size(), kEndBytes + kCommentBytesMax);
    NEVE_RETURN_IF_ERROR(source_.ReadText(source_.size() - tail_bytes, tail_bytes, &tail_));
    size_t at = FindEndRecord(tail_);
    if (at == std::string_view::npos && tail_bytes < source_.size()) {
      tail_bytes = std::min(source_.size(), kTrailingSearchBytes);
      NEVE_RETURN_IF_ERROR(source_.ReadText(source_.size() - tail_bytes, tail_bytes, &tail_));
      at = FindEndRecord(tail_);
    }
    if (at == std::string_view::npos) return Truncated();
    const uint64_t end_offset = source_.size() - tail_.size() + at;
    const std::string_view record = std::string_view(tail_).substr(at);
    const uint64_t comment_bytes = Load16(record, 20);
    const uint64_t follow = record.size() - kEndBytes;
    if (comment_bytes > follow) {
      return Bad(absl::StrFormat("truncated: the comment at the end of the zip archive has %d bytes, %d are there", comment_bytes,
                                 follow));
    }
    if (follow > comment_bytes) {
      NEVE_RETURN_IF_ERROR(Untidy(absl::StrFormat("trailing data: %d bytes follow the end of the zip archive at byte %d",
                                                  follow - comment_bytes, end_offset + kEndBytes + comment_bytes)));
    }
    if (Load16(record, 4) != Load16(record, 6) || (Load16(record, 4) != 0 && Load16(record, 4) != kMax16)) {
      return Unsupported(source_.name() + ": a zip archive of several disks");
    }
    count_ = Load16(record, 10);
    bytes_ = Load32(record, 12);
    offset_ = Load32(record, 16);
    directory_end_ = end_offset;
    const bool wide = count_ == kMax16 || bytes_ == kMax32 || offset_ == kMax32;
    NEVE_RETURN_IF_ERROR(ReadEnd64(end_offset, wide));
    if (bytes_ > directory_end_ || offset_ > directory_end_ - bytes_) {
      return Bad(absl::StrFormat("the directory of %d bytes at %d does not fit before the end record at %d", bytes_, offset_,
                                 directory_end_));
    }
    before_ = directory_end_ - bytes_ - offset_;
    return before_ == 0 ? absl::OkStatus() : Prefixed();
  }

  absl::Status ReadEnd64(uint64_t end_offset, bool wide) {
    if (end_offset < kLocatorBytes) return absl::OkStatus();
    std::string locator;
    NEVE_RETURN_IF_ERROR(source_.ReadText(end_offset - kLocatorBytes, kLocatorBytes, &locator));
    if (!std::string_view(locator).starts_with(kLocatorMagic)) return absl::OkStatus();
    if (end_offset < kLocatorBytes + kEnd64Bytes) return Bad("the zip64 end record is cut off");
    // It lies right before its locator, which names it by an offset that a prefix would shift.
    uint64_t at = Load64(locator, 8);
    std::string record;
    const auto read = [&](uint64_t offset) -> absl::StatusOr<bool> {
      if (offset > end_offset - kLocatorBytes - kEnd64Bytes) return false;
      NEVE_RETURN_IF_ERROR(source_.ReadText(offset, kEnd64Bytes, &record));
      return std::string_view(record).starts_with(kEnd64Magic);
    };
    NEVE_ASSIGN_OR_RETURN(bool found, read(at));
    if (!found) {
      at = end_offset - kLocatorBytes - kEnd64Bytes;
      NEVE_ASSIGN_OR_RETURN(found, read(at));
    }
    if (!found) {
      if (!wide) return absl::OkStatus();  // bytes that look like a locator by chance
      return Bad(absl::StrFormat("there is no zip64 end record at byte %d, where its locator points", at));
    }
    const uint64_t count = Load64(record, 32), bytes = Load64(record, 40), offset = Load64(record, 48);
    const auto agrees = [](uint64_t narrow, uint64_t all_ones, uint64_t value) { return narrow == all_ones || narrow == value; };
    if (!agrees(count_, kMax16, count) || !agrees(bytes_, kMax32, bytes) || !agrees(offset_, kMax32, offset)) {
      return Bad(absl::StrFormat("the zip64 end record at byte %d differs from the end record at byte %d", at, end_offset));
    }
    count_ = count;
    bytes_ = bytes;
    offset_ = offset;
    directory_end_ = at;
    return absl::OkStatus();
  }

  // All offsets count from the archive's own beginning, which is not the file's.
  absl::Status Prefixed() {
    std::string head;
    NEVE_RETURN_IF_ERROR(source_.ReadText(0, std::min<uint64_t>(4, source_.size()), &head));
    if (std::string_view(head).starts_with(kLocalMagic)) {
      return Untidy(absl::StrFormat("archives are concatenated: the last one begins at byte %d; split the file there", before_));
    }
    return Untidy(absl::StrFormat("%d bytes precede the zip archive", before_));
  }

  absl::Status Truncated() const {
    std::string text;
    NEVE_RETURN_IF_ERROR(source_.ReadText(0, std::min(source_.size(), kWholeSearchBytes), &text));
    std::string names;
    const uint64_t count = WholeEntries(text, &names);
    return Bad(absl::StrFormat("truncated: a zip archive of which %d bytes are there, without the directory at its end; %s",
                               source_.size(), count == 0 ? "no entry is whole" : "entries that are whole: " + names));
  }

  // Walks the local headers from the start. Sizes may stand behind the data only, after a marker.
  static uint64_t WholeEntries(std::string_view text, std::string* names) {
    constexpr uint64_t kShownMax = 16, kDescriptorBytes = 16;
    uint64_t count = 0;
    for (size_t at = 0; text.size() - at >= kLocalBytes && text.substr(at).starts_with(kLocalMagic); ++count) {
      const uint64_t begin = at + kLocalBytes + Load16(text, at + 26) + Load16(text, at + 28);
      const std::string_view name = text.substr(at + kLocalBytes, Load16(text, at + 26));
      const uint64_t bytes = Load32(text, at + 18);
      if (begin > text.size()) break;
      if (Load16(text, at + 6) & kDescriptorFollows && bytes == 0) {
        const size_t descriptor = text.find(kDescriptorMagic, begin), next = text.find(kLocalMagic, begin);
        if (std::min(descriptor, next) == std::string_view::npos) break;
        at = descriptor < next ? descriptor + kDescriptorBytes : next;
      } else {
        at = begin + bytes;
      }
      if (at > text.size()) break;
      if (count < kShownMax) names->append(count == 0 ? "" : ", ").append(Quoted(name));
      if (count == kShownMax) names->append(", and more");
    }
    return count;
  }

  // ---- the directory ----

  absl::Status ReadDirectory() {
    if (bytes_ > ZipDirectory::kDirectoryBytesMax) {
      return Unsupported(absl::StrFormat("%s: the zip directory has %d bytes, at most %d are read", source_.name(), bytes_,
                                         ZipDirectory::kDirectoryBytesMax));
    }
    if (count_ > bytes_ / kCentralBytes) {
      return Bad(absl::StrFormat("%d entries cannot stand in a directory of %d bytes", count_, bytes_));
    }
    std::string& text = directory_.text_;
    const uint64_t directory_offset = directory_end_ - bytes_;
    NEVE_RETURN_IF_ERROR(source_.ReadText(directory_offset, bytes_, &text));
    directory_.entries_.reserve(count_);
    uint64_t at = 0;
    for (uint64_t i = 0; i < count_; ++i) {
      const uint64_t place = directory_offset + at;
      if (text.size() - at < kCentralBytes || !std::string_view(text).substr(at).starts_with(kCentralMagic)) {
        return Bad(absl::StrFormat("entry %d of %d is missing from the directory at byte %d", i, count_, place));
      }
      const uint64_t name_bytes = Load16(text, at + 28), extra_bytes = Load16(text, at + 30), comment = Load16(text, at + 32);
      if (text.size() - at - kCentralBytes < name_bytes + extra_bytes + comment) {
        return Bad(absl::StrFormat("entry %d reaches past the end of the directory at byte %d", i, place));
      }
      const std::string_view fixed = std::string_view(text).substr(at, kCentralBytes);
      const std::string_view name = std::string_view(text).substr(at + kCentralBytes, name_bytes);
      const std::string_view extra = std::string_view(text).substr(at + kCentralBytes + name_bytes, extra_bytes);
      if (absl::Status status = AddEntry(fixed, name, extra, directory_offset); !status.ok()) {
        return Annotate(status,
                        absl::StrFormat("%s: entry %s of the directory, at byte %d", source_.name(), Quoted(name), place));
      }
      at += kCentralBytes + name_bytes + extra_bytes + comment;
    }
    if (at != text.size()) {
      return Bad(absl::StrFormat("%d bytes follow the last of %d entries of the directory", text.size() - at, count_));
    }
    return absl::OkStatus();
  }

  absl::Status AddEntry(std::string_view fixed, std::string_view name, std::string_view extra, uint64_t directory_offset) {
    const uint16_t flags = Load16(fixed, 8), method = Load16(fixed, 10);
    if (const char* const problem = NameProblem(name)) return Damaged(absl::StrFormat("its name %s", problem));
    if (flags & kEncrypted) return Unsupported("it is encrypted");
    if (method != 0 && method != 8) return Unsupported(absl::StrFormat("compression method %d (only deflate is read)", method));
    Sizes sizes{Load32(fixed, 24), Load32(fixed, 20), Load32(fixed, 42)};
    const std::optional<std::string_view> zip64 = Zip64Field(extra);
    if (!zip64 || !WidenSizes(*zip64, true, &sizes)) return Damaged("its extra fields are malformed");
    if (method == 0 && sizes.bytes != sizes.stored_bytes) {
      return Damaged(absl::StrFormat("it is stored plainly, but %d bytes take %d", sizes.bytes, sizes.stored_bytes));
    }
    if (method == 8 && sizes.bytes / kInflationMax > sizes.stored_bytes) {
      return Damaged(absl::StrFormat("%d deflated bytes cannot hold the %d that it claims", sizes.stored_bytes, sizes.bytes));
    }
    const uint64_t end = directory_offset - before_;  // in the archive's own offsets
    if (sizes.header_offset > end || end - sizes.header_offset < kLocalBytes + name.size() ||
        sizes.stored_bytes > end - sizes.header_offset - kLocalBytes - name.size()) {
      return Damaged(absl::StrFormat("%d bytes from byte %d on reach past the directory at %d", sizes.stored_bytes,
                                     sizes.header_offset + before_, directory_offset));
    }
    const uint64_t header = sizes.header_offset + before_;
    directory_.entries_.push_back({name, header, header + kLocalBytes + name.size(), sizes.stored_bytes, sizes.bytes,
                                   Load32(fixed, 16), method == 8, (flags & kDescriptorFollows) != 0});
    return absl::OkStatus();
  }

  absl::Status CheckNames() {
    std::vector<std::string_view> names;
    names.reserve(directory_.entries_.size());
    for (const ZipEntry& entry : directory_.entries_) names.push_back(entry.name);
    directory_.by_name_ = NameOrder(names);
    const std::vector<uint32_t>& order = directory_.by_name_;
    for (size_t i = 1; i < order.size(); ++i) {
      if (names[order[i]] != names[order[i - 1]]) continue;
      return Bad(absl::StrFormat("two entries are named %s, at byte %d and at byte %d", Quoted(names[order[i]]),
                                 directory_.entries_[order[i - 1]].header_offset, directory_.entries_[order[i]].header_offset));
    }
    return absl::OkStatus();
  }

  // ---- local headers ----

  absl::Status ReadLocalHeaders() {
    std::vector<ZipEntry>& entries = directory_.entries_;
    std::vector<uint32_t> order(entries.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return entries[a].header_offset < entries[b].header_offset; });
    const uint64_t directory_offset = directory_end_ - bytes_;
    for (size_t i = 0; i < order.size(); ++i) {
      ZipEntry& entry = entries[order[i]];
      const uint64_t next = i + 1 < order.size() ? entries[order[i + 1]].header_offset : directory_offset;
      // Before anything of it is read: an archive of overlapping entries can be as large as it likes.
      if (entry.data_offset + entry.stored_bytes > next) return Overlap(entry, entries, order, i);
      if (absl::Status status = ReadLocalHeader(&entry, next); !status.ok()) {
        return Annotate(status,
                        absl::StrFormat("%s: entry %s, at byte %d", source_.name(), Quoted(entry.name), entry.header_offset));
      }
      if (entry.data_offset > next || entry.stored_bytes > next - entry.data_offset) return Overlap(entry, entries, order, i);
    }
    return absl::OkStatus();
  }

  absl::Status Overlap(const ZipEntry& entry, const std::vector<ZipEntry>& entries, const std::vector<uint32_t>& order,
                       size_t i) const {
    const bool last = i + 1 == order.size();
    return Bad(absl::StrFormat("entries overlap: %s, of %d bytes from byte %d on, reaches into %s", Quoted(entry.name),
                               entry.stored_bytes, entry.data_offset,
                               last ? "the directory" : Quoted(entries[order[i + 1]].name)));
  }

  // [offset, offset + bytes) of the file, from a window that also holds what follows soon.
  absl::Status Window(uint64_t offset, uint64_t bytes, uint64_t ahead, std::string_view* text) {
    if (offset < window_offset_ || offset + bytes > window_offset_ + window_.size()) {
      const uint64_t rest = source_.size() - offset;
      NEVE_RETURN_IF_ERROR(source_.ReadText(offset, std::min(rest, std::max(bytes, ahead)), &window_));
      window_offset_ = offset;
    }
    if (window_offset_ + window_.size() - offset < bytes) return Damaged("its local header is cut off");
    *text = std::string_view(window_).substr(offset - window_offset_, bytes);
    return absl::OkStatus();
  }

  absl::Status ReadLocalHeader(ZipEntry* entry, uint64_t next) {
    const uint64_t ahead = next - entry->header_offset <= kWindowBytes / 4 ? kWindowBytes : kHeaderReadBytes;
    std::string_view fixed, names;
    NEVE_RETURN_IF_ERROR(Window(entry->header_offset, kLocalBytes, ahead, &fixed));
    if (!fixed.starts_with(kLocalMagic)) return Damaged("there is no local header");
    const uint16_t flags = Load16(fixed, 6), method = Load16(fixed, 8);
    Sizes sizes{Load32(fixed, 22), Load32(fixed, 18), 0};
    const uint32_t crc = Load32(fixed, 14);
    const uint64_t name_bytes = Load16(fixed, 26), extra_bytes = Load16(fixed, 28);
    NEVE_RETURN_IF_ERROR(Window(entry->header_offset + kLocalBytes, name_bytes + extra_bytes, ahead, &names));
    if (names.substr(0, name_bytes) != entry->name) {
      return Damaged(absl::StrFormat("its local header names it %s", Quoted(names.substr(0, name_bytes))));
    }
    const std::optional<std::string_view> zip64 = Zip64Field(names.substr(name_bytes));
    if (!zip64 || !WidenSizes(*zip64, false, &sizes)) return Damaged("the extra fields of its local header are malformed");
    const bool later = (flags & kDescriptorFollows) != 0;  // crc and sizes may be left 0 and stand after the data
    const auto agrees = [&](uint64_t local, uint64_t listed) { return local == listed || (later && local == 0); };
    if ((method == 8) != entry->deflated || (method != 0 && method != 8) || later != entry->has_descriptor ||
        !agrees(sizes.bytes, entry->bytes) || !agrees(sizes.stored_bytes, entry->stored_bytes) || !agrees(crc, entry->crc)) {
      return Damaged(absl::StrFormat(
          "its local header says method %d, %d bytes stored of %d, crc %08x; the directory says method %d, "
          "%d of %d, crc %08x",
          method, sizes.stored_bytes, sizes.bytes, crc, entry->deflated ? 8 : 0, entry->stored_bytes, entry->bytes, entry->crc));
    }
    entry->data_offset = entry->header_offset + kLocalBytes + name_bytes + extra_bytes;
    return absl::OkStatus();
  }

  const ByteSource& source_;
  const ZipOptions& options_;
  ZipDirectory directory_;
  std::string tail_;
  uint64_t count_ = 0, bytes_ = 0, offset_ = 0;  // of the directory, as the end record says
  uint64_t directory_end_ = 0;                   // in the file
  uint64_t before_ = 0;                          // bytes of the file before the archive
  std::string window_;
  uint64_t window_offset_ = 0;
};

bool ZipDirectory::Looks(std::string_view head) { return head.starts_with(kLocalMagic) || head.starts_with(kEndMagic); }

absl::StatusOr<ZipDirectory> ZipDirectory::Read(const ByteSource& source, const ZipOptions& options) {
  return ZipReader(source, options).Read();
}

const ZipEntry* ZipDirectory::Find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t index, std::string_view wanted) { return entries_[index].name < wanted; });
  return at != by_name_.end() && entries_[*at].name == name ? &entries_[*at] : nullptr;
}

bool ZipDirectory::ForgetAbsentChecksums() {
  const bool any_crc = std::any_of(entries_.begin(), entries_.end(), [](const ZipEntry& entry) { return entry.crc != 0; });
  const bool any_bytes = std::any_of(entries_.begin(), entries_.end(), [](const ZipEntry& entry) { return entry.bytes != 0; });
  if (any_crc || !any_bytes) return false;
  for (ZipEntry& entry : entries_) entry.has_crc = false;
  return true;
}

absl::StatusOr<std::string> ReadZipEntry(const ByteSource& source, const ZipEntry& entry, uint64_t limit) {
  const std::string where = absl::StrFormat("%s: entry %s", source.name(), Quoted(entry.name));
  if (entry.bytes > limit) {
    return Damaged(absl::StrFormat("%s has %d bytes, where at most %d make sense", where, entry.bytes, limit));
  }
  std::string text(entry.bytes, '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text));
  if (entry.deflated) {
    NEVE_RETURN_IF_ERROR(Inflater(source, entry.data_offset, entry.stored_bytes, entry.bytes).Read(0, bytes));
  } else {
    NEVE_RETURN_IF_ERROR(source.Read(entry.data_offset, bytes));
  }
  if (const uint32_t crc = codec::Crc32(0, bytes); entry.has_crc && crc != entry.crc) {
    return DataLoss(absl::StrFormat("%s: its bytes have crc %08x, the directory says %08x", where, crc, entry.crc));
  }
  return text;
}

absl::Status CheckZipDescriptor(const ByteSource& source, const ZipEntry& entry) {
  if (!entry.has_descriptor || entry.bytes == 0) return absl::OkStatus();  // torch writes none for an empty one
  const uint64_t at = entry.data_offset + entry.stored_bytes;
  std::string text;
  NEVE_RETURN_IF_ERROR(source.ReadText(at, std::min<uint64_t>(24, source.size() - at), &text));
  std::string_view rest = text;
  if (rest.starts_with(kDescriptorMagic)) rest.remove_prefix(4);
  const bool narrow = rest.size() >= 12 && Load32(rest, 4) == entry.stored_bytes && Load32(rest, 8) == entry.bytes;
  const bool wide = rest.size() >= 20 && Load64(rest, 4) == entry.stored_bytes && Load64(rest, 12) == entry.bytes;
  if (rest.size() >= 12 && Load32(rest, 0) == entry.crc && (narrow || wide)) return absl::OkStatus();
  return Damaged(absl::StrFormat("%s: the record after entry %s, at byte %d, differs from the directory", source.name(),
                                 Quoted(entry.name), at));
}

}  // namespace neve::format
