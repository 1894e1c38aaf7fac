#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/files.h"

namespace neve::cli {
namespace {

bool IsWhole(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64:
    case DType::kBits8:
    case DType::kBits16:
    case DType::kQI8:
    case DType::kQU8:
    case DType::kQI32: return true;
    default: return false;
  }
}

Json WholeJson(long double number) { return number < 0 ? Json(static_cast<int64_t>(number)) : Json(static_cast<uint64_t>(number)); }

Json TensorJson(const TensorStats& stats) {
  // JSON has no infinity; the deviation of finite doubles can exceed them.
  const auto number = [&](long double value, bool whole) {
    if (stats.finite == 0 || !std::isfinite(static_cast<double>(value))) return Json(nullptr);
    return whole ? WholeJson(value) : Json(static_cast<double>(value));
  };
  const bool whole = IsWhole(stats.dtype);
  Json json;
  json["name"] = stats.name;
  json["dtype"] = std::string(Name(stats.dtype));
  json["shape"] = stats.shape;
  json["bytes"] = stats.bytes;
  json["min"] = number(stats.min, whole);
  json["max"] = number(stats.max, whole);
  json["mean"] = number(stats.mean, false);
  json["std"] = number(stats.std, false);
  json["zeros"] = stats.zeros;
  json["nan"] = stats.nan;
  json["inf"] = stats.inf;
  json["digest"] = stats.digest;
  return json;
}

std::string HumanNumber(long double value, bool whole) {
  if (whole && std::fabs(value) < 1e7L) return absl::StrFormat("%.0f", static_cast<double>(value));
  return absl::StrFormat("%.4g", static_cast<double>(value));
}

std::vector<std::string> Numbers(const TensorStats& stats) {
  const bool whole = IsWhole(stats.dtype), any = stats.finite > 0;
  const auto number = [&](long double value, bool is_whole) { return any ? HumanNumber(value, is_whole) : std::string("-"); };
  return {std::string(Name(stats.dtype)), number(stats.min, whole), number(stats.max, whole), number(stats.mean, false),
          number(stats.std, false)};
}

std::string Remarks(const TensorStats& stats) {
  std::string text;
  const auto add = [&](uint64_t count, const char* what) {
    if (count > 0) text += absl::StrFormat("%s%d %s", text.empty() ? "" : ", ", count, what);
  };
  add(stats.zeros, "zero");
  add(stats.nan, "NaN");
  add(stats.inf, "Inf");
  return text;
}

// A line a tensor where all of them fit the columns; else the name on a line of its own, above its numbers, and remarks that would not
// fit there on another. Only a name may be longer than a line, where it is not a terminal that shows it.
std::string StatsTable(const std::vector<TensorStats>& tensors, const Console& console) {
  if (tensors.empty()) return "";
  std::vector<std::vector<std::string>> numbers = {{"DTYPE", "MIN", "MAX", "MEAN", "STD"}};
  std::vector<std::string> names = {"NAME"}, remarks = {""};
  for (const TensorStats& stats : tensors) {
    numbers.push_back(Numbers(stats));
    names.push_back(Escaped(stats.name));
    remarks.push_back(Remarks(stats));
  }
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(names[i]);
    row.insert(row.end(), numbers[i].begin(), numbers[i].end());
    row.push_back(remarks[i]);
  }
  const size_t columns = console.columns();
  const std::string table = Table(rows, {2, 3, 4, 5});
  if (WidestLine(table) <= columns) return table;
  constexpr std::string_view kIndent = "    ";
  std::string text;
  const std::string lines = Table(numbers, {1, 2, 3, 4});
  for (size_t i = 0, at = 0; i < names.size(); ++i) {
    const size_t end = lines.find('\n', at);
    std::string line = std::string(kIndent) + lines.substr(at, end - at);
    at = end + 1;
    if (!remarks[i].empty()) {
      const bool fits = Width(line) + 2 + Width(remarks[i]) <= columns;
      line += (fits ? "  " : "\n" + std::string(kIndent)) + remarks[i];
    }
    text += (console.out_is_terminal() ? Shortened(names[i], columns) : names[i]) + "\n" + line + "\n";
  }
  return text;
}

}  // namespace

int RunStats(Console& console, const std::vector<std::string>& places, const SourceOptions& options) {
  int code = 0;
  Json tensors = Json::array();
  for (const std::string& place : places) {
    const auto progress = console.ProgressOf("stats");
    const absl::StatusOr<StatsReport> report = MeasurePlace(place, options, progress);
    console.EndProgress();
    if (!report.ok()) {
      console.Error(report.status());
      code = std::max(code, ExitCodeOf(report.status()));
      continue;
    }
    for (const std::string& note : report->notes) console.Note(note);
    if (places.size() > 1) console.Out(console.Styled(Escaped(place), Style::kBold) + "\n");
    uint64_t bytes = 0, nan = 0, inf = 0;
    for (const TensorStats& stats : report->tensors) {
      if (console.json) tensors.push_back(TensorJson(stats));
      bytes += stats.bytes;
      nan += stats.nan;
      inf += stats.inf;
    }
    console.Out(StatsTable(report->tensors, console));
    std::string total = absl::StrFormat("%s, %s", Counted(report->tensors.size(), "tensor"), HumanBytes(bytes));
    if (nan + inf > 0) total += ", " + console.Styled(absl::StrFormat("%d NaN, %d Inf", nan, inf), Style::kWarn);
    console.Out(total + "\n");
  }
  if (console.json) {
    Json document;
    document["tensors"] = std::move(tensors);
    console.Document(document);
  }
  return code;
}

}  // namespace neve::cli
