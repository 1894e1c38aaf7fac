#include "format/npy_header.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/layout.h"

namespace neve::format {
namespace {

constexpr size_t kRankMax = 64;
constexpr std::string_view kKinds = "biufcSUMm";  // whose bytes are all there is to them

class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  absl::Status Read(NpyHeader* header) {
    bool descr = false, order = false, shape = false;
    if (!Take('{')) return Bad("it does not begin with a brace");
    while (!Take('}')) {
      std::string_view key;
      if (!Text(&key) || !Take(':')) return Bad("a key was expected");
      if (key == "descr" && !descr) {
        descr = true;
        if (!ReadDType(header)) return Bad("its dtype cannot be read");
      } else if (key == "fortran_order" && !order) {
        order = true;
        if (!ReadFlag(&header->fortran)) return Bad("fortran_order is no flag");
      } else if (key == "shape" && !shape) {
        shape = true;
        if (!ReadShape(&header->shape)) return Bad("its shape is no tuple of extents");
      } else {
        return Bad(absl::StrFormat("the key %s is unknown, or stands twice", Quoted(key)));
      }
      Take(',');
    }
    if (!descr || !order || !shape) return Bad("descr, fortran_order or shape is missing");
    SkipSpace();
    return at_ == text_.size() ? absl::OkStatus() : Bad("something follows it");
  }

 private:
  absl::Status Bad(const std::string& what) const {
    return Damaged(absl::StrFormat("the header of an array is malformed at its byte %d: %s", at_, what));
  }
  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool Take(char wanted) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool Text(std::string_view* text) {
    SkipSpace();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    *text = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return text->find('\\') == std::string_view::npos;
  }
  bool Word(std::string_view word) {
    SkipSpace();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool ReadFlag(bool* flag) {
    *flag = Word("True");
    return *flag || Word("False");
  }
  bool ReadShape(tensor::Dims* shape) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      int64_t extent = 0;
      const auto [stop, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0 || shape->size() == kRankMax) return false;
      at_ = static_cast<size_t>(stop - text_.data());
      Word("L");  // Python 2
      shape->push_back(extent);
      if (!Take(',')) return Take(')');
    }
    return true;
  }
  // A list of fields is looked past, brackets and texts being matched.
  bool ReadDType(NpyHeader* header) {
    SkipSpace();
    std::string_view text;
    if (at_ < text_.size() && text_[at_] == '[') {
      int depth = 0;
      while (at_ < text_.size()) {
        const char c = text_[at_];
        if (c == '\'' || c == '"') {
          if (!Text(&text)) return false;
          continue;
        }
        if (c == '[' || c == '(') ++depth;
        if (c == ']' || c == ')') --depth;
        ++at_;
        if (depth == 0) return true;
      }
      return false;
    }
    if (!Text(&text) || text.size() < 2) return false;
    if (text.substr(1).starts_with('O')) {
      header->has_objects = true;
      return true;
    }
    const char order = text[0] == '=' ? '<' : text[0];
    uint64_t size = 0;
    if ((order != '<' && order != '>' && order != '|') || text.size() < 3 || kKinds.find(text[1]) == std::string_view::npos)
      return false;
    const auto [stop, error] = std::from_chars(text.data() + 2, text.data() + text.size(), size);
    const std::string_view unit(stop, static_cast<size_t>(text.data() + text.size() - stop));
    if (error != std::errc() || size > (1u << 30) || (text[1] == 'U' && size > (1u << 28))) return false;
    const bool dated = text[1] == 'M' || text[1] == 'm';
    if (!unit.empty() && !(dated && unit.size() <= 18 && unit.front() == '[' && unit.back() == ']')) return false;
    if (size == 0) return true;  // texts of no length: there is nothing to store
    header->item_bytes = size * (text[1] == 'U' ? 4 : 1);
    header->dtype = absl::StrFormat("%c%s", size == 1 && text[1] != 'U' ? '|' : order, text.substr(1));
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> NpyHeaderBytes(std::string_view first_bytes) {
  if (first_bytes.size() < kNpyFixedBytes || !first_bytes.starts_with(kNpyMagic))
    return Damaged("truncated: the header of an array");
  const auto byte = [&](size_t at) { return uint64_t{static_cast<unsigned char>(first_bytes[at])}; };
  const uint64_t version = byte(6);
  if (version < 1 || version > 3) return Unsupported(absl::StrFormat("an array in version %d of NumPy's format", version));
  const uint64_t length = version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  const uint64_t begin = version == 1 ? 10 : 12;
  if (length > kNpyHeaderBytesMax) return Damaged(absl::StrFormat("the header of an array claims %d bytes", length));
  return begin + length;
}

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view head) {
  NEVE_ASSIGN_OR_RETURN(const uint64_t bytes, NpyHeaderBytes(head));
  if (head.size() < bytes) return Damaged("truncated: the header of an array");
  const uint64_t begin = head[6] == 1 ? 10 : 12;
  NpyHeader header;
  header.header_bytes = bytes;
  NEVE_RETURN_IF_ERROR(HeaderReader(head.substr(begin, bytes - begin)).Read(&header));
  NEVE_RETURN_IF_ERROR(StatedElementCount(header.shape).status());
  return header;
}

}  // namespace neve::format
