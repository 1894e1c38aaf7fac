// Store: small values under names, that every rank of a job can read and write. What a group is built on: a shared folder, or
// the store that a launcher brings (torch.distributed's, PMIx).
//
// Contract
//   - A value is seen whole or not at all. Set replaces. A later Get by the same rank sees its own Set.
//   - Others see a value some time after its Set; there is no other order between names.
//   - Get does not wait: nothing there is no error.
//   - Unavailable may pass; the same call is made again.
//   - Names are made of a-z, 0-9, "-" and "/", values are at most kValueBytesMax.
#ifndef NEVE_GROUP_STORE_H_
#define NEVE_GROUP_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error/status.h"

namespace neve::group {

inline constexpr uint64_t kValueBytesMax = 1u << 30;

class Store {
 public:
  virtual ~Store() = default;
  virtual std::string place() const = 0;   // for messages: "dir:/shared/group"
  virtual absl::Status Set(const std::string& name, std::string_view value) = 0;
  virtual absl::StatusOr<std::optional<std::string>> Get(const std::string& name) = 0;
  // Everything below `prefix` is not needed any more. Best effort: what stays is never mistaken for something else.
  virtual void Forget(const std::string& prefix) {}
};

// A folder that all ranks see, made when it is missing: one file a value, written beside and renamed into place. Invalid:
// `folder` is empty.
absl::StatusOr<std::unique_ptr<Store>> DirStore(const std::string& folder);

struct StoreFunctions {
  std::function<absl::Status(const std::string& name, std::string_view value)> set;
  std::function<absl::StatusOr<std::optional<std::string>>(const std::string& name)> get;
};
// A store of the program's own. `place` is what messages call it.
std::unique_ptr<Store> FunctionStore(StoreFunctions functions, std::string place);

}  // namespace neve::group

#endif  // NEVE_GROUP_STORE_H_
