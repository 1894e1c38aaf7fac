#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/files.h"

namespace neve::cli {
namespace {

Json DifferenceJson(const Difference& difference) {
  const bool values = difference.what == "values";
  Json json;
  json["name"] = difference.name;
  json["what"] = difference.what;
  json["count"] = values ? Json(difference.count) : Json(nullptr);
  json["max_abs"] = values && difference.not_finite < difference.count ? Json(difference.max_abs) : Json(nullptr);
  json["first_index"] = values ? Json(difference.first_index) : Json(nullptr);
  json["not_finite"] = values ? Json(difference.not_finite) : Json(nullptr);
  json["a"] = values || difference.a.empty() ? Json(nullptr) : Json(difference.a);
  json["b"] = values || difference.b.empty() ? Json(nullptr) : Json(difference.b);
  return json;
}

std::string Words(const Difference& difference) {
  if (difference.what != "values") {
    const auto side = [](const std::string& text) { return text.empty() ? std::string("nothing") : EscapedMessage(text); };
    return absl::StrFormat("%s: %s, %s", difference.what, side(difference.a), side(difference.b));
  }
  std::string text = absl::StrFormat("%s", Counted(difference.count, "value"));
  if (!difference.first_index.empty()) text += ", first at " + HumanShape(difference.first_index);
  if (difference.not_finite < difference.count) text += absl::StrFormat(", by %.4g at most", difference.max_abs);
  if (difference.not_finite > 0) text += absl::StrFormat(", %d by NaN or Inf", difference.not_finite);
  return text;
}

}  // namespace

int RunDiff(Console& console, const std::vector<std::string>& places, const SourceOptions& options) {
  if (places.size() != 2) {
    console.Error(Invalid(absl::StrFormat("diff compares two places, %d given", places.size())));
    return 2;
  }
  const auto progress = console.ProgressOf("diff");
  const absl::StatusOr<DiffReport> report = DiffPlaces(places[0], places[1], options, progress);
  console.EndProgress();
  if (!report.ok()) {
    console.Error(report.status());
    return ExitCodeOf(report.status());
  }
  for (const std::string& note : report->notes) console.Note(note);
  for (const std::string& name : report->only_a) {
    console.Out(absl::StrFormat("%s %s\n", console.Styled("only in A", Style::kBad), Escaped(name)));
  }
  for (const std::string& name : report->only_b) {
    console.Out(absl::StrFormat("%s %s\n", console.Styled("only in B", Style::kGood), Escaped(name)));
  }
  for (const Difference& difference : report->changed) {
    console.Out(absl::StrFormat("%s %s\n    %s\n", console.Styled("changed", Style::kWarn), Escaped(difference.name),
                                Words(difference)));
  }
  const std::string compared = absl::StrFormat("%s compared, %s", Counted(report->compared_tensors, "tensor"),
                                               HumanBytes(report->compared_bytes));
  if (report->equal()) {
    console.Out(absl::StrFormat("%s; %s\n", console.Styled("no difference", Style::kGood), compared));
  } else {
    console.Out(absl::StrFormat("%d only in A, %d only in B, %d changed; %s\n", report->only_a.size(), report->only_b.size(),
                                report->changed.size(), compared));
  }
  if (console.json) {
    Json document;
    document["equal"] = report->equal();
    document["only_a"] = report->only_a;
    document["only_b"] = report->only_b;
    document["changed"] = Json::array();
    for (const Difference& difference : report->changed) document["changed"].push_back(DifferenceJson(difference));
    document["notes"] = report->notes;
    console.Document(document);
  }
  return report->equal() ? 0 : 1;
}

}  // namespace neve::cli
