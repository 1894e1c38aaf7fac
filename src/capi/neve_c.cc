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
#include "capi/save_request.h"
#include "neve/engine.h"

namespace {

using neve::capi::Adopt;
using neve::capi::DescribedState;
using neve::capi::Dump;
using neve::capi::Find;
using neve::capi::Give;
using neve::capi::GiveString;
using neve::capi::GivenTicket;
using neve::capi::Guarded;
using neve::capi::Json;
using neve::capi::OpenEngine;
using neve::capi::OpenImage;
using neve::capi::SaveRequestView;
using neve::capi::SplitCommas;
using neve::capi::Take;
using neve::capi::ToSaveRequest;

static_assert(NEVE_INVALID == static_cast<int>(absl::StatusCode::kInvalidArgument));
static_assert(NEVE_TIMEOUT == static_cast<int>(absl::StatusCode::kDeadlineExceeded));
static_assert(NEVE_DAMAGED == static_cast<int>(absl::StatusCode::kOutOfRange));
static_assert(NEVE_UNSUPPORTED == static_cast<int>(absl::StatusCode::kUnimplemented));
static_assert(NEVE_CLOSED == static_cast<int>(absl::StatusCode::kFailedPrecondition));
static_assert(NEVE_DATA_LOSS == static_cast<int>(absl::StatusCode::kDataLoss));
static_assert(NEVE_ON_FULL_REPLACE == static_cast<int>(neve::OnFull::kReplace));
static_assert(NEVE_QI32 == static_cast<int>(neve::DType::kQI32));

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
  Guarded(nullptr, [&]() -> absl::Status {
    if (fn == nullptr) {
      neve::obs::SetSink(nullptr);
    } else {
      neve::obs::SetSink(
          [fn, context](neve::obs::Level level, const std::string& line) { fn(static_cast<int>(level), line.c_str(), context); });
    }
    return absl::OkStatus();
  });
}

neve_code neve_log_level_set(int level, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (level < 0 || level > static_cast<int>(neve::obs::Level::kOff)) {
      return neve::Invalid("the log has levels 0 (debug) to 4 (off), not " + std::to_string(level));
    }
    neve::obs::SetLevel(static_cast<neve::obs::Level>(level));
    return absl::OkStatus();
  });
}

void neve_reply_add(neve_reply* reply, const void* data, size_t bytes) {
  Guarded(nullptr, [&]() -> absl::Status {   // without memory the part is missing, which the group then says
    if (reply != nullptr && (data != nullptr || bytes == 0)) reply->parts.emplace_back(static_cast<const char*>(data), bytes);
    return absl::OkStatus();
  });
}

neve_code neve_engine_open(const neve_options* given, neve_engine** engine, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr) return neve::Invalid("no place for the engine");
    *engine = nullptr;
    NEVE_ASSIGN_OR_RETURN(const neve_options adopted, Adopt(given, offsetof(neve_options, replicated), "NEVE_OPTIONS_INIT"));
    const neve_options* const options = &adopted;
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
    to.replicated = options->replicated != 0;
    NEVE_RETURN_IF_ERROR(ToGroup(*options, &to.group));
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Engine> opened, neve::Engine::Open(to));
    *engine = Give(std::make_shared<OpenEngine>(OpenEngine{std::move(opened)}));
    return absl::OkStatus();
  });
}

neve_code neve_engine_close(neve_engine** engine, int final, double deadline_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (engine == nullptr || *engine == nullptr) return absl::OkStatus();
    const absl::Status known = Find<OpenEngine>(*engine).status();
    const std::shared_ptr<OpenEngine> open = Take<OpenEngine>(engine);
    if (open == nullptr) return known.ok() ? neve::Invalid("the engine was closed by another thread meanwhile") : known;
    return open->engine->Close(final != 0, deadline_s);
  });
}

void neve_engine_destroy(neve_engine** engine) {
  Guarded(nullptr, [&]() -> absl::Status {
    Take<OpenEngine>(engine);
    return absl::OkStatus();
  });
}

neve_code neve_state_create(const neve_tensors* given, const char* tree, size_t tree_bytes, uint32_t blob_count,
                            neve_state** state, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (state == nullptr) return neve::Invalid("no place for the state");
    *state = nullptr;
    NEVE_ASSIGN_OR_RETURN(const neve_tensors adopted, Adopt(given, offsetof(neve_tensors, devices), "NEVE_TENSORS_INIT"));
    const neve_tensors* const tensors = &adopted;
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
    if (tensors->devices != nullptr) table.devices = {tensors->devices, count};
    NEVE_ASSIGN_OR_RETURN(
        std::shared_ptr<neve::State> described,
        neve::DescribeState(table, tree == nullptr ? std::string_view() : std::string_view(tree, tree_bytes), blob_count));
    *state = Give(std::make_shared<DescribedState>(DescribedState{std::move(described), count, blob_count}));
    return absl::OkStatus();
  });
}

