#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {

int RunGc(Console& console, const std::vector<std::string>& places, std::optional<uint64_t> keep, bool dry_run) {
  int code = 0;
  uint64_t bytes = 0;
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const std::string& place : places) {
    absl::StatusOr<GcReport> report = CollectGarbage(place, {.dry_run = dry_run, .keep = keep});
    if (!report.ok()) {
      console.Error(report.status());
      code = std::max(code, ExitCodeOf(report.status()));
      continue;
    }
    code = std::max(code, ExitCodeOf(report->worst));
    for (const GcReport::Item& item : report->items) {
      const bool goes = item.outcome == "removed" || item.outcome == "would remove";
      if (goes) bytes += item.bytes;
      rows.push_back({goes ? item.outcome : "kept", item.what, HumanBytes(item.bytes), Escaped(item.path)});
      if (!goes) rows.push_back({"", "", "", "  " + EscapedMessage(item.outcome)});
      Json json;
      json["path"] = item.path;
      json["what"] = item.what;
      json["bytes"] = item.bytes;
      json["outcome"] = item.outcome;
      list.push_back(std::move(json));
    }
  }
  console.Out(Table(rows, {2}));
  console.Out(rows.empty() ? "nothing to remove\n"
                           : absl::StrFormat("%s %s\n", HumanBytes(bytes), dry_run ? "would be freed" : "freed"));
  if (console.json) {
    Json document;
    document["dry_run"] = dry_run;
    document["bytes"] = bytes;
    document["items"] = std::move(list);
    console.Document(document);
  }
  return code;
}

}  // namespace neve::cli
