#include "cli/verbs.h"

namespace neve::cli {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return 0;
    case absl::StatusCode::kDataLoss: return 1;
    case absl::StatusCode::kInvalidArgument: return 2;
    case absl::StatusCode::kUnimplemented: return 3;
    case absl::StatusCode::kOutOfRange: return 4;
    default: return 5;
  }
}

}  // namespace neve::cli
