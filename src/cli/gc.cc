#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {
namespace {

std::string WithoutPrefix(const std::string& text, std::string_view prefix) {
  return text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text;
}

}  // namespace

int RunGc(Console& console, const std::vector<std::string>& places, std::optional<uint64_t> keep, bool dry_run) {
  int code = 0;
  uint64_t bytes = 0;
  bool looked = false;
  Json list = Json::array();
  std::string text;
  for (const std::string& place : places) {
    absl::StatusOr<GcReport> report = CollectGarbage(place, {.dry_run = dry_run, .keep = keep});
    if (!report.ok()) {
      console.Error(report.status());
      code = std::max(code, ExitCodeOf(report.status()));
      continue;
    }
    looked = true;
    code = std::max(code, ExitCodeOf(report->worst));
    for (const GcReport::Item& item : report->items) {
      const bool goes = item.outcome == "removed" || item.outcome == "would remove";
      if (goes) bytes += item.bytes;
      text += absl::StrFormat("%s %s, %s: %s\n", goes ? item.outcome : console.Styled("kept", Style::kWarn), item.what,
                              HumanBytes(item.bytes), Escaped(item.path));
      if (!goes) text += Wrapped(EscapedMessage(WithoutPrefix(item.outcome, "kept: ")), 4, console.columns());
      list.push_back(Json::parse(ToJson(item)));
    }
  }
  console.Out(text);
  if (looked) {
    console.Out(text.empty() ? "nothing to remove\n"
                             : absl::StrFormat("%s %s\n", HumanBytes(bytes), dry_run ? "would be freed" : "freed"));
  }
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
