#include "format/checked_json.h"

#include "format/json_reader.h"

namespace neve::format {
namespace {

// The end of the string that begins at `at`.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    at = text.find_first_of("\"\\", at);
    if (at == std::string_view::npos) return text.size();
    if (text[at] == '"') return at + 1;
    ++at;   // what is escaped
  }
  return text.size();
}

size_t EndOfValue(std::string_view text, size_t at) {
  size_t open = 0;
  while (at < text.size()) {
    switch (text[at]) {
      case '"':
        at = EndOfString(text, at);
        if (open == 0) return at;
        continue;
      case '{':
      case '[': ++open; break;
      case '}':
      case ']':
        if (open == 0) return at;   // behind a number or a word
        if (--open == 0) return at + 1;
        break;
      case ',':
      case ' ':
      case '\t':
      case '\n':
      case '\r':
        if (open == 0) return at;
        break;
      default: break;
    }
    ++at;
  }
  return at;
}

}  // namespace

void CheckedJson::SkipSpace() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
}

bool CheckedJson::AtEnd() {
  SkipSpace();
  if (at_ < text_.size() && (text_[at_] == ',' || at_ == 0)) ++at_;   // the comma, or at first the bracket
  SkipSpace();
  return at_ >= text_.size() || text_[at_] == '}' || text_[at_] == ']';
}

std::string_view CheckedJson::Take() {
  const size_t begin = at_;
  at_ = EndOfValue(text_, begin);
  return text_.substr(begin, at_ - begin);
}

bool CheckedJson::NextMember(std::string_view* key, std::string_view* value) {
  if (AtEnd()) return false;
  const std::string_view quoted = Take();
  *key = quoted.substr(1, quoted.size() - 2);
  if (key->find('\\') != std::string_view::npos) {
    JsonReader(quoted).String(&key_);
    *key = key_;
  }
  SkipSpace();
  ++at_;   // the colon
  SkipSpace();
  *value = Take();
  return true;
}

bool CheckedJson::NextElement(std::string_view* value) {
  if (AtEnd()) return false;
  *value = Take();
  return true;
}

}  // namespace neve::format
