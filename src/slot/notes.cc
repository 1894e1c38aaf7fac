#include "slot/notes.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "slot/slot_header.h"

namespace neve::slot {
namespace {

using nlohmann::json;

json EncodeNumber(double value) {
  if (std::isfinite(value)) return value;
  return json{{"number", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
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

absl::StatusOr<std::string> EncodeNotes(const Tags& tags, const std::map<std::string, std::string>& provenance) {
  json encoded_tags = json::object(), encoded_provenance = json::object();
  for (const auto& [name, value] : tags) {
    NEVE_RETURN_IF_ERROR(CheckText(name, "a tag's name"));
    if (const auto* text = std::get_if<std::string>(&value)) {
      NEVE_RETURN_IF_ERROR(CheckText(*text, "tag '" + name + "'"));
      encoded_tags[name] = *text;
    } else if (const auto* number = std::get_if<double>(&value)) {
      encoded_tags[name] = EncodeNumber(*number);
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      encoded_tags[name] = *integer;
    } else {
      encoded_tags[name] = std::get<bool>(value);
    }
  }
  for (const auto& [name, text] : provenance) {
    NEVE_RETURN_IF_ERROR(CheckText(name, "a name in the provenance"));
    NEVE_RETURN_IF_ERROR(CheckText(text, "provenance '" + name + "'"));
    encoded_provenance[name] = text;
  }
  std::string encoded = json{{"tags", std::move(encoded_tags)}, {"provenance", std::move(encoded_provenance)}}.dump();
  if (encoded.size() > kNotesBytesMax) {
    return Invalid(absl::StrFormat("tags and provenance take %d bytes as text, the limit is %d: shorten the tags",
                                   encoded.size(), kNotesBytesMax));
  }
  return encoded;
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
