// What neve_save_request and the streams of a call say, as the C++ API wants it.
#ifndef NEVE_CAPI_SAVE_REQUEST_H_
#define NEVE_CAPI_SAVE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "neve/engine.h"
#include "neve/neve.h"

namespace neve::capi {

// Borrows the arrays of the request, and owns what has to be made of them. Neither copied nor moved: request points into it.
struct SaveRequestView {
  SaveRequestView() = default;
  SaveRequestView(const SaveRequestView&) = delete;
  std::vector<std::string_view> blobs;
  std::vector<DeviceStream> streams;
  SaveRequest request;
};

// Invalid: what its state needs is not there; Closed: the state is the parent's of this forked process.
absl::Status ToSaveRequest(const neve_save_request* from, SaveRequestView* view);
absl::StatusOr<std::vector<DeviceStream>> ToStreams(const int32_t* devices, void* const* handles, size_t count);
std::vector<std::string> SplitCommas(const char* text);

}  // namespace neve::capi

#endif  // NEVE_CAPI_SAVE_REQUEST_H_
