// Ways to read elements beside ReadBox of contents.h.
#ifndef NEVE_FORMAT_READ_BOX_H_
#define NEVE_FORMAT_READ_BOX_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/contents.h"

namespace neve::format {

// Elements [first, first + count) of the tensor in row-major order; target takes count x item bytes.
absl::Status ReadElements(const Contents& contents, const LogicalTensor& tensor, uint64_t first, uint64_t count,
                          std::span<std::byte> target);

// Items at strides (in items) of the image, from `image_offset` on. Requires: they lie in the image.
absl::Status ReadStrided(const Contents& contents, uint64_t image_offset, std::span<const int64_t> extents,
                         std::span<const int64_t> strides, uint64_t item_bytes, std::span<std::byte> target);

// Elements [first, first + count) of what is stored of a tensor that is no alias, in the order of its memory.
absl::Status ReadMemoryOrder(const Contents& contents, const LogicalTensor& tensor, uint64_t first, uint64_t count,
                             std::span<std::byte> target);
// Whether that order is the order in the image.
bool LiesAsInMemory(const LogicalTensor& tensor);
// The tensor whose own bytes the entry header().tensors[stored_index] holds; null: it is a hidden base, or a blob.
const LogicalTensor* OwnerOf(const Contents& contents, uint32_t stored_index);

// The extents of what is stored of a tensor that is no alias: 1 where it is expanded.
tensor::Dims StoredExtents(const LogicalTensor& tensor);

}  // namespace neve::format

#endif  // NEVE_FORMAT_READ_BOX_H_
