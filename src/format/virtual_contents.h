// A virtual image, made: a header in memory and a table of where its data comes from. Internal to the readers.
#ifndef NEVE_FORMAT_VIRTUAL_CONTENTS_H_
#define NEVE_FORMAT_VIRTUAL_CONTENTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "format/virtual_image.h"

namespace neve::format {

struct PlacedBytes {
  uint64_t image_offset;  // while it is being made: within the data
  uint64_t bytes;         // more than 0
  Backing backing;
};

struct VirtualParts {
  ContentsKind kind;
  std::vector<std::string> files;
  Sources sources;
  std::shared_ptr<const Origin> origin;
  std::string header_text;
  uint64_t data_bytes;
  std::vector<PlacedBytes> placed;  // ascending; they cover the data
  std::vector<std::string> memory;
  std::vector<OpaqueObject> opaque;
  std::vector<std::string> notes;
};

class VirtualContents final : public Contents {
 public:
  static absl::StatusOr<std::unique_ptr<Contents>> Make(VirtualParts parts);

  ContentsKind kind() const override { return parts_.kind; }
  std::span<const std::string> files() const override { return parts_.files; }
  std::string_view header_text() const override { return parts_.header_text; }
  const ImageHeader& header() const override { return header_; }
  uint64_t image_bytes() const override { return header_.file_bytes; }
  std::span<const LogicalTensor> tensors() const override { return tensors_; }
  std::span<const OpaqueObject> opaque() const override { return parts_.opaque; }
  std::span<const std::string> notes() const override { return parts_.notes; }
  std::vector<Extent> Locate(uint64_t offset, uint64_t bytes) const override;
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override;
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override;
  absl::Status CheckRead() const override { return parts_.origin->CheckRead(); }

 private:
  struct Piece;
  explicit VirtualContents(VirtualParts parts) : parts_(std::move(parts)) {}
  size_t FirstPlaced(uint64_t offset) const;
  absl::Status ReadFiles(std::vector<Piece>* pieces) const;

  VirtualParts parts_;
  ImageHeader header_;
  std::vector<LogicalTensor> tensors_;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_VIRTUAL_CONTENTS_H_
