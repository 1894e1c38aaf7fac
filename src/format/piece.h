// Piece: an n-d box of a logical tensor, as one image holds it. The tensor's own shape is the box's extent.
//
// Invariants, of every piece that DescribeState or a reader lets through
//   - global_shape and offset have the rank of the tensor; 0 <= offset, offset + extent <= global_shape in each dimension.
//   - The bytes of the logical tensor do not overflow.
//   - logical_name is a name that a tensor may have.
#ifndef NEVE_FORMAT_PIECE_H_
#define NEVE_FORMAT_PIECE_H_

#include <span>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "neve/dtype.h"
#include "tensor/view.h"

namespace neve::format {

struct Piece {
  tensor::Dims global_shape, offset;
  std::string logical_name;   // "": the tensor's own name
};

// Invalid, with the reason: `shape` (the box's extent, as the tensor counts it) does not lie where the piece says.
absl::Status CheckPiece(std::span<const int64_t> shape, DType dtype, const Piece& piece);

// "[0:4, 8:16]": a box in words.
std::string BoxText(std::span<const int64_t> offset, std::span<const int64_t> extent);

}  // namespace neve::format

#endif  // NEVE_FORMAT_PIECE_H_
