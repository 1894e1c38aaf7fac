// Image: verified reads of one image from its sources; and single files opened by path.
#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/os/syscalls.h"
#include "engine/contents_reader.h"
#include "engine/global_image.h"
#include "engine/opened_image.h"
#include "format/contents.h"
#include "format/image_header.h"
#include "format/layout.h"
#include "format/names.h"
#include "format/open_contents.h"
#include "format/own_digests.h"
#include "format/tree_walk.h"

namespace neve {
namespace {

class ImageImpl : public RankFile {
 public:
  explicit ImageImpl(ImageParts parts) : parts_(std::move(parts)) {}
  ~ImageImpl() override {
    parts_.sources.clear();
    if (parts_.on_destroy) parts_.on_destroy();
  }

  const SaveInfo& info() const override { return parts_.info; }
  std::string_view header() const override { return parts_.header; }
  uint64_t image_bytes() const override { return parts_.image_bytes; }
  bool has_digests() const override { return parts_.record != nullptr; }
  bool is_global() const override { return false; }
  absl::StatusOr<std::unique_ptr<Image>> Global(const GlobalOptions& options) override {
    if (parts_.global) return parts_.global(options);
    return Unsupported(absl::StrFormat("%s was opened by its path: find the save through its job for the images of all ranks",
                                       parts_.info.job));
  }
  const format::CommitRecord* record() const override { return parts_.own_digests ? nullptr : parts_.record.get(); }
  const format::ImageHeader& parsed() const override { return parsed_; }
  std::span<const format::LogicalTensor> tensors() const override { return tensors_; }
  bool in_memory() const override { return !parts_.sources.empty() && !parts_.sources.front().reader->Mapped().empty(); }
  void UseCrew(std::shared_ptr<sync::Crew> crew) override { parts_.crew = std::move(crew); }
  absl::Status ReadRanges(std::span<const restore::Range> ranges) override { return ReadPlanned(ranges, {}); }

  std::span<const format::GlobalEntry> entries() override {
    sync::MutexLock lock(mutex_);
    if (entries_.empty()) entries_ = engine::EntriesOf(parsed_, tensors_);
    return entries_;
  }
  absl::Status ReadWants(std::span<const restore::BoxWant> wants, std::span<uint8_t> written) override {
    return engine::ReadBoxes(entries(), wants, std::array<uint32_t, 1>{0}, [this](uint32_t, std::span<const restore::Range> ranges) {
      return ReadPlanned(ranges, {});
    }, written);
  }

  absl::Status Read(std::span<const ReadRange> ranges, std::span<uint8_t> written) override {
    if (!written.empty() && written.size() != ranges.size()) return Invalid("`written` needs one byte per range");
    std::vector<restore::Range> plan_ranges(ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      const ReadRange& from = ranges[i];
      if (from.bytes != 0 && from.target == nullptr) return Invalid(absl::StrFormat("range %d has no target", i));
      restore::Range& to = plan_ranges[i];
      to.offset = from.offset;
      to.bytes = from.bytes;
      to.target = static_cast<std::byte*>(from.target);
      to.item_bytes = from.item_bytes == 0 ? 1 : from.item_bytes;
      if (from.rank < 0) continue;
      const std::span shape(from.extents, static_cast<size_t>(from.rank));
      const std::span strides(from.strides, static_cast<size_t>(from.rank));
      NEVE_ASSIGN_OR_RETURN(const tensor::Density density, tensor::Classify(shape, strides));
      if (density == tensor::Density::kExpanded || density == tensor::Density::kOverlapping) {
        return Invalid(absl::StrFormat("range %d: elements of its target share memory", i));
      }
      if (density != tensor::Density::kContiguous) {
        to.strided = std::make_shared<const tensor::StridedCopy>(shape, strides, to.item_bytes);
      }
    }
    return ReadPlanned(plan_ranges, written);
  }

