// The images of all ranks of one save, as files, presented as one: each logical tensor stands once, whole; what is equal on all ranks
// once; what differs by rank, as `place.@0`, `place.@1` (format/global_image.h). What shows, measures, compares or converts a
// checkpoint reads a save of many ranks through this.
//
// Invariants
//   - Opening reads headers, and of plain tensors what it takes to know whether they are equal (global_compare.h).
//   - Every byte read is checked against the digest of its chunk, where there is a record; each chunk once. Of replicas one is read, the
//     next where bytes of that one are bad.
//   - Memory: the headers, and 4 MiB a reading thread.
#ifndef NEVE_ENGINE_GLOBAL_CONTENTS_H_
#define NEVE_ENGINE_GLOBAL_CONTENTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/linear_bytes.h"
#include "format/contents.h"
#include "format/global_image.h"

namespace neve::engine {

class GlobalContents final : public format::Contents {
 public:
  struct Rank {
    uint32_t rank;
    std::unique_ptr<format::Contents> contents;   // of one image file; verified by its record where it has one
  };
  // ranks: ascending. Damaged: pieces contradict each other, or leave a gap (names tensor, ranks and boxes). Unsupported: states of
  // which one is a flat set of tensors. Otherwise as opening and reading the files says.
  static absl::StatusOr<std::unique_ptr<GlobalContents>> Open(std::vector<Rank> ranks);

  // Of an entry of the header: how many boxes it is made of, and on which ranks they are.
  uint64_t BoxesOf(size_t entry) const { return global_.entries[entry].boxes.size(); }
  std::vector<uint32_t> RanksOf(size_t entry) const;
  std::span<const std::string> by_rank() const { return global_.by_rank; }   // places that differ between ranks

  format::ContentsKind kind() const override { return format::ContentsKind::kSafetensors; }
  std::span<const std::string> files() const override { return files_; }     // by rank
  std::string_view header_text() const override { return global_.header_text; }
  const format::ImageHeader& header() const override { return global_.header; }
  uint64_t image_bytes() const override { return global_.header.file_bytes; }
  std::span<const format::LogicalTensor> tensors() const override { return global_.tensors; }
  std::span<const format::OpaqueObject> opaque() const override { return {}; }
  std::span<const std::string> notes() const override { return {}; }
  std::vector<format::Extent> Locate(uint64_t offset, uint64_t bytes) const override;
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override;
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<format::ContentsProblem>* problems) const override;
  absl::Status CheckRead() const override;

 private:
  GlobalContents(std::vector<Rank> ranks, format::GlobalImage global);
  absl::Status ReadWants(std::span<const restore::BoxWant> wants) const;
  absl::Status ReadRange(const format::Contents& contents, const restore::Range& range) const;

  const std::vector<Rank> ranks_;
  const format::GlobalImage global_;
  const LinearBytes linear_{&global_};
  std::vector<std::string> files_;
  std::vector<uint32_t> distances_;               // of each image: all are as near
};

}  // namespace neve::engine

#endif  // NEVE_ENGINE_GLOBAL_CONTENTS_H_
