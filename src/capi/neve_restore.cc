// neve_engine_restore over the C++ one: conversions only.
#include <cstdint>
#include <memory>

#include "base/error/status.h"
#include "capi/handles.h"
#include "capi/save_request.h"
#include "neve/neve.h"
#include "neve/restore.h"

using neve::capi::Adopt;
using neve::capi::DescribedState;
using neve::capi::Find;
using neve::capi::Give;
using neve::capi::Guarded;
using neve::capi::OpenEngine;
using neve::capi::OpenImage;
using neve::capi::SplitCommas;
using neve::capi::SplitLines;

extern "C" neve_code neve_engine_restore(neve_engine* engine, const neve_restore_request* request, neve_image** image,
                                         neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (image != nullptr) *image = nullptr;
    NEVE_ASSIGN_OR_RETURN(const neve_restore_request from, Adopt(request, sizeof(neve_restore_request), "NEVE_RESTORE_REQUEST_INIT"));
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenEngine> open, Find<OpenEngine>(engine));
    neve::RestoreRequest to;
    if (from.step >= 0) to.find.step = static_cast<uint64_t>(from.step);
    to.find.allow_missing = SplitCommas(from.allow_missing);
    to.find.take_rank0 = SplitLines(from.take_rank0);
    to.find.fallback = from.fallback != 0;
    to.include = SplitLines(from.include);
    to.atomic = from.atomic != 0;
    to.partial = from.partial != 0;
    to.only_state = image == nullptr;   // nobody asks what else is in it
    if (from.state != nullptr) {
      NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<DescribedState> state, Find<DescribedState>(from.state));
      if (state->tensor_count != 0 && from.targets == nullptr) return neve::Invalid("a state is to be filled, and its targets are null");
      to.state = state->state;
      to.targets = {from.targets, state->tensor_count};
      if (from.restored != nullptr) to.restored = {from.restored, state->tensor_count};
    }
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Image> found, neve::RestoreInto(*open->engine, to));
    if (image != nullptr) *image = Give(std::make_shared<OpenImage>(std::move(found)));
    return absl::OkStatus();
  });
}
