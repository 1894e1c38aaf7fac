#include "base/error/status.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace neve {
namespace {

// Where the errno of a status travels: the decimal number, so that a dump of the payload can be read.
constexpr char kErrnoUrl[] = "neve/errno";

absl::Status Make(absl::StatusCode code, const std::string& message, int error_number = 0) {
  absl::Status status(code, message);
  if (error_number != 0) status.SetPayload(kErrnoUrl, absl::Cord(std::to_string(error_number)));
  return status;
}

}  // namespace

absl::Status Invalid(std::string message) { return Make(absl::StatusCode::kInvalidArgument, message); }
absl::Status NotFound(std::string message) { return Make(absl::StatusCode::kNotFound, message); }
absl::Status DataLoss(std::string message) { return Make(absl::StatusCode::kDataLoss, message); }
absl::Status Damaged(std::string message) { return Make(absl::StatusCode::kOutOfRange, message); }
absl::Status Unsupported(std::string message) { return Make(absl::StatusCode::kUnimplemented, message); }
absl::Status Timeout(std::string message) { return Make(absl::StatusCode::kDeadlineExceeded, message); }
absl::Status Closed(std::string message) { return Make(absl::StatusCode::kFailedPrecondition, message); }
absl::Status Internal(std::string message) { return Make(absl::StatusCode::kInternal, message); }

absl::Status Exhausted(std::string message, int error_number) {
  return Make(absl::StatusCode::kResourceExhausted, message, error_number);
}

absl::Status Unavailable(std::string message, int error_number) {
  return Make(absl::StatusCode::kUnavailable, message, error_number);
}

absl::Status ErrnoStatus(int error_number, std::string what) {
  // strerrordesc_np is thread safe, does not translate and knows nothing of numbers that the kernel does not use.
  const char* text = ::strerrordesc_np(error_number);
  what += ": ";
  what += text != nullptr ? text : "error " + std::to_string(error_number);
  switch (error_number) {
    case ENOENT:
      return Make(absl::StatusCode::kNotFound, what, error_number);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Make(absl::StatusCode::kResourceExhausted, what, error_number);
    default:
      return Make(absl::StatusCode::kUnavailable, what, error_number);
  }
}

int ErrnoOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrnoUrl);
  if (!payload.has_value()) return 0;
  const std::string text(*payload);
  int error_number = 0;
  std::from_chars(text.data(), text.data() + text.size(), error_number);
  return error_number;
}

bool NeedsAHand(const absl::Status& status) {
  switch (ErrnoOf(status)) {
    case EACCES: case EPERM: case EROFS: case ENOTDIR: case EISDIR: case ELOOP: case ENAMETOOLONG: return true;
    default: return false;
  }
}

absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), context + ": " + std::string(status.message()));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

bool IsDamaged(const absl::Status& status) { return status.code() == absl::StatusCode::kOutOfRange; }

}  // namespace neve
