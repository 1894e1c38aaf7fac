// Waits for a tier's asynchronous call from a thread that may block (never the executor's or a tier's).
#ifndef NEVE_ENGINE_BLOCKING_H_
#define NEVE_ENGINE_BLOCKING_H_

#include <memory>
#include <string>
#include <utility>

#include "base/sync/notification.h"
#include "storage/tier.h"

namespace neve {

// Await<T>([&](auto done) { tier.List(done); })
template <typename T, typename Call>
absl::StatusOr<T> Await(Call call) {
  auto result = std::make_shared<sync::Result<absl::StatusOr<T>>>();
  call(storage::DoneWith<T>([result](absl::StatusOr<T> value) { result->Set(std::move(value)); }));
  return result->Take();
}

template <typename Call>
absl::Status AwaitStatus(Call call) {
  auto result = std::make_shared<sync::Result<absl::Status>>();
  call(storage::Done([result](absl::Status status) { result->Set(std::move(status)); }));
  return result->Take();
}

}  // namespace neve

#endif  // NEVE_ENGINE_BLOCKING_H_
