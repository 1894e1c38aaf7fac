// The C API over the C++ one: conversions only.
#include "neve/neve.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "base/obs/log.h"
#include "capi/handles.h"
#include "neve/engine.h"

namespace {

using neve::capi::Dump;
using neve::capi::GiveString;
using neve::capi::Guarded;
using neve::capi::Json;

static_assert(NEVE_INVALID == static_cast<int>(absl::StatusCode::kInvalidArgument));
static_assert(NEVE_TIMEOUT == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
static_assert(NEVE_DAMAGED == static_cast<int>(absl::StatusCode::kOutOfRange));
static_assert(NEVE_UNSUPPORTED == static_cast<int>(absl::StatusCode::kUnimplemented));
static_assert(NEVE_CLOSED == static_cast<int>(absl::StatusCode::kFailedPrecondition));
static_assert(NEVE_DATA_LOSS == static_cast<int>(absl::StatusCode::kDataLoss));
static_assert(NEVE_QI32 == static_cast<int>(neve::DType::kQI32));

std::vector<std::string> SplitCommas(const char* text) {
  std::vector<std::string> parts;
  if (text == nullptr) return parts;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    if (const std::string_view part = rest.substr(0, comma); !part.empty()) parts.emplace_back(part);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return parts;
}

absl::StatusOr<neve::Tags> ParseTags(const char* text) {
  neve::Tags tags;
  if (text == nullptr || *text == '\0') return tags;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return neve::Invalid("tags must be a flat JSON object");
  for (const auto& [key, value] : json.items()) {
    if (value.is_boolean()) {
      tags[key] = value.get<bool>();
    } else if (value.is_number_integer()) {
      tags[key] = value.get<int64_t>();
    } else if (value.is_number_float()) {
      tags[key] = value.get<double>();
    } else if (value.is_string()) {
      tags[key] = value.get<std::string>();
    } else {
      return neve::Invalid("tag \"" + key + "\" must be a number, a string or a boolean");
    }
  }
  return tags;
}

// Borrowed arrays of a request as the C++ API wants them.
struct RequestView {
  std::vector<std::string_view> blobs;
  std::vector<neve::DeviceStream> streams;
  neve::SaveRequest request;
};

absl::StatusOr<std::vector<neve::DeviceStream>> ToStreams(const int32_t* devices, void* const* handles, size_t count) {
  std::vector<neve::DeviceStream> streams;
  if (count != 0 && (devices == nullptr || handles == nullptr)) {
    return neve::Invalid("streams are counted, and their devices or they are null");
  }
  for (size_t i = 0; i < count; ++i) streams.push_back({devices[i], handles[i]});
  return streams;
}

absl::Status ToRequest(const neve_save_request* from, RequestView* view) {
  constexpr size_t kFirstForm = offsetof(neve_save_request, stream_devices);
  if (from == nullptr || from->struct_size < kFirstForm) {
    return neve::Invalid("the save request is null or not one of this library");
  }
  if (from->struct_size >= sizeof(neve_save_request)) {
    NEVE_ASSIGN_OR_RETURN(view->streams, ToStreams(from->stream_devices, from->streams, from->stream_count));
    view->request.streams = view->streams;
    view->request.fence = from->fence != 0;
    if (from->fenced != nullptr && from->state != nullptr) view->request.fenced = {from->fenced, from->state->tensor_count};
  }
  if (from->state == nullptr) return neve::Invalid("the save request has no state");
  const neve_state& state = *from->state;
  if ((state.tensor_count != 0 && from->addresses == nullptr) ||
      (state.blob_count != 0 && (from->blobs == nullptr || from->blob_bytes == nullptr)) ||
      (from->values_bytes != 0 && from->values == nullptr)) {
    return neve::Invalid("the save request lacks addresses, values or blobs that its state has");
  }
  for (uint32_t i = 0; i < state.blob_count; ++i) {
    view->blobs.emplace_back(static_cast<const char*>(from->blobs[i]), from->blob_bytes[i]);
  }
  neve::SaveRequest& to = view->request;
  to.step = from->step;
  to.state = state.state;
  to.addresses = {from->addresses, state.tensor_count};
  to.values = {from->values, from->values_bytes};
  to.blobs = view->blobs;
  NEVE_ASSIGN_OR_RETURN(to.tags, ParseTags(from->tags_json));
  to.to = SplitCommas(from->to);
  to.slot_timeout_s = from->slot_timeout_s;
  return absl::OkStatus();
}

absl::StatusOr<neve::TorchObject> ToTorchObject(const neve_torch_object* from) {
  if (from == nullptr || from->struct_size < sizeof(neve_torch_object)) {
    return neve::Invalid("the torch object is null or older than this library");
  }
  if ((from->pickle == nullptr && from->pickle_bytes != 0) ||
      (from->storage_count != 0 && (from->storages == nullptr || from->storage_bytes == nullptr))) {
    return neve::Invalid("the torch object lacks its pickle, or addresses or sizes of its storages");
  }
  return neve::TorchObject{.pickle = {static_cast<const char*>(from->pickle), from->pickle_bytes},
                           .storages = {from->storages, from->storage_count},
                           .storage_bytes = {from->storage_bytes, from->storage_count},
                           .alignment = from->alignment};
}

// What a function of the program answered.
absl::Status ToStatus(int code, const neve_reply& reply) {
  if (code == NEVE_OK) return absl::OkStatus();
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnavailable,
                      reply.parts.empty() ? "the group's function failed with code " + std::to_string(code) : reply.parts.front());
}

absl::Status ToGroup(const neve_options& from, neve::GroupOptions* to) {
  if (from.group != nullptr) to->place = from.group;
  to->timeout_s = from.group_timeout_s;
  if ((from.group_set == nullptr) != (from.group_get == nullptr)) return neve::Invalid("group_set and group_get come together");
  void* context = from.group_context;
  if (from.group_set != nullptr) {
    to->set = [set = from.group_set, context](const std::string& name, std::string_view value) {
      neve_reply reply;
      const int code = set(context, name.c_str(), value.data(), value.size(), &reply);
      return ToStatus(code, reply);
    };
    to->get = [get = from.group_get, context](const std::string& name) -> absl::StatusOr<std::optional<std::string>> {
      neve_reply reply;
      const int code = get(context, name.c_str(), &reply);
      if (code == NEVE_NOT_FOUND) return std::optional<std::string>();
      NEVE_RETURN_IF_ERROR(ToStatus(code, reply));
      if (reply.parts.size() != 1) return neve::Invalid("group_get added no value, or more than one");
      return std::optional<std::string>(std::move(reply.parts.front()));
    };
  }
  if (from.group_gather != nullptr) {
    to->gather = [gather = from.group_gather, context](std::string_view mine,
                                                       double timeout_s) -> absl::StatusOr<std::vector<std::string>> {
      neve_reply reply;
      const int code = gather(context, mine.data(), mine.size(), timeout_s, &reply);
      NEVE_RETURN_IF_ERROR(ToStatus(code, reply));
      return std::move(reply.parts);
    };
  }
  return absl::OkStatus();
}

}  // namespace

