// neve's C handles as C++ objects: they close themselves, and a call that fails throws. Copy it into a project and change it there.
#ifndef NEVE_EXAMPLES_CPP_NEVE_HANDLES_H_
#define NEVE_EXAMPLES_CPP_NEVE_HANDLES_H_

#include <neve/neve.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fit {

// What a neve_error said.
class Error : public std::runtime_error {
 public:
  Error(neve_code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  neve_code code() const { return code_; }

 private:
  neve_code code_;
};

// Calls a function whose last argument is the error.
template <typename Function, typename... Arguments>
void Call(Function function, Arguments... arguments) {
  neve_error* error = nullptr;
  const neve_code code = function(arguments..., &error);
  if (code == NEVE_OK) return;
  const std::string message = neve_error_message(error);
  neve_error_destroy(&error);
  throw Error(code, message);
}

// One handle, and the function that ends it.
template <typename Handle, void (*Destroy)(Handle**)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() { Destroy(&handle_); }
  Handle* get() const { return handle_; }
  Handle** out() {   // for the call that makes it
    Destroy(&handle_);
    return &handle_;
  }

 private:
  Handle* handle_ = nullptr;
};
using Engine = Owned<neve_engine, neve_engine_destroy>;
using State = Owned<neve_state, neve_state_destroy>;
using Ticket = Owned<neve_ticket, neve_ticket_destroy>;
using Image = Owned<neve_image, neve_image_destroy>;

// The tensors of a training state: named vectors that stay where they are.
class Tensors {
 public:
  void Add(const std::string& name, std::vector<double>* values) {
    names_ += name;
    name_bytes_.push_back(static_cast<uint32_t>(name.size()));
    dtypes_.push_back(NEVE_F64);
    ranks_.push_back(1);
    extents_.push_back(static_cast<int64_t>(values->size()));
    places_.push_back(values->data());
  }
  void Describe() {
    neve_tensors tensors = NEVE_TENSORS_INIT;
    tensors.count = places_.size();
    tensors.names = names_.data();
    tensors.name_bytes = name_bytes_.data();
    tensors.dtypes = dtypes_.data();
    tensors.ranks = ranks_.data();
    tensors.extents = extents_.data();
    Call(neve_state_create, &tensors, nullptr, 0, 0, state_.out());
  }
  const neve_state* state() const { return state_.get(); }
  void* const* places() const { return places_.data(); }

 private:
  std::string names_;
  std::vector<uint32_t> name_bytes_;
  std::vector<uint8_t> dtypes_, ranks_;
  std::vector<int64_t> extents_;
  std::vector<void*> places_;
  State state_;
};

class Checkpointer {
 public:
  explicit Checkpointer(const std::string& folder) {
    neve_options options = NEVE_OPTIONS_INIT;
    options.folder = folder.c_str();
    Call(neve_engine_open, &options, engine_.out());
  }
  // Returns once the tensors may be changed.
  Ticket Save(uint64_t step, const Tensors& tensors) {
    neve_save_request request = NEVE_SAVE_REQUEST_INIT;
    request.step = step;
    request.state = tensors.state();
    request.addresses = tensors.places();
    Ticket ticket;
    Call(neve_engine_save, engine_.get(), &request, ticket.out());
    return ticket;
  }
  // Fills the tensors from the newest complete save; false: there is none.
  bool Restore(const Tensors& tensors) {
    neve_restore_request request = NEVE_RESTORE_REQUEST_INIT;
    request.state = tensors.state();
    request.targets = tensors.places();
    request.fallback = 1;
    try {
      Call(neve_engine_restore, engine_.get(), &request, nullptr);
      return true;
    } catch (const Error& error) {
      if (error.code() == NEVE_NOT_FOUND) return false;
      throw;
    }
  }
  // Writes the newest save to files; the destructor alone leaves it in memory.
  void Close() {
    neve_engine* engine = engine_.get();
    Call(neve_engine_close, &engine, 1, 60.0);
  }

 private:
  Engine engine_;
};

}  // namespace fit

#endif  // NEVE_EXAMPLES_CPP_NEVE_HANDLES_H_
