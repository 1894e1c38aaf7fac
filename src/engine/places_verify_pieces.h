// Checks the images of all ranks of one save against each other: that they make whole tensors, and that replicas are equal.
#ifndef NEVE_ENGINE_PLACES_VERIFY_PIECES_H_
#define NEVE_ENGINE_PLACES_VERIFY_PIECES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "base/sync/crew.h"
#include "engine/opened_image.h"
#include "neve/places.h"

namespace neve::engine {

struct RankToVerify {
  std::function<absl::StatusOr<std::unique_ptr<RankFile>>()> open;
  bool good = true;                                 // its digests hold: only then its bytes are compared with others
};
struct SaveToVerify {
  std::string place, path;                          // for the report; the step folder, or the save in RAM
  std::vector<RankToVerify> ranks;                  // all of its world, ascending; their headers are sound
};

// Reads headers, and of replicas what their digests do not tell. Memory: the headers, and what global_compare.h needs. What is wrong is
// told by the report, by the name of the tensor, with ranks and boxes. The status is about reaching the images.
absl::Status VerifyPieces(const SaveToVerify& save, const std::shared_ptr<sync::Crew>& crew, VerifyReport* report);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_VERIFY_PIECES_H_
