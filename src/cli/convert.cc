#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/files.h"

namespace neve::cli {

int RunConvert(Console& console, const std::vector<std::string>& places, const ConvertOptions& options) {
  if (places.size() != 2) {
    console.Error(Invalid(absl::StrFormat("convert takes IN and OUT, %d places given", places.size())));
    return 2;
  }
  const auto progress = console.ProgressOf("convert");
  const absl::StatusOr<ConvertReport> report = ConvertPlace(places[0], places[1], options, progress);
  console.EndProgress();
  if (!report.ok()) {
    console.Error(report.status());
    return ExitCodeOf(report.status());
  }
  for (const std::string& note : report->notes) console.Note(note);
  for (const std::string& path : report->dropped) console.Note(absl::StrFormat("left out %s", path));
  console.Out(absl::StrFormat("%s (%s) -> %s (%s): %s, %s\n", Escaped(places[0]), report->from, Escaped(places[1]), report->to,
                              Counted(report->tensors, "tensor"), HumanBytes(report->bytes)));
  if (console.json) {
    Json document;
    document["in"] = places[0];
    document["out"] = places[1];
    document["from"] = report->from;
    document["to"] = report->to;
    document["tensors"] = report->tensors;
    document["bytes"] = report->bytes;
    document["dropped"] = report->dropped;
    document["notes"] = report->notes;
    console.Document(document);
  }
  return 0;
}

int RunCp(Console& console, const std::vector<std::string>& places, int64_t step) {
  if (places.size() != 2) {
    console.Error(Invalid(absl::StrFormat("cp takes two places, %d given", places.size())));
    return 2;
  }
  const auto progress = console.ProgressOf("cp");
  const absl::StatusOr<CopyReport> report = CopySave(places[0], places[1], step, progress);
  console.EndProgress();
  if (!report.ok()) {
    console.Error(report.status());
    return ExitCodeOf(report.status());
  }
  for (const std::string& note : report->notes) console.Note(note);
  console.Out(absl::StrFormat("%s: %s, %s, %s\n", Escaped(report->to), Counted(report->images, "image"), HumanBytes(report->bytes),
                              report->already_there ? "was there already and is whole" : "copied and verified on both sides"));
  if (console.json) {
    Json document;
    document["from"] = report->from;
    document["to"] = report->to;
    document["images"] = report->images;
    document["bytes"] = report->bytes;
    document["already_there"] = report->already_there;
    document["notes"] = report->notes;
    console.Document(document);
  }
  return 0;
}

}  // namespace neve::cli
