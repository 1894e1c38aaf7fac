// Single files of the C API over the C++ one: conversions only.
#include <cstddef>
#include <memory>

#include "base/error/status.h"
#include "capi/handles.h"
#include "capi/save_request.h"
#include "neve/engine.h"
#include "neve/neve.h"

using neve::capi::Find;
using neve::capi::Give;
using neve::capi::GivenTicket;
using neve::capi::Guarded;
using neve::capi::OpenTorchStream;
using neve::capi::SaveRequestView;
using neve::capi::Take;
using neve::capi::ToSaveRequest;

namespace {

absl::StatusOr<neve::TorchObject> ToTorchObject(const neve_torch_object* given) {
  NEVE_ASSIGN_OR_RETURN(const neve_torch_object from, neve::capi::Adopt(given, sizeof(neve_torch_object), "NEVE_TORCH_OBJECT_INIT"));
  if ((from.pickle == nullptr && from.pickle_bytes != 0) ||
      (from.storage_count != 0 && (from.storages == nullptr || from.storage_bytes == nullptr))) {
    return neve::Invalid("the torch object lacks its pickle, or addresses or sizes of its storages");
  }
  return neve::TorchObject{.pickle = {static_cast<const char*>(from.pickle), from.pickle_bytes},
                           .storages = {from.storages, from.storage_count},
                           .storage_bytes = {from.storage_bytes, from.storage_count},
                           .alignment = from.alignment};
}

}  // namespace

extern "C" {

neve_code neve_file_save(const char* path, const neve_save_request* request, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr) return neve::Invalid("the path is null");
    SaveRequestView view;
    NEVE_RETURN_IF_ERROR(ToSaveRequest(request, &view));
    return neve::SaveFile(path, view.request.state, view.request.addresses, view.request.values, view.request.blobs);
  });
}

neve_code neve_file_save_async(const char* path, const neve_save_request* request, neve_ticket** ticket, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr) return neve::Invalid("the path is null");
    if (ticket != nullptr) *ticket = nullptr;
    SaveRequestView view;
    NEVE_RETURN_IF_ERROR(ToSaveRequest(request, &view));
    NEVE_ASSIGN_OR_RETURN(
        std::shared_ptr<neve::Ticket> given,
        neve::SaveFileAsync(path, view.request.state, view.request.addresses, view.request.values, view.request.blobs));
    if (ticket != nullptr) *ticket = Give(std::make_shared<GivenTicket>(GivenTicket{std::move(given)}));
    return absl::OkStatus();
  });
}

neve_code neve_torch_file_save(const char* path, const neve_torch_object* object, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr) return neve::Invalid("the path is null");
    NEVE_ASSIGN_OR_RETURN(const neve::TorchObject given, ToTorchObject(object));
    return neve::SaveTorchFile(path, given);
  });
}

neve_code neve_torch_file_save_async(const char* path, const neve_torch_object* object, neve_ticket** ticket, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr) return neve::Invalid("the path is null");
    if (ticket != nullptr) *ticket = nullptr;
    NEVE_ASSIGN_OR_RETURN(const neve::TorchObject given, ToTorchObject(object));
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<neve::Ticket> made, neve::SaveTorchFileAsync(path, given));
    if (ticket != nullptr) *ticket = Give(std::make_shared<GivenTicket>(GivenTicket{std::move(made)}));
    return absl::OkStatus();
  });
}

neve_code neve_torch_stream_create(const neve_torch_object* object, neve_torch_stream** stream, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (stream == nullptr) return neve::Invalid("no place for the stream");
    *stream = nullptr;
    NEVE_ASSIGN_OR_RETURN(const neve::TorchObject given, ToTorchObject(object));
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::TorchFileStream> opened, neve::TorchFileStream::Open(given));
    *stream = Give(std::make_shared<OpenTorchStream>(OpenTorchStream{std::move(opened)}));
    return absl::OkStatus();
  });
}

neve_code neve_torch_stream_read(neve_torch_stream* stream, void* target, size_t size, size_t* bytes, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (bytes == nullptr || (target == nullptr && size != 0)) {
      return neve::Invalid("the target or the place for the count is null");
    }
    *bytes = 0;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenTorchStream> open, Find<OpenTorchStream>(stream));
    *bytes = open->stream->Read({static_cast<std::byte*>(target), size});
    return absl::OkStatus();
  });
}

void neve_torch_stream_destroy(neve_torch_stream** stream) { Take<OpenTorchStream>(stream); }

}  // extern "C"
