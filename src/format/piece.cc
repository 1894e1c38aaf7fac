#include "format/piece.h"

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/json_text.h"
#include "format/layout.h"

namespace neve::format {

absl::Status CheckPiece(std::span<const int64_t> shape, DType dtype, const Piece& piece) {
  const size_t rank = shape.size();
  if (piece.global_shape.size() != rank || piece.offset.size() != rank) {
    return Invalid(absl::StrFormat("the piece has %d dimensions, its global shape %d and its offset %d", rank,
                                   piece.global_shape.size(), piece.offset.size()));
  }
  for (size_t i = 0; i < rank; ++i) {
    const int64_t extent = shape[i], offset = piece.offset[i], global = piece.global_shape[i];
    if (extent < 0 || offset < 0 || global < 0 || offset > global || extent > global - offset) {
      return Invalid(absl::StrFormat("the piece %s does not lie in its global shape %s: dimension %d", BoxText(piece.offset, shape),
                                     BoxText(tensor::Dims(rank, 0), piece.global_shape), i));
    }
  }
  constexpr uint64_t kGlobalBytesMax = uint64_t{1} << 62;
  const absl::StatusOr<uint64_t> elements = tensor::ElementCount(piece.global_shape);
  if (!elements.ok() || *elements > kGlobalBytesMax / ItemBytes(dtype)) {
    return Invalid("the bytes of the piece's global shape overflow");
  }
  const std::string& name = piece.logical_name;
  if (name == "__metadata__" || IsHiddenName(name)) {
    return Invalid(absl::StrFormat("the logical name %s is reserved; escape it", Quoted(name)));
  }
  if (!codec::IsValidUtf8(name)) return Invalid("the logical name is not valid UTF-8");
  return absl::OkStatus();
}

std::string BoxText(std::span<const int64_t> offset, std::span<const int64_t> extent) {
  std::string text = "[";
  for (size_t i = 0; i < offset.size() && i < extent.size(); ++i) {
    int64_t end = 0;
    if (__builtin_add_overflow(offset[i], extent[i], &end)) end = INT64_MAX;
    text += absl::StrFormat("%s%d:%d", i == 0 ? "" : ", ", offset[i], end);
  }
  return text + "]";
}

}  // namespace neve::format
