#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {
namespace {

Json SaveJson(const SaveInfo& save, int64_t now) {
  Json json = Json::parse(ToJson(save));
  json["age"] = save.time == 0 ? Json(nullptr) : Json(std::max<int64_t>(0, now - save.time));
  return json;
}

std::string TiersOf(const SaveInfo& save) {
  std::string tiers;
  for (const auto& [name, where] : save.tiers) tiers += (tiers.empty() ? "" : ",") + name + (where.complete ? "" : "*");
  return tiers;
}

std::string RanksOf(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < 6; ++i) text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  if (ranks.size() > 6) text += ",...";
  return text;
}

std::vector<std::string> Row(const SaveInfo& save, int64_t now) {
  std::string remarks = save.complete ? "" : save.missing_ranks.empty()
                            ? save.reason
                            : absl::StrFormat("lacks rank %s of %d", RanksOf(save.missing_ranks), save.world);
  if (save.pinned) remarks += std::string(remarks.empty() ? "" : ", ") + "pinned";
  for (const auto& [name, value] : save.tags) {
    remarks += std::string(remarks.empty() ? "" : ", ") + Escaped(name) + "=" + HumanTag(value);
  }
  return {std::to_string(save.step), save.save.ToString(), save.complete ? "complete" : "incomplete", TiersOf(save),
          HumanBytes(save.bytes), save.time == 0 ? "-" : HumanAge(now - save.time), Escaped(save.job), EscapedMessage(remarks)};
}

}  // namespace

int RunLs(Console& console, const std::vector<std::string>& places) {
  int code = 0;
  std::vector<SaveInfo> saves;
  for (const std::string& place : places) {
    absl::StatusOr<ListReport> report = ListSaves(place);
    if (!report.ok()) {
      console.Error(report.status());
      code = std::max(code, ExitCodeOf(report.status()));
      continue;
    }
    for (const std::string& note : report->notes) console.Note(note);
    code = std::max(code, ExitCodeOf(report->worst));
    std::move(report->saves.begin(), report->saves.end(), std::back_inserter(saves));
  }
  const int64_t now = console.WallSeconds();
  std::vector<std::vector<std::string>> rows;
  // A line a save: the heading is for eyes only, so that pipes may count.
  if (console.out_is_terminal() && !saves.empty()) {
    rows.push_back({"STEP", "SAVE", "STATE", "TIERS", "SIZE", "AGE", "JOB", ""});
  }
  for (const SaveInfo& save : saves) rows.push_back(Row(save, now));
  console.Out(Table(rows, {0, 4, 5}));
  if (console.json) {
    Json list = Json::array();
    for (const SaveInfo& save : saves) list.push_back(SaveJson(save, now));
    console.Document({{"saves", std::move(list)}});
  }
  return code;
}

}  // namespace neve::cli
