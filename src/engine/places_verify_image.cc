#include "engine/places_verify_image.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "base/sync/mutex.h"
#include "engine/places_folder.h"
#include "format/image_header.h"
#include "format/layout.h"
#include "format/tree_walk.h"
#include "format/values.h"

namespace neve::engine {
namespace {

constexpr uint64_t kPieceBytes = 4u << 20;   // read at once by each thread, whatever the chunk size
constexpr uint64_t kValueBlobMax = 64u << 20;   // a value of more bytes is not looked into

// Which tensor holds a byte of the image.
class TensorMap {
 public:
  explicit TensorMap(const format::ImageHeader& header) : header_bytes_(header.header_bytes) {
    for (const format::HeaderTensor& tensor : header.tensors) {
      if (tensor.bytes > 0) ranges_.push_back({tensor.offset, tensor.offset + tensor.bytes, &tensor.name});
    }
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  }
  // The first tensor with bytes in [begin, end), and how many more there are; null when there is none.
  const std::string* FirstIn(uint64_t begin, uint64_t end, uint64_t* more) const {
    auto first = std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.end <= begin; });
    auto last = std::partition_point(first, ranges_.end(), [&](const Range& r) { return r.begin < end; });
    *more = first == last ? 0 : static_cast<uint64_t>(last - first) - 1;
    return first == last ? nullptr : first->name;
  }
  uint64_t header_bytes() const { return header_bytes_; }

 private:
  struct Range {
    uint64_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges_;
  uint64_t header_bytes_;
};

struct ChunkResult {
  codec::Digest digest;
  bool zeros = true;
};

bool AllZeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The digest of one chunk, read in pieces so that a large chunk size in a record cannot ask for memory.
absl::StatusOr<ChunkResult> DigestChunk(const ReadBytes& read, uint64_t begin, uint64_t bytes, std::span<std::byte> piece) {
  ChunkResult result;
  if (bytes <= piece.size()) {
    NEVE_RETURN_IF_ERROR(read(begin, piece.first(bytes)));
    result.digest = codec::DigestOf(piece.first(bytes));
    result.zeros = AllZeros(piece.first(std::min<uint64_t>(bytes, 64))) && AllZeros(piece.first(bytes));
    return result;
  }
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) return Exhausted("no memory for a digest");
  XXH3_128bits_reset(state.get());
  for (uint64_t done = 0; done < bytes;) {
    const std::span<std::byte> part = piece.first(std::min<uint64_t>(piece.size(), bytes - done));
    NEVE_RETURN_IF_ERROR(read(begin + done, part));
    XXH3_128bits_update(state.get(), part.data(), part.size());
    result.zeros = result.zeros && AllZeros(part);
    done += part.size();
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  result.digest = codec::Digest{hash.low64, hash.high64};
  return result;
}

class ImageVerifier {
 public:
  ImageVerifier(const ImageToVerify& image, sync::Crew* crew, const Advance& advance, VerifyReport* report)
      : image_(image), crew_(crew), advance_(advance), report_(report) {}

  absl::Status Run() {
    const bool whole = !image_.record.has_value() || CheckAgainstRecord();
    NEVE_RETURN_IF_ERROR(CheckHeader());
    if (image_.record.has_value() && whole) CheckDigests();
    if (!newer_.ok() && !header_differs_) {   // nothing else is known to be wrong with it
      report_->worst = Worse(report_->worst, newer_);
      AddProblem(report_, Problem{"kind", image_.place, image_.file, "", -1, -1, std::string(newer_.message())}, false);
    }
    return absl::OkStatus();
  }

 private:
  void Structural(std::string code, std::string message, std::string tensor = "", int64_t offset = -1) {
    AddProblem(report_, Problem{std::move(code), image_.place, image_.file, std::move(tensor), -1, offset, std::move(message)},
               /*structural=*/true);
  }

  // Whether the size is the one that the record's digests cover.
  bool CheckAgainstRecord() {
    const uint64_t said = image_.record->image_bytes;
    if (image_.bytes < said) {
      size_reported_ = true;
      Structural("truncated", absl::StrFormat("%d bytes expected by the record, %d found", said, image_.bytes), "",
                 static_cast<int64_t>(image_.bytes));
    } else if (image_.bytes > said) {
      size_reported_ = true;
      Structural("trailing", absl::StrFormat("the record knows %d bytes, %d found", said, image_.bytes), "",
                 static_cast<int64_t>(said));
    }
    return image_.bytes == said;
  }

  void Unreadable(const absl::Status& status, int64_t offset) {
    report_->worst = Worse(report_->worst, status);
    AddProblem(report_, Problem{"io", image_.place, image_.file, "", -1, offset, std::string(status.message())}, false);
  }

