// Texts one after another as "<bytes>:<text>,", so that any bytes can travel in one value.
#ifndef NEVE_GROUP_FIELDS_H_
#define NEVE_GROUP_FIELDS_H_

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace neve::group {

inline void PutField(std::string* text, std::string_view field) {
  *text += std::to_string(field.size());
  *text += ':';
  *text += field;
  *text += ',';
}

class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}
  // Nothing: there is no further field, or the text is no list of fields.
  std::optional<std::string> Next() {
    uint64_t size = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
    if (error != std::errc() || end == rest_.data() + rest_.size() || *end != ':') return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()) + 1);
    if (size >= rest_.size() || rest_[size] != ',') return std::nullopt;
    std::string field(rest_.substr(0, size));
    rest_.remove_prefix(size + 1);
    return field;
  }
  std::optional<uint64_t> NextNumber() {
    const std::optional<std::string> field = Next();
    if (!field.has_value()) return std::nullopt;
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(field->data(), field->data() + field->size(), number);
    if (error != std::errc() || end != field->data() + field->size()) return std::nullopt;
    return number;
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace neve::group

#endif  // NEVE_GROUP_FIELDS_H_