extern "C" {

const char* neve_version(void) {
  static const std::string version(neve::Version());
  return version.c_str();
}

neve_code neve_error_code(const neve_error* error) {
  return error == nullptr ? NEVE_OK : static_cast<neve_code>(error->status.code());
}
const char* neve_error_message(const neve_error* error) { return error == nullptr ? "" : error->message.c_str(); }
int neve_error_errno(const neve_error* error) { return error == nullptr ? 0 : neve::ErrnoOf(error->status); }
void neve_error_destroy(neve_error** error) {
  if (error == nullptr) return;
  delete *error;
  *error = nullptr;
}

const char* neve_string_data(const neve_string* string) { return string == nullptr ? "" : string->text.c_str(); }
size_t neve_string_size(const neve_string* string) { return string == nullptr ? 0 : string->text.size(); }
void neve_string_destroy(neve_string** string) {
  if (string == nullptr) return;
  delete *string;
  *string = nullptr;
}

void neve_log_set(neve_log_fn fn, void* context) {
  if (fn == nullptr) {
    neve::obs::SetSink(nullptr);
    return;
  }
  neve::obs::SetSink(
      [fn, context](neve::obs::Level level, const std::string& line) { fn(static_cast<int>(level), line.c_str(), context); });
}

void neve_reply_add(neve_reply* reply, const void* data, size_t bytes) {
  if (reply != nullptr && (data != nullptr || bytes == 0)) reply->parts.emplace_back(static_cast<const char*>(data), bytes);
}

neve_code neve_engine_open(const neve_options* options, neve_engine** engine, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("no place for the engine");
    *engine = nullptr;
    if (options == nullptr || options->struct_size < sizeof(neve_options)) {
      return neve::Invalid("the options are null or older than this library");
    }
    if (options->folder == nullptr && options->job == nullptr) return neve::Invalid("the options name no folder");
    if (options->tier_count != 0 && options->tiers == nullptr) return neve::Invalid("tier_count is set and tiers is null");
    if (options->on_full < 0 || options->on_full > 2) return neve::Invalid("on_full must be 0 (wait), 1 (skip) or 2 (replace)");
    neve::EngineOptions to;
    if (options->folder != nullptr) to.folder = options->folder;
    if (options->job != nullptr) to.job = options->job;
    for (size_t i = 0; i < options->tier_count; ++i) {
      NEVE_ASSIGN_OR_RETURN(neve::TierConfig tier, neve::ParseTier(options->tiers[i] == nullptr ? "" : options->tiers[i]));
      to.tiers.push_back(std::move(tier));
    }
    to.rank = options->rank;
    to.world = options->world;
    to.on_full = static_cast<neve::OnFull>(options->on_full);
    if (options->incarnation >= 0) to.incarnation = static_cast<uint32_t>(options->incarnation);
    to.grace_s = options->grace_s;
    to.capture_threads = options->capture_threads;
    NEVE_RETURN_IF_ERROR(ToGroup(*options, &to.group));
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Engine> opened, neve::Engine::Open(to));
    *engine = new neve_engine{std::move(opened)};
    return absl::OkStatus();
  });
}