  absl::Status VerifyAll() override {
    if (parts_.record == nullptr) return absl::OkStatus();
    absl::Status worst;
    for (const restore::Source& source : parts_.sources) {
      std::vector<uint64_t> bad;
      NEVE_RETURN_IF_ERROR(restore::VerifyChunks(source, parts_.image_bytes, parts_.record->chunk_bytes, parts_.record->digests,
                                                 *parts_.crew, &bad));
      if (!bad.empty() && worst.ok()) {
        worst = DataLoss(absl::StrFormat("%s: chunk %d (image bytes from %d) differs from its digest (%d chunks in all)",
                                         source.place, bad.front(), bad.front() * parts_.record->chunk_bytes, bad.size()));
      }
    }
    return worst;
  }

  std::map<std::string, uint64_t> Sources() const override {
    sync::MutexLock lock(mutex_);
    std::map<std::string, uint64_t> sources;
    for (const restore::Source& source : parts_.sources) sources[source.name] = 0;
    for (const auto& [name, bytes] : bytes_) sources[name] = bytes;
    return sources;
  }

  absl::Status LoadHeader() {
    uint64_t header_bytes;
    if (parts_.record != nullptr) {
      header_bytes = parts_.record->header_bytes;
    } else {
      std::string first(std::min<uint64_t>(parts_.image_bytes, 512), '\0');
      NEVE_RETURN_IF_ERROR(ReadInto(0, first));
      NEVE_ASSIGN_OR_RETURN(header_bytes, format::HeaderBytesNeeded(first, parts_.image_bytes));
    }
    if (header_bytes > parts_.image_bytes || header_bytes > format::kHeaderBytesMax + 8 + kPageBytes) {
      return Damaged(absl::StrFormat("a header of %d bytes in an image of %d", header_bytes, parts_.image_bytes));
    }
    if (parts_.header.size() != header_bytes) {   // else it was read already, and verified
      parts_.header.resize(header_bytes);
      NEVE_RETURN_IF_ERROR(ReadInto(0, parts_.header));
    }
    NEVE_ASSIGN_OR_RETURN(parsed_, format::ParseImageHeader(parts_.header, parts_.image_bytes));
    // What the tree says must fit what the header says, before anybody allocates by it. A node of a newer neve hides no tensor.
    NEVE_ASSIGN_OR_RETURN(tensors_, format::LogicalTensors(parsed_));
    const absl::Status status = format::WalkTree(parsed_, tensors_, nullptr);
    return status.code() == absl::StatusCode::kUnimplemented ? absl::OkStatus() : status;
  }

 private:
  absl::Status ReadInto(uint64_t offset, std::string& target) {
    const restore::Range range{offset, target.size(), reinterpret_cast<std::byte*>(target.data()), nullptr, 1};
    return ReadPlanned({&range, 1}, {});
  }

  absl::Status ReadPlanned(std::span<const restore::Range> ranges, std::span<uint8_t> written) {
    const uint64_t chunk_bytes = parts_.record != nullptr ? parts_.record->chunk_bytes : kDefaultChunkBytes;
    NEVE_ASSIGN_OR_RETURN(const restore::ReadPlan plan, restore::ReadPlan::Build(ranges, parts_.image_bytes, chunk_bytes));
    const std::span<const codec::Digest> digests =
        parts_.record != nullptr ? std::span<const codec::Digest>(parts_.record->digests) : std::span<const codec::Digest>();
    restore::ReadResult result;
    restore::ReadOptions options;
    options.others = parts_.others;
    // Staging stays within 32 MiB whatever the chunk size of the file.
    options.staging_chunks = static_cast<int>(std::clamp<uint64_t>((32u << 20) / chunk_bytes, 1, 8));
    absl::Status status = restore::ReadChunks(plan, parts_.sources, digests, *parts_.crew, options, written, &result);
    sync::MutexLock lock(mutex_);
    for (const auto& [name, bytes] : result.bytes) {
      bytes_[name] += bytes;
      parts_.metrics->Add(name == "ram" ? obs::Metric::kRamReadBytes : obs::Metric::kFileReadBytes, bytes);
    }
    parts_.metrics->Add(obs::Metric::kChunksFailed, result.chunks_failed);
    parts_.metrics->Add(obs::Metric::kChunksHealed, result.chunks_healed);
    // A file by itself is no save of a job: its place, which the status names, is all there is to say.
    if (status.ok() || parts_.record == nullptr || parts_.own_digests) return status;
    return Annotate(status, absl::StrFormat("step %d (save %s) rank %d of job %s", parts_.info.step, parts_.info.save.ToString(),
                                            parts_.record->key.rank, parts_.info.job));
  }

