// Tier strings: TIER ":" [PLACE] ["?" key=value {"&" key=value}], split at the first "?", percent-decoded.
#include <charconv>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "neve/engine.h"

namespace neve {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

absl::StatusOr<std::string> PercentDecode(std::string_view text, std::string_view whole) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? HexValue(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexValue(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return Invalid(absl::StrFormat("tier \"%s\": \"%%\" must be followed by two hex digits; write a plain %% as %%25", whole));
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

absl::StatusOr<uint64_t> Count(std::string_view key, const std::string& value, uint64_t least, std::string_view whole) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least) {
    return Invalid(absl::StrFormat("tier \"%s\": %s=%s: want a whole number of at least %d", whole, key, value, least));
  }
  return number;
}

// BYTES with K M G T, powers of 1024; "/s" may follow a rate.
absl::StatusOr<uint64_t> Bytes(std::string_view key, std::string value, std::string_view whole) {
  const std::string given = value;
  if (value.size() > 2 && value.ends_with("/s")) value.resize(value.size() - 2);
  uint64_t factor = 1;
  if (!value.empty()) {
    constexpr std::string_view kUnits = "KMGT";
    const size_t unit = kUnits.find(value.back() >= 'a' && value.back() <= 'z' ? value.back() - 32 : value.back());
    if (unit != std::string_view::npos) {
      factor = uint64_t{1} << (10 * (unit + 1));
      value.pop_back();
    }
  }
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number == 0 || number > ~uint64_t{0} / factor) {
    return Invalid(absl::StrFormat("tier \"%s\": %s=%s: want bytes such as 500M or 2G", whole, key, given));
  }
  return number * factor;
}

absl::Status SetOption(TierConfig& config, const std::string& key, const std::string& value, std::string_view whole) {
  if (key == "every") {
    NEVE_ASSIGN_OR_RETURN(config.every, Count(key, value, 1, whole));
  } else if (key == "keep") {
    if (value == "all") {
      config.keep.reset();
    } else {
      NEVE_ASSIGN_OR_RETURN(config.keep, Count(key, value, 1, whole));
    }
  } else if (key == "best") {
    const size_t last = value.rfind(':');
    const size_t middle = last == std::string::npos || last == 0 ? std::string::npos : value.rfind(':', last - 1);
    const std::string order = middle == std::string::npos ? "" : value.substr(middle + 1, last - middle - 1);
    if (middle == std::string::npos || middle == 0 || (order != "min" && order != "max")) {
      return Invalid(absl::StrFormat("tier \"%s\": best=%s: want TAG:min:N or TAG:max:N", whole, value));
    }
    config.best_tag = value.substr(0, middle);
    config.best_is_max = order == "max";
    NEVE_ASSIGN_OR_RETURN(config.best_count, Count(key, value.substr(last + 1), 1, whole));
  } else if (key == "rate") {
    NEVE_ASSIGN_OR_RETURN(config.rate_bytes_per_s, Bytes(key, value, whole));
  } else if (key == "timeout") {
    char* end = nullptr;
    config.timeout_s = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !std::isfinite(config.timeout_s) || config.timeout_s <= 0) {
      return Invalid(absl::StrFormat("tier \"%s\": timeout=%s: want seconds above 0", whole, value));
    }
  } else if (key == "slots" && config.kind == TierKind::kRam) {
    NEVE_ASSIGN_OR_RETURN(config.slots, Count(key, value, 1, whole));
  } else if (key == "bytes" && config.kind == TierKind::kRam) {
    NEVE_ASSIGN_OR_RETURN(config.bytes, Bytes(key, value, whole));
  } else if (key == "copies" && config.kind == TierKind::kPeer) {
    NEVE_ASSIGN_OR_RETURN(config.copies, Count(key, value, 1, whole));
  } else {
    return Invalid(absl::StrFormat("tier \"%s\": unknown option \"%s\" for %s; known are every, keep, best, rate, timeout%s",
                                   whole, key, Name(config.kind), config.kind == TierKind::kRam ? ", slots, bytes" : ""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TierConfig> ParseTier(std::string_view text) {
  TierConfig config;
  const size_t question = text.find('?');
  const std::string_view head = text.substr(0, question);
  const size_t colon = head.find(':');
  if (colon == std::string_view::npos) {
    return Invalid(
        absl::StrFormat("tier \"%s\": want TIER:[PLACE][?key=value&...], such as ram: or file:/nvme/ckpt?every=10", text));
  }
  const std::string_view kind = head.substr(0, colon);
  if (kind == "ram") {
    config.kind = TierKind::kRam;
  } else if (kind == "file") {
    config.kind = TierKind::kFile;
  } else if (kind == "peer" || kind == "s3") {
    return Unsupported(absl::StrFormat("tier \"%s\": %s tiers are not in this version of neve; use ram: and file:", text, kind));
  } else {
    return Invalid(
        absl::StrFormat("tier \"%s\": unknown tier \"%s\"; known are ram, file (peer and s3 are reserved)", text, kind));
  }
  NEVE_ASSIGN_OR_RETURN(config.place, PercentDecode(head.substr(colon + 1), text));
  if (config.kind == TierKind::kFile && config.place.empty()) {
    return Invalid(absl::StrFormat("tier \"%s\": a file tier needs the folder that holds the jobs, file:/nvme/ckpt", text));
  }
  if (config.kind == TierKind::kRam && !config.place.empty()) {
    return Invalid(absl::StrFormat("tier \"%s\": the RAM tier takes no place; set NEVE_RAM_DIR to move it", text));
  }
  std::string_view rest = question == std::string_view::npos ? std::string_view() : text.substr(question + 1);
  std::set<std::string> known;
  while (!rest.empty()) {
    const size_t amp = rest.find('&');
    const std::string_view pair = rest.substr(0, amp);
    rest = amp == std::string_view::npos ? std::string_view() : rest.substr(amp + 1);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return Invalid(absl::StrFormat("tier \"%s\": \"%s\" is not key=value", text, pair));
    NEVE_ASSIGN_OR_RETURN(const std::string key, PercentDecode(pair.substr(0, equals), text));
    NEVE_ASSIGN_OR_RETURN(const std::string value, PercentDecode(pair.substr(equals + 1), text));
    if (!known.insert(key).second) return Invalid(absl::StrFormat("tier \"%s\": %s is given twice", text, key));
    NEVE_RETURN_IF_ERROR(SetOption(config, key, value, text));
  }
  return config;
}

std::string_view Version() { return NEVE_VERSION; }

}  // namespace neve
