#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "format/image_header.h"

namespace neve::format {
namespace {

struct Magic {
  std::string_view bytes;
  std::string_view kind;
};

using std::string_view_literals::operator""sv;

constexpr Magic kMagics[] = {
    {"PK\x03\x04"sv, "a zip archive (a .pt file?)"},
    {"PK\x05\x06"sv, "an empty zip archive"},
    {"\x1f\x8b\x08"sv, "a gzip stream"},
    {"\x28\xb5\x2f\xfd"sv, "a zstd stream"},
    {"\xfd" "7zXZ\0"sv, "an xz stream"},
    {"BZh"sv, "a bzip2 stream"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"GGUF"sv, "a GGUF file"},
    {"%PDF-"sv, "a PDF document"},
};

bool StartsWithNoCase(std::string_view text, std::string_view lower) {
  if (text.size() < lower.size()) return false;
  return std::equal(lower.begin(), lower.end(), text.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

// The value of one line "<key> <value>" of a pointer file.
std::string_view LineValue(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + key.size());
  const std::string_view value = rest.substr(0, rest.find_first_of("\r\n"));
  const bool printable = std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return printable ? value.substr(0, 100) : "";
}

std::string LargeFilePointer(std::string_view text) {
  const std::string_view object = LineValue(text, "\noid "), size = LineValue(text, "\nsize ");
  if (object.empty() || size.empty()) return "a Git LFS pointer (fetch the file itself with git lfs pull)";
  return absl::StrFormat("a Git LFS pointer (object %s, %s bytes; fetch it with git lfs pull)", object, size);
}

}  // namespace

std::string GuessKind(std::string_view first_bytes, uint64_t file_bytes) {
  if (file_bytes == 0) return "empty";
  if (first_bytes.empty()) return "";
  if (first_bytes.starts_with("version ") && (first_bytes.size() < 9 || first_bytes.find("git-lfs") != std::string_view::npos)) {
    return LargeFilePointer(first_bytes);
  }
  for (const Magic& magic : kMagics) {
    if (first_bytes.starts_with(magic.bytes)) return std::string(magic.kind);
  }
  const std::string_view text = first_bytes.substr(std::min(first_bytes.find_first_not_of("\r\n\t "), first_bytes.size()));
  for (const std::string_view start : {"<!doctype"sv, "<!doctyp"sv, "<html"sv, "<head"sv, "<?xml"sv}) {
    if (StartsWithNoCase(text, start)) return start == "<?xml" ? "an XML document" : "an HTML page";
  }
  // Protocol 2 to 5 of Python's pickle, and what begins nearly all of them: a frame, a container, a global or a number.
  if (first_bytes.size() >= 3 && first_bytes[0] == '\x80' && first_bytes[1] >= 2 && first_bytes[1] <= 5 &&
      "\x95}](c\x8a\x8c"sv.find(first_bytes[2]) != std::string_view::npos) {
    return "a pickle (not run)";
  }
  if (first_bytes.size() > 262 && first_bytes.substr(257, 5) == "ustar") return "a tar archive";
  if (first_bytes.find_first_not_of('\0') == std::string_view::npos) return "all zeros";
  // The length of a header is never eight letters: that would be more than 2^59.
  const std::string_view start = first_bytes.substr(0, 64);
  const auto is_text = [](char c) { return (c >= ' ' && c < 0x7f) || c == '\t' || c == '\n' || c == '\r' || c == '\f'; };
  if (start.size() >= 8 && std::all_of(start.begin(), start.end(), is_text)) return "text";
  return "";
}

}  // namespace neve::format
