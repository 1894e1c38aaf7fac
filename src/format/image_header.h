// Reads the header of a safetensors file, ours or anybody's. Never trusts a size, allocates nothing before checking,
// refuses what the reference refuses and says why. Fuzzed.
//
// Refused (Damaged unless said): fewer than 8 bytes (Unsupported); a header length over 100,000,000 or past the file (one that is
// something else, such as a Git LFS pointer, HTML, zip, gzip, zstd, is Unsupported and says what it is); JSON that does not
// begin with '{', is not valid UTF-8 or JSON, is padded with anything but spaces, or has lone surrogates; duplicate names at
// any level (with both byte positions); metadata values that are not strings; a missing or unknown dtype; negative,
// fractional or overflowing numbers; begin > end; end past the data; size that does not match dtype and shape; F4 with an odd
// last extent; holes, overlaps, a first tensor not at 0; bytes after the last tensor (a shorter file names the first
// tensor affected, bytes expected and found).
#ifndef NEVE_FORMAT_IMAGE_HEADER_H_
#define NEVE_FORMAT_IMAGE_HEADER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error/status.h"
#include "format/piece.h"
#include "neve/dtype.h"
#include "tensor/view.h"

namespace neve::format {

struct HeaderTensor {
  std::string name;
  DType dtype;           // as the header says; F4's shape counts values there and in `shape`
  tensor::Dims shape;
  uint64_t offset;       // in the file
  uint64_t bytes;
};

struct ImageHeader {
  uint64_t header_bytes = 0;   // 8 + JSON; where data begins
  uint64_t file_bytes = 0;
  std::vector<HeaderTensor> tensors;   // in header order
  std::vector<std::pair<std::string, std::string>> metadata;   // in header order

  const std::string* FindMetadata(std::string_view key) const;
  const HeaderTensor* Find(std::string_view name) const;   // linear
};

struct HeaderOptions {
  bool lenient = false;   // metadata numbers become text; trailing bytes are allowed; both are listed in `notes`
  std::vector<std::string>* notes = nullptr;
};

// How many bytes of the file ParseImageHeader needs: reads the first 8 bytes (fewer when the file is shorter).
absl::StatusOr<uint64_t> HeaderBytesNeeded(std::string_view first_bytes, uint64_t file_bytes);
// `head` holds at least HeaderBytesNeeded bytes.
absl::StatusOr<ImageHeader> ParseImageHeader(std::string_view head, uint64_t file_bytes, const HeaderOptions& options = {});

// The text of such a header: 8 bytes of length and the JSON, padded so that data begins at a multiple of 4096. Tensors lie
// where they do, counted from header.header_bytes; names, metadata and tensors stand in the header's order. Exhausted: over
// the limit, by number.
absl::StatusOr<std::string> EncodeImageHeader(const ImageHeader& header);

// What a file is that is not safetensors, by its first bytes: "a Git LFS pointer (object sha256:..., 123 bytes)",
// "an HTML page", "a zip archive (a .pt file?)", "a zstd stream", "a pickle", "empty", "all zeros"; else "".
std::string GuessKind(std::string_view first_bytes, uint64_t file_bytes);

// ---- neve's own metadata ----

// A tensor as the user sees it: stored tensors that are not hidden, and aliases, in tree order.
struct LogicalTensor {
  std::string name;
  DType dtype;                  // true dtype
  tensor::Dims shape, strides;  // logical, in elements
  std::string stored;           // header name of the bytes: its own, or its base's
  uint64_t byte_offset = 0;     // alias: bytes from the start of the base's memory (the base with its own strides)
  bool alias = false;
  uint32_t stored_index = 0;    // of that entry in header.tensors
  std::shared_ptr<const Piece> piece = nullptr;   // null: the whole tensor is here; never of an alias

  // The name of the tensor that it is, or is a piece of.
  const std::string& logical_name() const {
    return piece == nullptr || piece->logical_name.empty() ? name : piece->logical_name;
  }
};
// From the header alone; for a foreign safetensors file each entry is one contiguous tensor. Damaged when the tree
// contradicts the header.
absl::StatusOr<std::vector<LogicalTensor>> LogicalTensors(const ImageHeader& header);

}  // namespace neve::format

#endif  // NEVE_FORMAT_IMAGE_HEADER_H_
