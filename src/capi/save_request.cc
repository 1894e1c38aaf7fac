#include "capi/save_request.h"

#include <memory>

#include "capi/handles.h"

namespace neve::capi {
namespace {

absl::StatusOr<Tags> ParseTags(const char* text) {
  Tags tags;
  if (text == nullptr || *text == '\0') return tags;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Invalid("tags must be a flat JSON object");
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
      return Invalid("tag \"" + key + "\" must be a number, a string or a boolean");
    }
  }
  return tags;
}

}  // namespace

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

absl::StatusOr<std::vector<DeviceStream>> ToStreams(const int32_t* devices, void* const* handles, size_t count) {
  std::vector<DeviceStream> streams;
  if (count != 0 && (devices == nullptr || handles == nullptr)) {
    return Invalid("streams are counted, and their devices or they are null");
  }
  for (size_t i = 0; i < count; ++i) streams.push_back({devices[i], handles[i]});
  return streams;
}

absl::Status ToSaveRequest(const neve_save_request* given, SaveRequestView* view) {
  NEVE_ASSIGN_OR_RETURN(const neve_save_request from,
                        Adopt(given, offsetof(neve_save_request, stream_devices), "NEVE_SAVE_REQUEST_INIT"));
  NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<DescribedState> state, Find<DescribedState>(from.state));
  NEVE_ASSIGN_OR_RETURN(view->streams, ToStreams(from.stream_devices, from.streams, from.stream_count));
  if ((state->tensor_count != 0 && from.addresses == nullptr) ||
      (state->blob_count != 0 && (from.blobs == nullptr || from.blob_bytes == nullptr)) ||
      (from.values_bytes != 0 && from.values == nullptr)) {
    return Invalid("the save request lacks addresses, values or blobs that its state has");
  }
  for (uint32_t i = 0; i < state->blob_count; ++i) {
    if (from.blobs[i] == nullptr && from.blob_bytes[i] != 0) {
      return Invalid("blob " + std::to_string(i) + " has bytes, and its address is null");
    }
    view->blobs.emplace_back(static_cast<const char*>(from.blobs[i]), from.blob_bytes[i]);
  }
  SaveRequest& to = view->request;
  to.streams = view->streams;
  to.fence = from.fence != 0;
  if (from.fenced != nullptr) to.fenced = {from.fenced, state->tensor_count};
  to.step = from.step;
  to.state = state->state;
  to.addresses = {from.addresses, state->tensor_count};
  to.values = {from.values, from.values_bytes};
  to.blobs = view->blobs;
  NEVE_ASSIGN_OR_RETURN(to.tags, ParseTags(from.tags_json));
  to.to = SplitCommas(from.to);
  to.slot_timeout_s = from.slot_timeout_s;
  return absl::OkStatus();
}

}  // namespace neve::capi
