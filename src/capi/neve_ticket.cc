// Tickets of the C API over the C++ one: conversions only.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "capi/handles.h"
#include "capi/save_request.h"
#include "neve/engine.h"
#include "neve/neve.h"

using neve::capi::Dump;
using neve::capi::Find;
using neve::capi::GiveString;
using neve::capi::GivenTicket;
using neve::capi::Guarded;
using neve::capi::Json;
using neve::capi::Take;
using neve::capi::ToStreams;

static_assert(NEVE_STAGE_PENDING == static_cast<int>(neve::StageState::kPending));
static_assert(NEVE_STAGE_SKIPPED == static_cast<int>(neve::StageState::kSkipped));

extern "C" {

neve_code neve_ticket_wait(const neve_ticket* ticket, const char* stage, double timeout_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    return given->ticket->Wait(stage == nullptr ? "done" : stage, timeout_s);
  });
}

neve_code neve_ticket_describe(const neve_ticket* ticket, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (json == nullptr) return neve::Invalid("the place for the ticket's text is null");
    *json = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    Json document;
    document["step"] = given->ticket->step();
    document["save_id"] = given->ticket->save_id().ToString();
    auto& stages = document["stages"] = Json::object();
    for (const auto& [name, state] : given->ticket->Stages()) stages[name] = std::string(neve::Name(state));
    const absl::Status first = given->ticket->Error();
    document["error"] = nullptr;
    if (!first.ok()) {
      document["error"] = {
          {"code", static_cast<int>(first.code())}, {"message", std::string(first.message())}, {"errno", neve::ErrnoOf(first)}};
    }
    document["places"] = given->ticket->Places();
    GiveString(json, Dump(document));
    return absl::OkStatus();
  });
}

neve_code neve_ticket_fence(const neve_ticket* ticket, const int32_t* stream_devices, void* const* streams, size_t stream_count,
                            double timeout_s, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    NEVE_ASSIGN_OR_RETURN(const std::vector<neve::DeviceStream> list, ToStreams(stream_devices, streams, stream_count));
    return given->ticket->Fence(list, timeout_s);
  });
}

int neve_ticket_descriptor(const neve_ticket* ticket) {
  int descriptor = -1;
  Guarded(nullptr, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    descriptor = given->ticket->Descriptor();
    return absl::OkStatus();
  });
  return descriptor;
}

neve_code neve_ticket_poll(const neve_ticket* ticket, const char* stage, neve_stage_state* state, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (state == nullptr) return neve::Invalid("the place for the stage's state is null");
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    // Stages() names all but "complete:<tier>"; waiting for no time tells those, and which are due.
    const char* const name = stage == nullptr ? "done" : stage;
    for (const auto& [known, found] : given->ticket->Stages()) {
      if (known != name) continue;
      *state = static_cast<neve_stage_state>(found);
      return absl::OkStatus();
    }
    const absl::Status status = given->ticket->Wait(name, 0);
    if (absl::IsInvalidArgument(status)) return status;
    *state = status.ok() ? NEVE_STAGE_REACHED : absl::IsDeadlineExceeded(status) ? NEVE_STAGE_PENDING : NEVE_STAGE_FAILED;
    return absl::OkStatus();
  });
}

neve_code neve_ticket_error(const neve_ticket* ticket, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    return given->ticket->Error();
  });
}

uint64_t neve_ticket_step(const neve_ticket* ticket) {
  uint64_t step = UINT64_MAX;
  Guarded(nullptr, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<GivenTicket> given, Find<GivenTicket>(ticket));
    step = given->ticket->step();
    return absl::OkStatus();
  });
  return step;
}

void neve_ticket_destroy(neve_ticket** ticket) {
  Guarded(nullptr, [&]() -> absl::Status {
    Take<GivenTicket>(ticket);
    return absl::OkStatus();
  });
}

}  // extern "C"