  ImageParts parts_;
  format::ImageHeader parsed_;
  std::vector<format::LogicalTensor> tensors_;
  mutable sync::Mutex mutex_;
  std::vector<format::GlobalEntry> entries_ NEVE_GUARDED_BY(mutex_);   // made at the first use
  std::map<std::string, uint64_t> bytes_ NEVE_GUARDED_BY(mutex_);
};

// A file opened by path, read where it lies.
class FileReader : public storage::ImageReader {
 public:
  // own: of a file that carries its digests, which were made of other bytes in their own place.
  FileReader(os::File file, format::CommitRecord record, std::optional<format::OwnDigests> own)
      : file_(std::move(file)), record_(std::move(record)), own_(std::move(own)) {}
  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
    const absl::Status status = os::ReadAt(file_, offset, target);
    if (status.ok() && own_.has_value()) own_->Mask(offset, target);
    done(status);
  }

 private:
  os::File file_;
  format::CommitRecord record_;
  std::optional<format::OwnDigests> own_;
};

ImageParts PartsOf(const std::string& path, uint64_t image_bytes, std::shared_ptr<sync::Crew> crew) {
  ImageParts parts;
  parts.image_bytes = image_bytes;
  parts.crew = std::move(crew);
  parts.metrics = std::make_shared<obs::Metrics>();
  parts.info.job = os::BaseName(path);
  parts.info.bytes = image_bytes;
  parts.info.complete = true;
  parts.info.tiers["file"] = {path, image_bytes, true};
  return parts;
}

absl::StatusOr<std::unique_ptr<Image>> OpenForeign(os::File file, std::shared_ptr<sync::Crew> crew) {
  const std::string path = file.path;
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<format::Contents> contents, format::OpenContents(std::move(file)));
  ImageParts parts = PartsOf(path, contents->image_bytes(), std::move(crew));
  restore::Source source;
  source.name = "file";
  source.place = path;
  source.reader = ReaderOf(std::move(contents));
  parts.sources.push_back(std::move(source));
  return MakeImage(std::move(parts));
}

// Whether a file begins as a safetensors file does. What is neither that nor anything else is told by that reader.
absl::StatusOr<bool> BeginsAsImage(const os::File& file, uint64_t bytes) {
  std::string head(std::min<uint64_t>(bytes, 9), '\0');
  NEVE_RETURN_IF_ERROR(os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))));
  return head.size() == 9 && head[8] == '{';
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankFile>> MakeImage(ImageParts parts) {
  auto image = std::make_unique<ImageImpl>(std::move(parts));
  NEVE_RETURN_IF_ERROR(image->LoadHeader());
  return std::unique_ptr<RankFile>(std::move(image));
}

namespace {

// The digests in the header of a single file; none: it has none, or its header is no good, which the reader of it tells.
absl::StatusOr<std::optional<format::OwnDigests>> OwnDigestsOf(const os::File& file, uint64_t bytes) {
  std::string head(std::min<uint64_t>(bytes, 512), '\0');
  NEVE_RETURN_IF_ERROR(os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))));
  const absl::StatusOr<uint64_t> needed = format::HeaderBytesNeeded(head, bytes);
  if (!needed.ok()) return std::nullopt;
  head.resize(*needed);
  NEVE_RETURN_IF_ERROR(os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))));
  return format::ReadOwnDigests(head, bytes);
}

