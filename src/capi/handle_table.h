// Handles of the C API: numbers, each given once, behind which the table keeps the object. So a handle that was destroyed, is of another
// kind, or is any other value is told from one that is good, without a look at the memory it names.
//
// Invariants
//   - A handle is 16 x a number that only grows, plus its kind: never null, never given twice.
//   - Find gives shared ownership: what another thread destroys meanwhile lives until the call that found it has ended.
//   - A handle belongs to the process that made it. A forked child gets Closed for its parent's, and never runs their destructors: the
//     threads and locks behind them are not there.
//   - The table is locked over a fork, so that the child finds it whole; it is never destroyed, so that calls at exit find it too.
// Thread: any.
#ifndef NEVE_CAPI_HANDLE_TABLE_H_
#define NEVE_CAPI_HANDLE_TABLE_H_

#include <cstdint>
#include <memory>

#include "base/error/status.h"

namespace neve::capi {

enum class HandleKind : uint8_t { kEngine = 1, kState, kTicket, kImage, kTorchStream };

// The handle, as the pointer that the caller gets.
void* AddHandle(HandleKind kind, std::shared_ptr<void> object);
// Invalid: null, destroyed, or of another kind; Closed: made by the parent of this forked process.
absl::StatusOr<std::shared_ptr<void>> FindHandle(HandleKind kind, const void* handle);
// The object, which is the caller's from now on; null where FindHandle would fail.
std::shared_ptr<void> TakeHandle(HandleKind kind, const void* handle);

}  // namespace neve::capi

#endif  // NEVE_CAPI_HANDLE_TABLE_H_
