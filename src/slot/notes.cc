#include "slot/notes.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/json_text.h"
#include "slot/slot_header.h"

namespace neve::slot {
namespace {

using nlohmann::json;

void AppendDouble(double value, std::string* out) {
  if (!std::isfinite(value)) {
    out->append(std::isnan(value) ? R"({"number":"nan"})" : value > 0 ? R"({"number":"inf"})" : R"({"number":"-inf"})");
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;   // the shortest that reads back as the same
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out->append(text);
  if (text.find_first_of(".e") == std::string_view::npos) out->append(".0");    // still no whole number
}

std::optional<TagValue> DecodeTag(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || value.size() != 1) return std::nullopt;
  const auto number = value.find("number");
  if (number == value.end()) return std::nullopt;
  if (*number == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (*number == "inf") return std::numeric_limits<double>::infinity();
  if (*number == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

absl::Status CheckText(std::string_view text, std::string_view what) {
  if (codec::IsValidUtf8(text)) return absl::OkStatus();
  return Invalid(std::string(what) + " is not valid UTF-8");
}

}  // namespace

// Written on the step path: one allocation, by hand.
absl::StatusOr<std::string> EncodeNotes(const Tags& tags, const std::map<std::string, std::string>& provenance) {
  std::string out;
  out.reserve(512);
  out.append("{\"tags\":{");
  for (bool first = true; const auto& [name, value] : tags) {
    NEVE_RETURN_IF_ERROR(CheckText(name, "a tag's name"));
    if (!std::exchange(first, false)) out.push_back(',');
    format::AppendJsonString(name, &out);
    out.push_back(':');
    if (const auto* text = std::get_if<std::string>(&value)) {
      if (!codec::IsValidUtf8(*text)) return Invalid("tag '" + name + "' is not valid UTF-8");
      format::AppendJsonString(*text, &out);
    } else if (const auto* number = std::get_if<double>(&value)) {
      AppendDouble(*number, &out);
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      format::AppendNumber(*integer, &out);
    } else {
      out.append(std::get<bool>(value) ? "true" : "false");
    }
  }
  out.append("},\"provenance\":{");
  for (bool first = true; const auto& [name, text] : provenance) {
    NEVE_RETURN_IF_ERROR(CheckText(name, "a name in the provenance"));
    if (!codec::IsValidUtf8(text)) return Invalid("provenance '" + name + "' is not valid UTF-8");
    if (!std::exchange(first, false)) out.push_back(',');
    format::AppendJsonString(name, &out);
    out.push_back(':');
    format::AppendJsonString(text, &out);
  }
  out.append("}}");
  if (out.size() > kNotesBytesMax) {
    return Invalid(absl::StrFormat("tags and provenance take %d bytes as text, the limit is %d: shorten the tags", out.size(),
                                   kNotesBytesMax));
  }
  return out;
}

absl::StatusOr<Notes> DecodeNotes(std::string_view text) {
  const json root = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Damaged("tags and provenance are not a JSON object");
  const auto tags = root.find("tags"), provenance = root.find("provenance");
  if (tags == root.end() || !tags->is_object() || provenance == root.end() || !provenance->is_object()) {
    return Damaged("tags or provenance are missing");
  }
  Notes notes;
  for (const auto& [name, value] : tags->items()) {
    std::optional<TagValue> tag = DecodeTag(value);
    if (!tag) return Damaged("tag '" + name + "' is of an unknown kind");
    notes.tags[name] = *std::move(tag);
  }
  for (const auto& [name, value] : provenance->items()) {
    if (!value.is_string()) return Damaged("provenance '" + name + "' is not a text");
    notes.provenance[name] = value.get<std::string>();
  }
  return notes;
}

}  // namespace neve::slot