neve_code neve_engine_close(neve_engine** engine, int final, double deadline_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr || *engine == nullptr) return absl::OkStatus();
    absl::Status status = (*engine)->engine->Close(final != 0, deadline_s);
    delete *engine;
    *engine = nullptr;
    return status;
  });
}

void neve_engine_destroy(neve_engine** engine) {
  if (engine == nullptr) return;
  delete *engine;
  *engine = nullptr;
}

neve_code neve_state_create(const neve_tensors* tensors, const char* tree, size_t tree_bytes, uint32_t blob_count,
                            neve_state** state, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (state == nullptr) return neve::Invalid("no place for the state");
    *state = nullptr;
    if (tensors == nullptr || tensors->struct_size < offsetof(neve_tensors, devices)) {
      return neve::Invalid("the tensors are null or older than this library");
    }
    const size_t count = tensors->count;
    if (count != 0 && (tensors->names == nullptr || tensors->name_bytes == nullptr || tensors->dtypes == nullptr ||
                       tensors->ranks == nullptr)) {
      return neve::Invalid("names, name_bytes, dtypes and ranks are needed");
    }
    size_t dims = 0;
    for (size_t i = 0; i < count; ++i) dims += tensors->ranks[i];
    if (dims != 0 && tensors->extents == nullptr) return neve::Invalid("extents are needed");
    std::vector<std::string_view> names;
    std::vector<neve::DType> dtypes;
    names.reserve(count);
    dtypes.reserve(count);
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      names.emplace_back(tensors->names + at, tensors->name_bytes[i]);
      at += tensors->name_bytes[i];
      if (tensors->dtypes[i] < NEVE_BOOL || tensors->dtypes[i] > NEVE_QI32) {
        return neve::Invalid("tensor \"" + std::string(names.back()) + "\": unknown dtype " + std::to_string(tensors->dtypes[i]));
      }
      dtypes.push_back(static_cast<neve::DType>(tensors->dtypes[i]));
    }
    neve::TensorTable table{names, dtypes, {tensors->ranks, count}, {tensors->extents, dims},
                            {tensors->strides, tensors->strides == nullptr ? 0 : dims}};
    std::vector<std::string_view> logical_names;
    if (tensors->pieces != nullptr) {
      if (dims != 0 && (tensors->global_extents == nullptr || tensors->offsets == nullptr)) {
        return neve::Invalid("pieces need global_extents and offsets");
      }
      table.pieces = {tensors->pieces, count};
      table.global_extents = {tensors->global_extents, dims};
      table.offsets = {tensors->offsets, dims};
      for (size_t i = 0; i < count && tensors->logical_names != nullptr; ++i) {
        logical_names.emplace_back(tensors->logical_names[i] == nullptr ? "" : tensors->logical_names[i]);
      }
      table.logical_names = logical_names;
    }
    if (tensors->struct_size >= sizeof(neve_tensors) && tensors->devices != nullptr) table.devices = {tensors->devices, count};
    NEVE_ASSIGN_OR_RETURN(
        std::shared_ptr<neve::State> described,
        neve::DescribeState(table, tree == nullptr ? std::string_view() : std::string_view(tree, tree_bytes), blob_count));
    *state = new neve_state{std::move(described), count, blob_count};
    return absl::OkStatus();
  });
}

