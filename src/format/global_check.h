// Whether the pieces that all ranks hold make whole tensors: every logical tensor is looked at by itself, so that all that is wrong is
// known, not only the first. Pure.
#ifndef NEVE_FORMAT_GLOBAL_CHECK_H_
#define NEVE_FORMAT_GLOBAL_CHECK_H_

#include <span>
#include <string>
#include <vector>

#include "format/global_image.h"

namespace neve::format {

struct PiecesCheck {
  struct Problem {
    std::string name;                      // of the logical tensor
    std::string message;                   // what is wrong, with ranks and boxes
  };
  std::vector<Problem> problems;           // at most one a tensor
  std::vector<Comparison> replicas;        // a box that several ranks hold: bytes that must be equal
  std::vector<std::string> unlike;         // tensors with replicas that lie otherwise on each rank (expanded), so that bytes say nothing
  size_t tensors = 0;                      // logical ones
};

// Over all ranks of one save the boxes of a logical tensor have one type and one global shape, cover it without a gap, and share no
// element unless they are the same box; no rank holds a whole tensor of that name.
PiecesCheck CheckPieces(std::span<const RankImage> images);

}  // namespace neve::format

#endif  // NEVE_FORMAT_GLOBAL_CHECK_H_