  absl::Status CheckHeader() {
    std::vector<std::byte> head(std::min<uint64_t>(image_.bytes, 512));   // enough to tell what a foreign file is
    if (absl::Status status = image_.read(0, head); !status.ok()) {
      Unreadable(status, 0);
      return absl::OkStatus();
    }
    const auto text = [&head] { return std::string_view(reinterpret_cast<const char*>(head.data()), head.size()); };
    const absl::StatusOr<uint64_t> needed = format::HeaderBytesNeeded(text(), image_.bytes);
    if (!needed.ok()) return HeaderRefused(needed.status(), EndsInHeader(text()) ? "truncated" : "header");
    const uint64_t have = std::min<uint64_t>(head.size(), *needed);
    head.resize(*needed);
    if (absl::Status status = image_.read(have, std::span(head).subspan(have)); !status.ok()) {
      Unreadable(status, 0);
      return absl::OkStatus();
    }
    absl::StatusOr<format::ImageHeader> header = format::ParseImageHeader(text(), image_.bytes);
    if (!header.ok()) {
      if (ExplainBySize(text())) return absl::OkStatus();
      return HeaderRefused(header.status());
    }
    header_ = *std::move(header);
    if (image_.record.has_value() && image_.record->header_bytes != header_->header_bytes) {
      Structural("identity", absl::StrFormat("its header has %d bytes, the record says %d", header_->header_bytes,
                                             image_.record->header_bytes));
    }
    CheckTree();
    if (!image_.record.has_value()) report_->checked_bytes += header_->header_bytes;
    return absl::OkStatus();
  }

  // The rules of what neve wrote into the header, and of the blobs that it speaks of.
  void CheckTree() {
    const absl::Status status = format::CheckTree(*header_);
    if (status.code() == absl::StatusCode::kUnimplemented) {
      newer_ = status;   // unless its digest says that these bytes are not those that were written
    } else if (!status.ok()) {
      Structural("tree", std::string(status.message()));
    }
    if (header_->FindMetadata(format::kTreeKey) == nullptr) return;
    for (const format::HeaderTensor& tensor : header_->tensors) {
      if (format::IsBlobName(tensor.name)) CheckBlob(tensor);
    }
  }

