#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/places.h"

namespace neve::cli {
namespace {

std::string ProblemText(const Problem& problem, const Console& console) {
  std::string where;
  if (!problem.tensor.empty()) where += absl::StrFormat(", tensor %s", Escaped(problem.tensor));
  if (problem.chunk >= 0) where += absl::StrFormat(", chunk %d", problem.chunk);
  if (problem.offset >= 0) where += absl::StrFormat(", offset %d", problem.offset);
  return absl::StrFormat("%s %s%s\n    %s\n", console.Styled(problem.code, Style::kBad), Escaped(problem.file), where,
                         EscapedMessage(problem.message));
}

// Structure before digests, and what could not be read at all above both.
int CodeOf(const VerifyReport& report) {
  int code = report.ok ? 0 : 1;
  const bool only_io = std::all_of(report.problems.begin(), report.problems.end(),
                                   [](const Problem& problem) { return problem.code == "io"; });
  if (only_io) code = 0;
  if (report.structural) code = 4;
  return std::max(code, ExitCodeOf(report.worst));
}

}  // namespace

int RunVerify(Console& console, const std::vector<std::string>& places, int64_t step, int64_t rank) {
  int code = 0;
  bool ok = true;
  uint64_t checked_bytes = 0;
  Json problems = Json::array(), notes = Json::array();
  for (const std::string& place : places) {
    const auto progress = console.ProgressOf("verify");
    absl::StatusOr<VerifyReport> report = VerifyPlace(place, step, progress, rank);
    console.EndProgress();
    if (!report.ok()) {
      console.Error(report.status());
      const int trouble = ExitCodeOf(report.status());
      code = std::max(code, trouble);
      ok = false;
      problems.push_back(Json::parse(ToJson(Problem{trouble == 3 ? "kind" : "unreachable", place, place, "", -1, -1,
                                                    std::string(report.status().message())})));
      continue;
    }
    for (const Problem& problem : report->problems) {
      console.Out(ProblemText(problem, console));
      problems.push_back(Json::parse(ToJson(problem)));
    }
    for (const std::string& note : report->notes) {
      console.Note(note);
      notes.push_back(note);
    }
    ok = ok && report->ok;
    checked_bytes += report->checked_bytes;
    code = std::max(code, CodeOf(*report));
    console.Out(absl::StrFormat("%s %s, %s checked\n", Escaped(place),
                                report->ok ? console.Styled("ok", Style::kGood)
                                           : console.Styled(Counted(report->problems.size(), "problem"), Style::kBad),
                                HumanBytes(report->checked_bytes)));
  }
  if (console.json) {
    Json document;
    document["ok"] = ok;
    document["checked_bytes"] = checked_bytes;
    document["problems"] = std::move(problems);
    document["notes"] = std::move(notes);
    console.Document(document);
  }
  return code;
}

}  // namespace neve::cli
