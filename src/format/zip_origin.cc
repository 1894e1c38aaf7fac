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

Backing ZipOrigin::BackingOf(const ZipEntry& entry, uint64_t skip, uint64_t bytes, uint32_t word) {
  const Use use{skip, skip + bytes};
  const auto [known, fresh] = uses_.emplace(&entry, use);
  if (!fresh) known->second = {std::min(known->second.begin, use.begin), std::max(known->second.end, use.end)};
  if (!entry.deflated) return {0, entry.data_offset + skip, word};
  made_.push_back({&entry, skip, word, std::nullopt});
  return {Backing::kMade, made_.size() - 1};
}

Backing ZipOrigin::AddLazyView(const ZipEntry& entry, uint32_t word, LazyView view) {
  made_.push_back({&entry, 0, word, std::move(view)});
  return {Backing::kMade, made_.size() - 1};
}

void ZipOrigin::NameTensor(const ZipEntry& entry, const std::string& tensor) { tensors_.emplace(&entry, tensor); }

std::string_view ZipOrigin::NameOf(const ZipEntry& entry) const {
  const auto named = tensors_.find(&entry);
  return named == tensors_.end() ? entry.name : std::string_view(named->second);
}

std::shared_ptr<const ByteSource> ZipOrigin::Summed() {
  std::vector<SummedRange> ranges;
  for (const auto& [entry, use] : uses_) {
    if (entry->deflated || !entry->has_crc || entry->bytes == 0) continue;
    ranges.push_back({entry->data_offset, entry->bytes, entry->crc, entry->data_offset + use.begin, use.end - use.begin,
                      NameOf(*entry)});
  }
  summed_ = std::make_shared<SummedSource>(source_, std::move(ranges));
  return summed_;
}

absl::Status ZipOrigin::ReadEntry(const ZipEntry& entry, uint64_t offset, std::span<std::byte> target) const {
  if (offset > entry.bytes || target.size() > entry.bytes - offset) {
    return Internal(absl::StrFormat("reading past the end of entry %s", Quoted(entry.name)));
  }
  if (!entry.deflated) {
    const ByteSource& source = summed_ != nullptr ? *summed_ : *source_;
    return source.Read(entry.data_offset + offset, target);
  }
  sync::MutexLock lock(mutex_);
  std::unique_ptr<Inflater>& inflater = inflaters_[&entry];
  if (inflater == nullptr) {
    inflater = std::make_unique<Inflater>(*source_, entry.data_offset, entry.stored_bytes, entry.bytes);
  }
  const absl::Status status = InflateEntry(entry, inflater.get(), offset, target);
  bool& whole = inflated_[&entry];
  whole = whole || (status.ok() && inflater->position() == entry.bytes);
  if (inflaters_.size() > kInflatersMax) {
    inflaters_.erase(inflaters_.begin()->first == &entry ? std::next(inflaters_.begin()) : inflaters_.begin());
  }
  return status;
}

// Goes on to the end from where nothing more is used: the checksum is that of all.
absl::Status ZipOrigin::InflateEntry(const ZipEntry& entry, Inflater* inflater, uint64_t offset, std::span<std::byte> target) const {
  NEVE_RETURN_IF_ERROR(inflater->Read(offset, target));
  const auto use = uses_.find(&entry);
  if (use != uses_.end() && offset + target.size() >= use->second.end) NEVE_RETURN_IF_ERROR(inflater->Read(entry.bytes, {}));
  if (!entry.has_crc || inflater->position() != entry.bytes || inflater->crc() == entry.crc) return absl::OkStatus();
  return DataLoss(absl::StrFormat("%s: the bytes of tensor %s differ from their checksum (CRC-32 %08x wanted)", source_->name(),
                                  Quoted(NameOf(entry)), entry.crc));
}

absl::Status ZipOrigin::CheckRead() const {
  if (summed_ != nullptr) NEVE_RETURN_IF_ERROR(summed_->CheckRead());
  std::vector<const ZipEntry*> rest;
  {
    sync::MutexLock lock(mutex_);
    for (const auto& [entry, whole] : inflated_) {
      if (!whole) rest.push_back(entry);
    }
  }
  for (const ZipEntry* const entry : rest) {
    Inflater inflater(*source_, entry->data_offset, entry->stored_bytes, entry->bytes);
    NEVE_RETURN_IF_ERROR(InflateEntry(*entry, &inflater, entry->bytes, {}));
  }
  return absl::OkStatus();
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
    if (whole && entry.has_crc && crc != entry.crc) {
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