void neve_state_destroy(neve_state** state) {
  Guarded(nullptr, [&]() -> absl::Status {
    Take<DescribedState>(state);
    return absl::OkStatus();
  });
}

neve_code neve_engine_save(neve_engine* engine, const neve_save_request* request, neve_ticket** ticket, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    if (ticket != nullptr) *ticket = nullptr;
    SaveRequestView view;
    NEVE_RETURN_IF_ERROR(ToSaveRequest(request, &view));
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<neve::Ticket> given, open->engine->Save(view.request));
    if (ticket != nullptr) *ticket = Give(std::make_shared<GivenTicket>(GivenTicket{std::move(given)}));
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
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    SaveRequestView view;
    NEVE_RETURN_IF_ERROR(ToSaveRequest(request, &view));
    std::vector<uint64_t> blob_bytes;
    blob_bytes.reserve(view.blobs.size());
    for (std::string_view blob : view.blobs) blob_bytes.push_back(blob.size());
    return open->engine->Prepare(view.request.state, view.request.addresses, view.request.values.size(), blob_bytes);
  });
}

neve_code neve_engine_count_save(neve_engine* engine, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    open->engine->CountSave();
    return absl::OkStatus();
  });
}

neve_code neve_engine_drain(neve_engine* engine, double deadline_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    return open->engine->Drain(deadline_s);
  });
}

neve_code neve_engine_pin(neve_engine* engine, uint64_t step, int pinned, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    return open->engine->SetPinned(step, pinned != 0);
  });
}

neve_code neve_engine_steps(neve_engine* engine, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (json == nullptr) return neve::Invalid("the place for the text is null");
    *json = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    NEVE_ASSIGN_OR_RETURN(const std::vector<neve::SaveInfo> saves, open->engine->Steps());
    Json document;
    auto& list = document["saves"] = Json::array();
    for (const neve::SaveInfo& save : saves) list.push_back(Json::parse(neve::ToJson(save)));
    GiveString(json, Dump(document));
    return absl::OkStatus();
  });
}

neve_code neve_engine_health(neve_engine* engine, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (json == nullptr) return neve::Invalid("the place for the text is null");
    *json = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    GiveString(json, open->engine->HealthJson());
    return absl::OkStatus();
  });
}

neve_code neve_engine_counter(neve_engine* engine, const char* name, uint64_t* value, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (name == nullptr || value == nullptr) return neve::Invalid("the counter's name or the place for its value is null");
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    const Json health = Json::parse(open->engine->HealthJson());
    const Json& counters = health.at("counters");
    if (!counters.contains(name)) {
      return neve::NotFound(std::string("there is no counter \"") + name + "\"; docs/operations.md lists them");
    }
    *value = counters.at(name).get<uint64_t>();
    return absl::OkStatus();
  });
}

neve_code neve_engine_find(neve_engine* engine, const neve_find_request* given, neve_image** image, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (image == nullptr) return neve::Invalid("the place for the image is null");
    *image = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    neve::FindRequest find;
    if (given != nullptr) {
      NEVE_ASSIGN_OR_RETURN(const neve_find_request adopted, Adopt(given, offsetof(neve_find_request, include), "NEVE_FIND_REQUEST_INIT"));
      const neve_find_request* const request = &adopted;
      if (request->step >= 0) find.step = static_cast<uint64_t>(request->step);
      if (request->before_incarnation >= 0) {
        find.before = neve::SaveId{static_cast<uint32_t>(request->before_incarnation), request->before_sequence};
      }
      find.allow_missing = SplitCommas(request->allow_missing);
      find.fallback = request->fallback != 0;
      find.take_rank0 = neve::capi::SplitLines(request->take_rank0);
      find.include = neve::capi::SplitLinesIfAny(request->include);
    }
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Image> found, open->engine->Find(find));
    *image = Give(std::make_shared<OpenImage>(std::move(found)));
    return absl::OkStatus();
  });
}

neve_code neve_engine_agree(neve_engine* engine, int code, const char* message, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) return neve::Invalid("that is no neve_code");
    return open->engine->Agree(
        absl::Status(static_cast<absl::StatusCode>(code), code == NEVE_OK || message == nullptr ? "" : message));
  });
}

neve_code neve_engine_leave(neve_engine* engine, const char* why, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    open->engine->Leave(why == nullptr ? "" : why);
    return absl::OkStatus();
  });
}

}  // extern "C"
