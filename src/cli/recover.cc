#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {

int RunRecover(Console& console, const std::vector<std::string>& places, const RecoverArguments& arguments) {
  int code = 0;
  std::vector<RecoverReport::Item> items;
  for (const std::string& place : places) {
    const auto progress = console.ProgressOf("recover");
    absl::StatusOr<RecoverReport> report =
        RecoverPlace(place, {.to = arguments.to, .dry_run = arguments.dry_run, .adopt = arguments.adopt}, progress);
    console.EndProgress();
    if (!report.ok()) {
      console.Error(report.status());
      code = std::max(code, ExitCodeOf(report.status()));
      continue;
    }
    code = std::max(code, ExitCodeOf(report->worst));
    if (report->items.empty()) console.Note(place + ": nothing in RAM to recover");
    std::move(report->items.begin(), report->items.end(), std::back_inserter(items));
  }
  std::vector<std::vector<std::string>> rows;
  Json list = Json::array();
  for (const RecoverReport::Item& item : items) {
    rows.push_back({std::to_string(item.key.step), item.key.save.ToString(),
                    absl::StrFormat("rank %d of %d", item.key.rank, item.key.world), item.state, HumanBytes(item.bytes),
                    Escaped(item.job), EscapedMessage(item.outcome)});
    list.push_back(Json::parse(ToJson(item)));
  }
  console.Out(Table(rows, {0, 4}));
  if (console.json) console.Document({{"items", std::move(list)}});
  return code;
}

}  // namespace neve::cli