// One that begins as a safetensors file does, with the record beside it where it is an image of a step folder. single: a file by itself,
// which may carry its own digests.
absl::StatusOr<std::unique_ptr<RankFile>> OpenRank(os::File file, uint64_t bytes, std::shared_ptr<sync::Crew> crew, bool single) {
  const std::string path = file.path;
  ImageParts parts = PartsOf(path, bytes, std::move(crew));
  format::CommitRecord record;
  const auto shard = format::ParseShardName(os::BaseName(path));
  if (shard.has_value() && !shard->is_record) {
    const std::string record_path = os::JoinPath(os::DirName(path), format::FormatRecordName(shard->rank, shard->world));
    if (os::Exists(record_path)) {
      NEVE_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(record_path, format::kRecordBytesMax));
      absl::StatusOr<format::CommitRecord> decoded = format::DecodeRecord(text);
      if (!decoded.ok()) return Annotate(decoded.status(), record_path);
      record = *std::move(decoded);
      if (record.image_bytes != parts.image_bytes) {
        return Damaged(absl::StrFormat("%s has %d bytes, its record says %d", path, parts.image_bytes, record.image_bytes));
      }
      parts.record = std::make_shared<const format::CommitRecord>(record);
      parts.info.job = record.job;
      parts.info.uid = record.uid;
      parts.info.step = record.key.step;
      parts.info.save = record.key.save;
      parts.info.world = record.key.world;
      parts.info.time = record.time;
      parts.info.tags = record.tags;
    }
  }
  std::optional<format::OwnDigests> own;
  if (single && parts.record == nullptr) {
    absl::StatusOr<std::optional<format::OwnDigests>> found = OwnDigestsOf(file, bytes);
    if (!found.ok()) return Annotate(found.status(), path);
    own = *std::move(found);
    if (own.has_value()) {
      record = std::move(own->record);
      parts.record = std::make_shared<const format::CommitRecord>(record);
      parts.own_digests = true;
    }
  }
  restore::Source source;
  source.name = "file";
  source.place = path;
  source.reader = std::make_shared<FileReader>(std::move(file), std::move(record), std::move(own));
  parts.sources.push_back(std::move(source));
  absl::StatusOr<std::unique_ptr<RankFile>> image = MakeImage(std::move(parts));
  if (!image.ok()) return Annotate(image.status(), path);
  return image;
}

std::shared_ptr<sync::Crew> OwnCrew() { return sync::Crew::Create(std::min(sync::UsableCores() - 1, 8)); }

}  // namespace

absl::StatusOr<std::unique_ptr<RankFile>> OpenRankFile(const std::string& path, std::shared_ptr<sync::Crew> crew) {
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  NEVE_ASSIGN_OR_RETURN(const struct ::stat stat, os::StatOpen(file));
  if (!S_ISREG(stat.st_mode)) return Unsupported(path + " is not a regular file");
  return OpenRank(std::move(file), static_cast<uint64_t>(stat.st_size), std::move(crew), /*single=*/false);
}

absl::StatusOr<std::unique_ptr<Image>> OpenImageFile(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));   // a pipe is not waited for
  NEVE_ASSIGN_OR_RETURN(const struct ::stat stat, os::StatOpen(file));
  bool is_image = false;
  if (S_ISREG(stat.st_mode)) {
    NEVE_ASSIGN_OR_RETURN(is_image, BeginsAsImage(file, static_cast<uint64_t>(stat.st_size)));
  }
  if (!is_image) return OpenForeign(std::move(file), OwnCrew());   // not by its path, which may be another file's by now
  return OpenRank(std::move(file), static_cast<uint64_t>(stat.st_size), OwnCrew(), /*single=*/true);
}

}  // namespace neve