void neve_state_destroy(neve_state** state) {
  if (state == nullptr) return;
  delete *state;
  *state = nullptr;
}

neve_code neve_engine_save(neve_engine* engine, const neve_save_request* request, neve_ticket** ticket, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    if (ticket != nullptr) *ticket = nullptr;
    RequestView view;
    NEVE_RETURN_IF_ERROR(ToRequest(request, &view));
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<neve::Ticket> given, engine->engine->Save(view.request));
    if (ticket != nullptr) *ticket = new neve_ticket{std::move(given)};
    return absl::OkStatus();
  });
}

neve_code neve_devices_describe(neve_string** text, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (text == nullptr) return neve::Invalid("no place for the text");
    *text = nullptr;
    NEVE_ASSIGN_OR_RETURN(std::string described, neve::DescribeDevices());
    GiveString(text, std::move(described));
    return absl::OkStatus();
  });
}

neve_code neve_engine_prepare(neve_engine* engine, const neve_save_request* request, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    RequestView view;
    NEVE_RETURN_IF_ERROR(ToRequest(request, &view));
    std::vector<uint64_t> blob_bytes;
    for (std::string_view blob : view.blobs) blob_bytes.push_back(blob.size());
    return engine->engine->Prepare(view.request.state, view.request.addresses, view.request.values.size(), blob_bytes);
  });
}

neve_code neve_engine_count_save(neve_engine* engine, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    engine->engine->CountSave();
    return absl::OkStatus();
  });
}

neve_code neve_engine_drain(neve_engine* engine, double deadline_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    return engine->engine->Drain(deadline_s);
  });
}

neve_code neve_engine_pin(neve_engine* engine, uint64_t step, int pinned, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    return engine->engine->SetPinned(step, pinned != 0);
  });
}

neve_code neve_ticket_wait(const neve_ticket* ticket, const char* stage, double timeout_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (ticket == nullptr) return neve::Invalid("the ticket is null");
    return ticket->ticket->Wait(stage == nullptr ? "done" : stage, timeout_s);
  });
}

neve_code neve_ticket_describe(const neve_ticket* ticket, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (ticket == nullptr || json == nullptr) return neve::Invalid("the ticket or the place for its text is null");
    Json document;
    document["step"] = ticket->ticket->step();
    document["save_id"] = ticket->ticket->save_id().ToString();
    auto& stages = document["stages"] = Json::object();
    for (const auto& [name, state] : ticket->ticket->Stages()) stages[name] = std::string(neve::Name(state));
    const absl::Status first = ticket->ticket->Error();
    document["error"] = nullptr;
    if (!first.ok()) {
      document["error"] = {
          {"code", static_cast<int>(first.code())}, {"message", std::string(first.message())}, {"errno", neve::ErrnoOf(first)}};
    }
    document["places"] = ticket->ticket->Places();
    GiveString(json, Dump(document));
    return absl::OkStatus();
  });
}

neve_code neve_ticket_fence(const neve_ticket* ticket, const int32_t* stream_devices, void* const* streams, size_t stream_count,
                            double timeout_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (ticket == nullptr) return neve::Invalid("the ticket is null");
    NEVE_ASSIGN_OR_RETURN(const std::vector<neve::DeviceStream> list, ToStreams(stream_devices, streams, stream_count));
    return ticket->ticket->Fence(list, timeout_s);
  });
}

int neve_ticket_descriptor(const neve_ticket* ticket) { return ticket == nullptr ? -1 : ticket->ticket->Descriptor(); }

void neve_ticket_destroy(neve_ticket** ticket) {
  if (ticket == nullptr) return;
  delete *ticket;
  *ticket = nullptr;
}

