#include "format/safetensors_contents.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/layout.h"
#include "format/own_digests.h"
#include "format/verified_contents.h"

namespace neve::format {
namespace {

constexpr uint64_t kFirstBytes = 512;   // enough to tell what a foreign file is

absl::StatusOr<std::string> ReadHead(const os::File& file, uint64_t file_bytes) {
  std::string head(std::min(file_bytes, kFirstBytes), '\0');
  NEVE_RETURN_IF_ERROR(os::ReadAt(file, 0, std::as_writable_bytes(std::span(head))));
  NEVE_ASSIGN_OR_RETURN(const uint64_t needed, HeaderBytesNeeded(head, file_bytes));
  const uint64_t have = std::min<uint64_t>(head.size(), needed);
  head.resize(needed);
  NEVE_RETURN_IF_ERROR(os::ReadAt(file, have, std::as_writable_bytes(std::span(head)).subspan(have)));
  return head;
}

absl::Status Named(const absl::Status& status, const std::string& path) {
  const bool named = std::string(status.message()).find(path) != std::string::npos;
  return named ? status : Annotate(status, path);
}

class SafetensorsContents final : public Contents {
 public:
  static absl::StatusOr<std::unique_ptr<Contents>> Open(os::File file, const ContentsOptions& options) {
    auto contents = std::make_unique<SafetensorsContents>(std::move(file));
    if (const absl::Status status = contents->Load(options); !status.ok()) return Named(status, contents->file_.path);
    std::optional<OwnDigests> own = std::move(contents->own_);
    if (!own.has_value()) return contents;
    absl::StatusOr<std::unique_ptr<Contents>> verified = Verified(std::move(contents), std::move(own->record));
    return verified;
  }
  explicit SafetensorsContents(os::File file) : file_(std::move(file)), files_{file_.path} {}

  ContentsKind kind() const override { return ContentsKind::kSafetensors; }
  std::span<const std::string> files() const override { return files_; }
  std::string_view header_text() const override { return header_text_; }
  const ImageHeader& header() const override { return header_; }
  uint64_t image_bytes() const override { return header_.file_bytes; }
  std::span<const LogicalTensor> tensors() const override { return tensors_; }
  std::span<const OpaqueObject> opaque() const override { return {}; }
  std::span<const std::string> notes() const override { return notes_; }

  std::vector<Extent> Locate(uint64_t offset, uint64_t bytes) const override {
    if (offset > image_bytes() || bytes > image_bytes() - offset || bytes == 0) return {};
    const bool rewritten = header_text_.size() != data_offset_;
    if (rewritten && offset < header_text_.size()) return {};   // that header lies in no file
    return {{offset, bytes, 0, offset - header_text_.size() + data_offset_}};
  }

  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override {
    if (offset > image_bytes() || target.size() > image_bytes() - offset) {
      return Internal(absl::StrFormat("%s: bytes [%d, %d) of an image of %d", file_.path, offset, offset + target.size(),
                                      image_bytes()));
    }
    if (offset < header_text_.size()) {
      const size_t bytes = std::min<uint64_t>(target.size(), header_text_.size() - offset);
      std::memcpy(target.data(), header_text_.data() + offset, bytes);
      target = target.subspan(bytes);
      offset += bytes;
    }
    if (target.empty()) return absl::OkStatus();
    return os::ReadAt(file_, offset - header_text_.size() + data_offset_, target);
  }

  // The format itself has no checksum, and its rules are all about the header, which was checked to open it: what is left is whether
  // the bytes can be read.
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override {
    constexpr uint64_t kPieceBytes = 4u << 20;
    std::vector<std::byte> piece(std::min(kPieceBytes, image_bytes()));
    for (uint64_t offset = 0; offset < image_bytes(); offset += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, image_bytes() - offset);
      const absl::Status status = Read(offset, std::span(piece).first(bytes));
      if (IsDamaged(status)) {   // cut short since it was opened
        problems->push_back({true, 0, offset, "", std::string(status.message())});
        return absl::OkStatus();
      }
      NEVE_RETURN_IF_ERROR(status);
      if (progress) progress(offset + bytes);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Load(const ContentsOptions& options) {
    NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file_));
    if (!S_ISREG(facts.st_mode)) return Unsupported(file_.path + " is not a regular file");
    const uint64_t file_bytes = static_cast<uint64_t>(facts.st_size);
    NEVE_ASSIGN_OR_RETURN(header_text_, ReadHead(file_, file_bytes));
    data_offset_ = header_text_.size();
    NEVE_ASSIGN_OR_RETURN(header_, ParseImageHeader(header_text_, file_bytes, {.lenient = options.lenient, .notes = &notes_}));
    if (notes_.empty()) {
      NEVE_ASSIGN_OR_RETURN(own_, ReadOwnDigests(header_text_, file_bytes));
      // All of the header is read from here, as it was when its digests were made.
      if (own_.has_value()) own_->Mask(0, std::as_writable_bytes(std::span(header_text_)));
    } else {
      NEVE_RETURN_IF_ERROR(Tidy());
    }
    NEVE_ASSIGN_OR_RETURN(tensors_, LogicalTensors(header_));
    return absl::OkStatus();
  }

  // Makes the image one that strict readers accept: it ends with its last tensor, and all metadata is text.
  absl::Status Tidy() {
    uint64_t end = data_offset_;
    for (const HeaderTensor& tensor : header_.tensors) end = std::max(end, tensor.offset + tensor.bytes);
    if (!ParseImageHeader(header_text_, end).ok()) {
      NEVE_ASSIGN_OR_RETURN(header_text_, EncodeImageHeader(header_));
    }
    NEVE_ASSIGN_OR_RETURN(header_, ParseImageHeader(header_text_, header_text_.size() + end - data_offset_));
    return absl::OkStatus();
  }

  os::File file_;
  std::vector<std::string> files_;
  std::string header_text_;
  uint64_t data_offset_ = 0;   // in the file; differs from the header text's size where that was written anew
  ImageHeader header_;
  std::vector<LogicalTensor> tensors_;
  std::vector<std::string> notes_;
  std::optional<OwnDigests> own_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Contents>> OpenSafetensors(os::File file, const ContentsOptions& options) {
  return SafetensorsContents::Open(std::move(file), options);
}

}  // namespace neve::format
