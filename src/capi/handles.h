// What stands behind the handles of the C API, and how every function of it ends.
#ifndef NEVE_CAPI_HANDLES_H_
#define NEVE_CAPI_HANDLES_H_

#include <cerrno>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error/status.h"
#include "base/sync/mutex.h"
#include "neve/engine.h"
#include "neve/neve.h"
#include "nlohmann/json.hpp"

struct neve_error {
  absl::Status status;
  std::string message;
};
struct neve_string {
  std::string text;
};
struct neve_engine {
  std::unique_ptr<neve::Engine> engine;
};
struct neve_reply {
  std::vector<std::string> parts;
};
struct neve_state {
  std::shared_ptr<neve::State> state;
  size_t tensor_count;
  uint32_t blob_count;
};
struct neve_ticket {
  std::shared_ptr<neve::Ticket> ticket;
};
struct neve_image {
  explicit neve_image(std::unique_ptr<neve::Image> opened) : image(std::move(opened)) {}
  std::unique_ptr<neve::Image> image;
  // Made at the first use: most callers read the header themselves.
  absl::StatusOr<const neve::ImageTensors*> Tensors() {
    neve::sync::MutexLock lock(mutex);
    if (tensors == nullptr) {
      NEVE_ASSIGN_OR_RETURN(tensors, neve::ImageTensors::Of(image.get()));
    }
    return tensors.get();
  }

 private:
  neve::sync::Mutex mutex;
  std::unique_ptr<neve::ImageTensors> tensors NEVE_GUARDED_BY(mutex);
};
struct neve_torch_stream {
  std::unique_ptr<neve::TorchFileStream> stream;
};

namespace neve::capi {

using Json = nlohmann::ordered_json;

inline neve_code Report(const absl::Status& status, neve_error** error) {
  if (status.ok()) return NEVE_OK;
  if (error != nullptr) *error = new neve_error{status, std::string(status.message())};
  return static_cast<neve_code>(status.code());
}

// Allocation failure and whatever a library below may throw end here.
template <typename Body>
neve_code Guarded(neve_error** error, Body body) {
  if (error != nullptr) *error = nullptr;
  try {
    return Report(body(), error);
  } catch (const std::bad_alloc&) {
    return Report(Exhausted("out of memory", ENOMEM), error);
  } catch (const std::exception& e) {
    return Report(Internal(std::string("unexpected: ") + e.what()), error);
  }
}

inline std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Patterns, one a line.
inline std::vector<std::string> SplitLines(const char* text) {
  std::vector<std::string> lines;
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (const std::string_view line = rest.substr(0, end); !line.empty()) lines.emplace_back(line);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return lines;
}

inline void GiveString(neve_string** out, std::string text) { *out = new neve_string{std::move(text)}; }

}  // namespace neve::capi

#endif  // NEVE_CAPI_HANDLES_H_
