// Status builders and macros. Every failure of neve is an absl::Status with one of the codes below; the code says what the
// caller may do next, the message says what, where and what to do.
//
//   Invalid       kInvalidArgument    the call itself is wrong; nothing was changed
//   NotFound      kNotFound           nothing of that name; every place was reachable
//   DataLoss      kDataLoss           bytes differ from their digest, and there is no other copy
//   Damaged       kOutOfRange         a checkpoint, but truncated or malformed
//   Unsupported   kUnimplemented      a kind or feature that this build does not have
//   Timeout       kDeadlineExceeded   the stated deadline passed
//   Exhausted     kResourceExhausted  no room (memory, disk, slots); may carry errno
//   Unavailable   kUnavailable        could not reach it; may carry errno; retrying may help
//   Closed        kFailedPrecondition the engine is closed, or a call came in the wrong order
//   Internal      kInternal           a broken invariant of ours
#ifndef NEVE_BASE_ERROR_STATUS_H_
#define NEVE_BASE_ERROR_STATUS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace neve {

absl::Status Invalid(std::string message);
absl::Status NotFound(std::string message);
absl::Status DataLoss(std::string message);
absl::Status Damaged(std::string message);
absl::Status Unsupported(std::string message);
absl::Status Timeout(std::string message);
absl::Status Exhausted(std::string message, int error_number = 0);
absl::Status Unavailable(std::string message, int error_number = 0);
absl::Status Closed(std::string message);
absl::Status Internal(std::string message);

// From errno: ENOENT -> NotFound; ENOSPC EDQUOT EFBIG ENOMEM EMFILE ENFILE -> Exhausted; the rest -> Unavailable.
// The text is "<what>: <strerror>"; the number travels as a payload (ErrnoOf).
absl::Status ErrnoStatus(int error_number, std::string what);
int ErrnoOf(const absl::Status& status);  // 0 when it carries none

// By its errno: what no retry mends until somebody changes permissions, mounts or names (EACCES EPERM EROFS ENOTDIR EISDIR ELOOP
// ENAMETOOLONG). A full disk is not of that kind: what fills it may go.
bool NeedsAHand(const absl::Status& status);

// The same status with "<context>: " before its message; payloads kept.
absl::Status Annotate(const absl::Status& status, const std::string& context);

bool IsDamaged(const absl::Status& status);

}  // namespace neve

#define NEVE_RETURN_IF_ERROR(expr)                      \
  do {                                                  \
    if (absl::Status neve_status_ = (expr); !neve_status_.ok()) return neve_status_; \
  } while (false)

#define NEVE_CONCAT_INNER_(a, b) a##b
#define NEVE_CONCAT_(a, b) NEVE_CONCAT_INNER_(a, b)
#define NEVE_ASSIGN_OR_RETURN(lhs, expr) NEVE_ASSIGN_OR_RETURN_IMPL_(NEVE_CONCAT_(neve_statusor_, __LINE__), lhs, expr)
#define NEVE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = std::move(tmp).value()

#endif  // NEVE_BASE_ERROR_STATUS_H_