neve_code neve_engine_steps(neve_engine* engine, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr || json == nullptr) return neve::Invalid("the engine or the place for the text is null");
    NEVE_ASSIGN_OR_RETURN(const std::vector<neve::SaveInfo> saves, engine->engine->Steps());
    Json document;
    auto& list = document["saves"] = Json::array();
    for (const neve::SaveInfo& save : saves) list.push_back(Json::parse(neve::ToJson(save)));
    GiveString(json, Dump(document));
    return absl::OkStatus();
  });
}

neve_code neve_engine_health(neve_engine* engine, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr || json == nullptr) return neve::Invalid("the engine or the place for the text is null");
    GiveString(json, engine->engine->HealthJson());
    return absl::OkStatus();
  });
}

neve_code neve_engine_find(neve_engine* engine, const neve_find_request* request, neve_image** image, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr || image == nullptr) return neve::Invalid("the engine or the place for the image is null");
    *image = nullptr;
    neve::FindRequest find;
    if (request != nullptr) {
      if (request->struct_size < sizeof(neve_find_request)) return neve::Invalid("the find request is older than this library");
      if (request->step >= 0) find.step = static_cast<uint64_t>(request->step);
      if (request->before_incarnation >= 0) {
        find.before = neve::SaveId{static_cast<uint32_t>(request->before_incarnation), request->before_sequence};
      }
      find.allow_missing = SplitCommas(request->allow_missing);
      find.fallback = request->fallback != 0;
      find.take_rank0 = neve::capi::SplitLines(request->take_rank0);
    }
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Image> found, engine->engine->Find(find));
    *image = new neve_image{std::move(found)};
    return absl::OkStatus();
  });
}

neve_code neve_engine_agree(neve_engine* engine, int code, const char* message, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) return neve::Invalid("that is no neve_code");
    return engine->engine->Agree(
        absl::Status(static_cast<absl::StatusCode>(code), code == NEVE_OK || message == nullptr ? "" : message));
  });
}

neve_code neve_engine_leave(neve_engine* engine, const char* why, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("the engine is null");
    engine->engine->Leave(why == nullptr ? "" : why);
    return absl::OkStatus();
  });
}

neve_code neve_file_save(const char* path, const neve_save_request* request, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr) return neve::Invalid("the path is null");
    RequestView view;
    NEVE_RETURN_IF_ERROR(ToRequest(request, &view));
    return neve::SaveFile(path, view.request.state, view.request.addresses, view.request.values, view.request.blobs);
  });
}

neve_code neve_file_save_async(const char* path, const neve_save_request* request, neve_ticket** ticket, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr) return neve::Invalid("the path is null");
    if (ticket != nullptr) *ticket = nullptr;
    RequestView view;
    NEVE_RETURN_IF_ERROR(ToRequest(request, &view));
    NEVE_ASSIGN_OR_RETURN(
        std::shared_ptr<neve::Ticket> given,
        neve::SaveFileAsync(path, view.request.state, view.request.addresses, view.request.values, view.request.blobs));
    if (ticket != nullptr) *ticket = new neve_ticket{std::move(given)};
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
    if (ticket != nullptr) *ticket = new neve_ticket{std::move(made)};
    return absl::OkStatus();
  });
}

neve_code neve_torch_stream_create(const neve_torch_object* object, neve_torch_stream** stream, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (stream == nullptr) return neve::Invalid("no place for the stream");
    *stream = nullptr;
    NEVE_ASSIGN_OR_RETURN(const neve::TorchObject given, ToTorchObject(object));
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::TorchFileStream> opened, neve::TorchFileStream::Open(given));
    *stream = new neve_torch_stream{std::move(opened)};
    return absl::OkStatus();
  });
}

neve_code neve_torch_stream_read(neve_torch_stream* stream, void* target, size_t size, size_t* bytes, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (stream == nullptr || bytes == nullptr || (target == nullptr && size != 0)) {
      return neve::Invalid("the stream, its target or the place for the count is null");
    }
    *bytes = stream->stream->Read({static_cast<std::byte*>(target), size});
    return absl::OkStatus();
  });
}

void neve_torch_stream_destroy(neve_torch_stream** stream) {
  if (stream == nullptr) return;
  delete *stream;
  *stream = nullptr;
}

}  // extern "C"
