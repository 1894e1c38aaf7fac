#include <algorithm>
#include <cmath>
#include <limits>

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

std::vector<std::string> Row(const TensorStats& stats, size_t name_width) {
  const bool whole = IsWhole(stats.dtype), any = stats.finite > 0;
  const auto number = [&](long double value, bool is_whole) { return any ? HumanNumber(value, is_whole) : std::string("-"); };
  std::vector<std::string> remarks = {};
  if (stats.zeros > 0) remarks.push_back(absl::StrFormat("%d zero", stats.zeros));
  if (stats.nan > 0) remarks.push_back(absl::StrFormat("%d NaN", stats.nan));
  if (stats.inf > 0) remarks.push_back(absl::StrFormat("%d Inf", stats.inf));
  std::string remark;
  for (const std::string& part : remarks) remark += (remark.empty() ? "" : ", ") + part;
  return {Shortened(Escaped(stats.name), name_width), std::string(Name(stats.dtype)), number(stats.min, whole),
          number(stats.max, whole), number(stats.mean, false), number(stats.std, false), remark};
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
    // What the other columns leave of the line; a pipe gets whole names.
    const size_t width = console.out_is_terminal() ? std::max<size_t>(20, console.columns() - std::min<size_t>(console.columns(), 56))
                                                   : std::numeric_limits<size_t>::max();
    std::vector<std::vector<std::string>> rows;
    if (!report->tensors.empty()) rows.push_back({"NAME", "DTYPE", "MIN", "MAX", "MEAN", "STD", ""});
    uint64_t bytes = 0, nan = 0, inf = 0;
    for (const TensorStats& stats : report->tensors) {
      if (console.json) tensors.push_back(TensorJson(stats));
      rows.push_back(Row(stats, width));
      bytes += stats.bytes;
      nan += stats.nan;
      inf += stats.inf;
    }
    console.Out(Table(rows, {2, 3, 4, 5}));
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
