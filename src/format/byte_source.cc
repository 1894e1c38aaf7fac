#include "format/byte_source.h"

#include <fcntl.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace neve::format {
namespace {

absl::Status PastEnd(const ByteSource& source, uint64_t offset, uint64_t bytes) {
  return Damaged(
      absl::StrFormat("%s: %d bytes wanted at byte %d, the file ends at %d", source.name(), bytes, offset, source.size()));
}

bool Fits(const ByteSource& source, uint64_t offset, uint64_t bytes) {
  return offset <= source.size() && bytes <= source.size() - offset;
}

class FileSource final : public ByteSource {
 public:
  FileSource(os::File file, uint64_t size) : file_(std::move(file)), size_(size) {}
  uint64_t size() const override { return size_; }
  const std::string& name() const override { return file_.path; }
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override {
    if (!Fits(*this, offset, target.size())) return PastEnd(*this, offset, target.size());
    return target.empty() ? absl::OkStatus() : os::ReadAt(file_, offset, target);
  }

 private:
  os::File file_;
  uint64_t size_;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string bytes, std::string name) : bytes_(std::move(bytes)), name_(std::move(name)) {}
  uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override {
    if (!Fits(*this, offset, target.size())) return PastEnd(*this, offset, target.size());
    if (!target.empty()) std::memcpy(target.data(), bytes_.data() + offset, target.size());
    return absl::OkStatus();
  }

 private:
  std::string bytes_, name_;
};

}  // namespace

absl::Status ByteSource::ReadText(uint64_t offset, uint64_t bytes, std::string* text) const {
  if (!Fits(*this, offset, bytes)) return PastEnd(*this, offset, bytes);  // before anything is allocated
  text->resize(bytes);
  return Read(offset, std::as_writable_bytes(std::span(*text)));
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFileSource(const std::string& path) {
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  return MakeFileSource(std::move(file));
}

absl::StatusOr<std::unique_ptr<ByteSource>> MakeFileSource(os::File file) {
  NEVE_ASSIGN_OR_RETURN(const struct ::stat facts, os::StatOpen(file));
  if (!S_ISREG(facts.st_mode)) return Unsupported(file.path + " is not a regular file");
  return std::unique_ptr<ByteSource>(new FileSource(std::move(file), static_cast<uint64_t>(facts.st_size)));
}

std::unique_ptr<ByteSource> MakeMemorySource(std::string bytes, std::string name) {
  return std::make_unique<MemorySource>(std::move(bytes), std::move(name));
}

}  // namespace neve::format
