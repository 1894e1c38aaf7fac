// What stands behind the handles of the C API, and how every function of it ends.
#ifndef NEVE_CAPI_HANDLES_H_
#define NEVE_CAPI_HANDLES_H_

#include <cxxabi.h>

#include <cerrno>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error/status.h"
#include "base/sync/mutex.h"
#include "capi/handle_table.h"
#include "capi/versioned.h"
#include "neve/engine.h"
#include "neve/neve.h"
#include "nlohmann/json.hpp"

// neve_error, neve_string and neve_reply are these structs; the other handles are numbers of the table, and these stand behind them.
struct neve_error {
  absl::Status status;
  std::string message;
};
struct neve_string {
  std::string text;
};
struct neve_reply {
  std::vector<std::string> parts;
};

namespace neve::capi {

struct OpenEngine {
  static constexpr HandleKind kKind = HandleKind::kEngine;
  using Handle = neve_engine;
  std::unique_ptr<Engine> engine;
};
struct DescribedState {
  static constexpr HandleKind kKind = HandleKind::kState;
  using Handle = neve_state;
  std::shared_ptr<State> state;
  size_t tensor_count;
  uint32_t blob_count;
};
struct GivenTicket {
  static constexpr HandleKind kKind = HandleKind::kTicket;
  using Handle = neve_ticket;
  std::shared_ptr<Ticket> ticket;
};
struct OpenTorchStream {
  static constexpr HandleKind kKind = HandleKind::kTorchStream;
  using Handle = neve_torch_stream;
  std::unique_ptr<TorchFileStream> stream;
};

// Memory of the program's functions (neve_memory_set), or of malloc.
class TensorMemory {
 public:
  static constexpr size_t kAlignment = 64;
  // Exhausted: there is none.
  static absl::StatusOr<TensorMemory> Allocate(size_t bytes);
  TensorMemory(TensorMemory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), release_(other.release_), context_(other.context_) {}
  TensorMemory& operator=(TensorMemory&&) = delete;
  ~TensorMemory();
  void* data() const { return memory_; }

 private:
  TensorMemory(void* memory, size_t bytes, neve_release_fn release, void* context)
      : memory_(memory), bytes_(bytes), release_(release), context_(context) {}
  void* memory_;
  size_t bytes_;
  neve_release_fn release_;
  void* context_;
};

class OpenImage {
 public:
  static constexpr HandleKind kKind = HandleKind::kImage;
  using Handle = neve_image;
  explicit OpenImage(std::unique_ptr<Image> opened) : image(std::move(opened)) {}
  const std::unique_ptr<Image> image;
  // Made at the first use: most callers read the header themselves.
  absl::StatusOr<const ImageTensors*> Tensors() {
    sync::MutexLock lock(mutex_);
    return TensorsLocked();
  }
  // One tensor in memory of neve's, read at the first call.
  absl::StatusOr<const void*> Data(size_t index);

 private:
  absl::StatusOr<const ImageTensors*> TensorsLocked() NEVE_REQUIRES(mutex_) {
    if (tensors_ == nullptr) {
      NEVE_ASSIGN_OR_RETURN(tensors_, ImageTensors::Of(image.get()));
    }
    return tensors_.get();
  }
  sync::Mutex mutex_;
  std::unique_ptr<ImageTensors> tensors_ NEVE_GUARDED_BY(mutex_);
  std::map<size_t, TensorMemory> data_ NEVE_GUARDED_BY(mutex_);
};

// What a handle stands for; Invalid or Closed as FindHandle says.
template <typename Object>
absl::StatusOr<std::shared_ptr<Object>> Find(const typename Object::Handle* handle) {
  NEVE_ASSIGN_OR_RETURN(std::shared_ptr<void> found, FindHandle(Object::kKind, handle));
  return std::static_pointer_cast<Object>(std::move(found));
}
template <typename Object>
typename Object::Handle* Give(std::shared_ptr<Object> object) {
  return static_cast<typename Object::Handle*>(AddHandle(Object::kKind, std::move(object)));
}
// Nulls the handle; what it stood for, or null.
template <typename Object>
std::shared_ptr<Object> Take(typename Object::Handle** handle) {
  if (handle == nullptr || *handle == nullptr) return nullptr;
  return std::static_pointer_cast<Object>(TakeHandle(Object::kKind, std::exchange(*handle, nullptr)));
}

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
  } catch (abi::__forced_unwind&) {   // the calling thread is being cancelled
    throw;
  } catch (...) {   // a function of the program's that threw all the same
    return Report(Internal("unexpected: an exception that is none of the standard library's"), error);
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

// None for no text.
inline std::optional<std::vector<std::string>> SplitLinesIfAny(const char* text) {
  return text == nullptr ? std::nullopt : std::optional(SplitLines(text));
}

inline void GiveString(neve_string** out, std::string text) { *out = new neve_string{std::move(text)}; }

}  // namespace neve::capi

#endif  // NEVE_CAPI_HANDLES_H_
