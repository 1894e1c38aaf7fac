#include "format/zip_origin.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

constexpr size_t kInflatersMax = 8;
constexpr uint64_t kCheckBytes = 1u << 20;  // stays in the cache between the read and the checksum

}  // namespace

Backing ZipOrigin::BackingOf(const ZipEntry& entry, uint64_t skip, uint32_t word) {
  if (!entry.deflated) return {0, entry.data_offset + skip, word};
  made_.push_back({&entry, skip, word, std::nullopt});
  return {Backing::kMade, made_.size() - 1};
}

Backing ZipOrigin::AddLazyView(const ZipEntry& entry, uint32_t word, LazyView view) {
  made_.push_back({&entry, 0, word, std::move(view)});
  return {Backing::kMade, made_.size() - 1};
}

void ZipOrigin::NameTensor(const ZipEntry& entry, const std::string& tensor) { tensors_.emplace(&entry, tensor); }

absl::Status ZipOrigin::ReadEntry(const ZipEntry& entry, uint64_t offset, std::span<std::byte> target) const {
  if (offset > entry.bytes || target.size() > entry.bytes - offset) {
    return Internal(absl::StrFormat("reading past the end of entry %s", Quoted(entry.name)));
  }
  if (!entry.deflated) return source_->Read(entry.data_offset + offset, target);
  sync::MutexLock lock(mutex_);
  std::unique_ptr<Inflater>& inflater = inflaters_[&entry];
  if (inflater == nullptr) {
    inflater = std::make_unique<Inflater>(*source_, entry.data_offset, entry.stored_bytes, entry.bytes);
  }
  absl::Status status = inflater->Read(offset, target);
  if (inflaters_.size() > kInflatersMax) {
    inflaters_.erase(inflaters_.begin()->first == &entry ? std::next(inflaters_.begin()) : inflaters_.begin());
  }
  return status;
}

absl::Status ZipOrigin::ReadMade(uint64_t number, uint64_t offset, std::span<std::byte> target) const {
  const Made& made = made_[number];
  const ReadBytes plain = [&](uint64_t at, std::span<std::byte> to) { return ReadEntry(*made.entry, made.skip + at, to); };
  const ReadBytes swapped = [&](uint64_t at, std::span<std::byte> to) { return ReadSwapped(plain, made.word, at, to); };
  return made.view ? ReadLazyView(swapped, *made.view, offset, target) : swapped(offset, target);
}

absl::Status ZipOrigin::Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const {
  problems->insert(problems->end(), known_.begin(), known_.end());
  std::vector<std::byte> block(kCheckBytes);
  uint64_t done = 0;
  for (const ZipEntry& entry : directory_.entries()) {
    const auto named = tensors_.find(&entry);
    const auto report = [&](bool structural, std::string message) {
      problems->push_back({structural, 0, entry.data_offset, named == tensors_.end() ? "" : named->second, std::move(message)});
    };
    Inflater inflater(*source_, entry.data_offset, entry.stored_bytes, entry.bytes);
    uint32_t crc = 0;
    bool whole = true;
    for (uint64_t at = 0; at < entry.bytes; at += kCheckBytes) {
      const std::span<std::byte> part = std::span(block).first(std::min(kCheckBytes, entry.bytes - at));
      const absl::Status status = entry.deflated ? inflater.Read(at, part) : source_->Read(entry.data_offset + at, part);
      if (IsDamaged(status)) {
        report(true, absl::StrFormat("entry %s: %s", Quoted(entry.name), std::string(status.message())));
        whole = false;
        break;
      }
      NEVE_RETURN_IF_ERROR(status);
      crc = codec::Crc32(crc, part);
      if (progress) progress(done + at + part.size());
    }
    done += entry.bytes;
    if (whole && crc != entry.crc) {
      report(false,
             absl::StrFormat("entry %s: its bytes have crc %08x, the directory says %08x", Quoted(entry.name), crc, entry.crc));
    }
    if (absl::Status status = CheckZipDescriptor(*source_, entry); IsDamaged(status)) {
      report(true, std::string(status.message()));
    } else {
      NEVE_RETURN_IF_ERROR(status);
    }
  }
  return absl::OkStatus();
}

}  // namespace neve::format
