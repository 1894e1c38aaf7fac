// Places of the C API over the C++ one: conversions only.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "capi/handles.h"
#include "neve/neve.h"
#include "neve/places.h"

using neve::capi::Dump;
using neve::capi::GiveString;
using neve::capi::Guarded;
using neve::capi::Json;

namespace {

absl::Status Begin(const char* place, neve_string** json) {
  if (json != nullptr) *json = nullptr;
  return place == nullptr ? neve::Invalid("the place is null") : absl::OkStatus();
}

void Give(neve_string** json, const Json& document) {
  if (json != nullptr) GiveString(json, Dump(document));
}

template <typename Item>
Json ListOf(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(Json::parse(neve::ToJson(item)));
  return list;
}

// What the first problem says; structure before digests.
absl::Status Verdict(const neve::VerifyReport& report) {
  if (!report.worst.ok()) return report.worst;
  if (report.ok) return absl::OkStatus();
  const std::string text =
      report.problems.empty() ? "it does not verify" : report.problems.front().file + ": " + report.problems.front().message;
  return report.structural ? neve::Damaged(text) : neve::DataLoss(text);
}

}  // namespace

extern "C" {

neve_code neve_place_list(const char* place, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_RETURN_IF_ERROR(Begin(place, json));
    NEVE_ASSIGN_OR_RETURN(const neve::ListReport report, neve::ListSaves(place));
    Give(json, {{"saves", ListOf(report.saves)}, {"notes", report.notes}});
    return report.worst;
  });
}

neve_code neve_place_verify(const char* place, int64_t step, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_RETURN_IF_ERROR(Begin(place, json));
    NEVE_ASSIGN_OR_RETURN(const neve::VerifyReport report, neve::VerifyPlace(place, step, {}));
    Give(json, {{"ok", report.ok},
                {"checked_bytes", report.checked_bytes},
                {"problems", ListOf(report.problems)},
                {"notes", report.notes}});
    return Verdict(report);
  });
}

neve_code neve_place_recover(const char* place, const char* to, int dry_run, int adopt, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_RETURN_IF_ERROR(Begin(place, json));
    const neve::RecoverOptions options{.to = to == nullptr ? "" : to, .dry_run = dry_run != 0, .adopt = adopt != 0};
    NEVE_ASSIGN_OR_RETURN(const neve::RecoverReport report, neve::RecoverPlace(place, options, {}));
    Give(json, {{"items", ListOf(report.items)}});
    return report.worst;
  });
}

neve_code neve_place_gc(const char* place, int64_t keep, int dry_run, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_RETURN_IF_ERROR(Begin(place, json));
    neve::GcOptions options{.dry_run = dry_run != 0, .keep = std::nullopt};
    if (keep >= 0) options.keep = static_cast<uint64_t>(keep);
    NEVE_ASSIGN_OR_RETURN(const neve::GcReport report, neve::CollectGarbage(place, options));
    uint64_t bytes = 0;
    for (const neve::GcReport::Item& item : report.items) {
      if (item.outcome == "removed" || item.outcome == "would remove") bytes += item.bytes;
    }
    Give(json, {{"dry_run", options.dry_run}, {"bytes", bytes}, {"items", ListOf(report.items)}});
    return report.worst;
  });
}

}  // extern "C"