  void CheckBlob(const format::HeaderTensor& blob) {
    std::vector<std::byte> head(format::kBlobPrefixBytes + 1);   // the length, and what follows it
    if (blob.bytes < head.size()) return Structural("blob", blob.name + " has no payload", blob.name, At(blob));
    if (absl::Status status = image_.read(blob.offset, head); !status.ok()) return Unreadable(status, At(blob));
    uint64_t length = 0;
    for (size_t i = format::kBlobPrefixBytes; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(head[i]);
    if (length < 1 || length > blob.bytes - format::kBlobPrefixBytes) {
      return Structural("blob", absl::StrFormat("%s says that it holds %d bytes of %d", blob.name, length,
                                                blob.bytes - format::kBlobPrefixBytes), blob.name, At(blob));
    }
    const char kind = static_cast<char>(head.back());
    if (std::string_view("vysp").find(kind) == std::string_view::npos) {
      return Structural("blob", absl::StrFormat("%s is of the unknown kind 0x%02x", blob.name, static_cast<unsigned char>(kind)),
                        blob.name, At(blob));
    }
    if (kind != 'v' || length > kValueBlobMax) return;
    std::string value(length - 1, '\0');
    if (absl::Status status = image_.read(blob.offset + head.size(), std::as_writable_bytes(std::span(value))); !status.ok()) {
      return Unreadable(status, At(blob));
    }
    format::ValuesReader reader(value);
    absl::Status status = reader.Skip();
    if (status.ok() && !reader.AtEnd()) status = Damaged("something follows its value");
    if (!status.ok()) Structural("blob", blob.name + ": " + std::string(status.message()), blob.name, At(blob));
  }

  static int64_t At(const format::HeaderTensor& tensor) { return static_cast<int64_t>(tensor.offset); }

  // Whether the file ends before the header that its first bytes announce.
  bool EndsInHeader(std::string_view head) const {
    if (head.size() < sizeof(uint64_t)) return true;
    uint64_t header_bytes = 0;
    for (size_t i = 0; i < sizeof(uint64_t); ++i) header_bytes |= uint64_t{static_cast<unsigned char>(head[i])} << (8 * i);
    return header_bytes <= format::kHeaderBytesMax && header_bytes > image_.bytes - sizeof(uint64_t);
  }

  absl::Status HeaderRefused(const absl::Status& status, const char* code = "header") {
    if (size_reported_) return absl::OkStatus();   // the same thing once more
    if (!image_.record.has_value() && status.code() == absl::StatusCode::kUnimplemented) return status;
    Structural(code, std::string(status.message()), "", 0);
    return absl::OkStatus();
  }

  // Whether the header is sound and only the size of the file is not what it says.
  bool ExplainBySize(std::string_view head) {
    constexpr uint64_t kBoundless = uint64_t{1} << 62;
    std::vector<std::string> notes;
    const absl::StatusOr<format::ImageHeader> header =
        format::ParseImageHeader(head, kBoundless, format::HeaderOptions{.lenient = true, .notes = &notes});
    if (!header.ok()) return false;
    uint64_t end = header->header_bytes;
    const format::HeaderTensor* first = nullptr;
    for (const format::HeaderTensor& tensor : header->tensors) {
      end = std::max(end, tensor.offset + tensor.bytes);
      if (tensor.offset + tensor.bytes > image_.bytes && (first == nullptr || tensor.offset < first->offset)) first = &tensor;
    }
    if (end == image_.bytes) return false;
    if (size_reported_) {   // the record said it first; the header knows what it hits
      Problem& said = report_->problems.back();
      if (first == nullptr || said.code != "truncated") return true;
      said.tensor = first->name;
      said.message += "; the first tensor affected is " + first->name;
      return true;
    }
    if (first != nullptr) {
      Structural("truncated", absl::StrFormat("%d bytes expected by the header, %d found; the first tensor affected is %s", end,
                                              image_.bytes, first->name),
                 first->name, static_cast<int64_t>(image_.bytes));
    } else {
      Structural("trailing", absl::StrFormat("the last tensor ends at byte %d, the file at %d", end, image_.bytes), "",
                 static_cast<int64_t>(end));
    }
    return true;
  }

  void CheckDigests() {
    const format::CommitRecord& record = *image_.record;
    if (!header_.has_value()) header_.emplace();   // refused: no tensor is known by name; the map borrows the names
    const TensorMap map(*header_);
    const uint64_t buffer_bytes = std::min(kPieceBytes, record.chunk_bytes);
    std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(crew_->threads()));
    sync::Mutex mutex;
    std::vector<Problem> problems;
    absl::Status unreadable;
    uint64_t checked = 0;
    auto check = [&](uint64_t chunk, int worker) {
      std::vector<std::byte>& buffer = buffers[static_cast<size_t>(worker)];
      buffer.resize(buffer_bytes);
      const uint64_t begin = chunk * record.chunk_bytes, bytes = record.ChunkBytesAt(chunk);
      const absl::StatusOr<ChunkResult> found = DigestChunk(image_.read, begin, bytes, buffer);
      if (advance_) advance_(bytes);
      sync::MutexLock lock(mutex);
      if (!found.ok()) {
        unreadable = Worse(unreadable, found.status());
        problems.push_back(At("io", chunk, begin, bytes, map, std::string(found.status().message())));
        return;
      }
      checked += bytes;
      if (found->digest == record.digests[chunk]) return;
      header_differs_ = header_differs_ || begin < record.header_bytes;
      problems.push_back(At("digest", chunk, begin, bytes, map,
                            absl::StrFormat("%s: the record says %s, the bytes give %s",
                                            found->zeros ? "zeros in place of data" : "the bytes are not those that were saved",
                                            record.digests[chunk].ToHex(), found->digest.ToHex())));
    };
    crew_->Run(record.chunk_count(), check);
    report_->checked_bytes += checked;
    report_->worst = Worse(report_->worst, unreadable);
    std::sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) { return a.chunk < b.chunk; });
    for (Problem& problem : problems) AddProblem(report_, std::move(problem), /*structural=*/false);
  }

  Problem At(std::string code, uint64_t chunk, uint64_t begin, uint64_t bytes, const TensorMap& map, std::string message) const {
    uint64_t more = 0;
    const std::string* tensor = map.FirstIn(begin, begin + bytes, &more);
    std::string what = std::move(message);
    if (begin < map.header_bytes()) what += "; the header lies here";
    if (more > 0) what += absl::StrFormat("; %d more tensor%s here", more, more == 1 ? "" : "s");
    return Problem{std::move(code), image_.place, image_.file, tensor == nullptr ? "" : *tensor, static_cast<int64_t>(chunk),
                   static_cast<int64_t>(begin), std::move(what)};
  }

  const ImageToVerify& image_;
  sync::Crew* crew_;
  const Advance& advance_;
  VerifyReport* report_;
  std::optional<format::ImageHeader> header_;
  bool size_reported_ = false;
  absl::Status newer_;            // of what only a newer neve reads
  bool header_differs_ = false;   // from its digests
};

}  // namespace

absl::Status VerifyImage(const ImageToVerify& image, sync::Crew* crew, const Advance& advance, VerifyReport* report) {
  return ImageVerifier(image, crew, advance, report).Run();
}

void AddProblem(VerifyReport* report, Problem problem, bool structural) {
  report->ok = false;
  report->structural = report->structural || structural;
  report->problems.push_back(std::move(problem));
}

}  // namespace neve::engine
