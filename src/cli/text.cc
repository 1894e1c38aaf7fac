#include "cli/text.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"

namespace neve::cli {
namespace {

// Bytes of the UTF-8 sequence that begins here, by its first byte; 1 for what begins none.
size_t SequenceBytes(unsigned char first) {
  if (first >= 0xf0) return 4;
  if (first >= 0xe0) return 3;
  if (first >= 0xc0) return 2;
  return 1;
}

uint32_t Decode(std::string_view sequence) {
  const unsigned char first = static_cast<unsigned char>(sequence[0]);
  uint32_t point = sequence.size() == 1 ? first : first & (0xffu >> (sequence.size() + 1));
  for (size_t i = 1; i < sequence.size(); ++i) point = (point << 6) | (static_cast<unsigned char>(sequence[i]) & 0x3fu);
  return point;
}

// Characters that move, reorder or hide what a terminal shows.
bool IsTreacherous(uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0xad || point == 0x61c ||
         (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
         (point >= 0x2060 && point <= 0x206f) || point == 0xfeff || (point >= 0xfff9 && point <= 0xfffb) ||
         (point >= 0xe0000 && point <= 0xe007f);
}

std::string EscapeOf(uint32_t point) {
  if (point == '\n') return "\\n";
  if (point == '\t') return "\\t";
  if (point == '\r') return "\\r";
  if (point < 0x100) return absl::StrFormat("\\x%02x", point);
  if (point < 0x10000) return absl::StrFormat("\\u%04x", point);
  return absl::StrFormat("\\U%08x", point);
}

std::string Escape(std::string_view text, bool message) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = SequenceBytes(static_cast<unsigned char>(text[i]));
    const std::string_view sequence = text.substr(i, bytes);
    if (sequence.size() < bytes || !codec::IsValidUtf8(sequence)) {
      out += absl::StrFormat("\\x%02x", static_cast<unsigned char>(text[i]));
      ++i;
      continue;
    }
    const uint32_t point = Decode(sequence);
    if (point == '\\' && !message) {
      out += "\\\\";
    } else if (IsTreacherous(point) && !(message && (point == '\n' || point == '\t'))) {
      out += EscapeOf(point);
    } else {
      out += sequence;
    }
    i += bytes;
  }
  return out;
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanAge(int64_t seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 60) return absl::StrFormat("%ds", seconds);
  if (seconds < 3600) return absl::StrFormat("%dm", seconds / 60);
  if (seconds < 2 * 86400) return absl::StrFormat("%dh", seconds / 3600);
  return absl::StrFormat("%dd", seconds / 86400);
}

std::string Counted(uint64_t count, std::string_view noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

std::string HumanShape(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

std::string HumanTag(const TagValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const int64_t* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const double* number = std::get_if<double>(&value)) return absl::StrFormat("%g", *number);
  return Escaped(std::get<std::string>(value));
}

std::string Escaped(std::string_view text) { return Escape(text, /*message=*/false); }
std::string EscapedMessage(std::string_view text) { return Escape(text, /*message=*/true); }

size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;   // continuation bytes take no column
  }));
}

size_t WidestLine(std::string_view lines) {
  size_t widest = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    widest = std::max(widest, Width(lines.substr(at, end - at)));
    at = end + 1;
  }
  return widest;
}

std::string Shortened(std::string_view text, size_t width) {
  const size_t columns = Width(text);
  if (columns <= width || width < 5) return std::string(text);
  const size_t head = (width - 3) / 2, tail = width - 3 - head;
  std::vector<size_t> starts;   // of each character
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  }
  return std::string(text.substr(0, starts[head])) + "..." + std::string(text.substr(starts[columns - tail]));
}

std::string Wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  std::string line;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!line.empty() && indent + Width(line) + 1 + Width(word) > width) {
      out += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
    at = end + 1;
  }
  return out + std::string(indent, ' ') + line + "\n";
}

std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& right) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - Width(row[i]), ' ');
      const bool to_right = std::find(right.begin(), right.end(), i) != right.end();
      if (i > 0) line += "  ";
      line += to_right ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace neve::cli
