#include "absl/strings/str_format.h"
#include "format/image_header.h"
#include "format/json_text.h"
#include "format/layout.h"

namespace neve::format {

absl::StatusOr<std::string> EncodeImageHeader(const ImageHeader& header) {
  std::string text(sizeof(uint64_t), '\0');   // the length, known at the end
  text.push_back('{');
  if (!header.metadata.empty()) {
    text.append("\"__metadata__\":{");
    for (const auto& [key, value] : header.metadata) {
      if (text.back() != '{') text.push_back(',');
      AppendJsonString(key, &text);
      text.push_back(':');
      AppendJsonString(value, &text);
    }
    text.push_back('}');
  }
  for (const HeaderTensor& tensor : header.tensors) {
    if (text.back() != '{') text.push_back(',');
    AppendJsonString(tensor.name, &text);
    text.append(":{\"dtype\":\"").append(Name(tensor.dtype)).append("\",\"shape\":");
    AppendNumbers(tensor.shape, &text);
    text.append(",\"data_offsets\":[");
    AppendNumber(tensor.offset - header.header_bytes, &text);
    text.push_back(',');
    AppendNumber(tensor.offset - header.header_bytes + tensor.bytes, &text);
    text.append("]}");
  }
  text.push_back('}');
  text.append((kPageBytes - text.size() % kPageBytes) % kPageBytes, ' ');
  const uint64_t json_bytes = text.size() - sizeof(uint64_t);
  if (json_bytes > kHeaderBytesMax) {
    return Exhausted(absl::StrFormat("a header of %d tensors takes %d bytes, at most %d are allowed", header.tensors.size(),
                                     json_bytes, kHeaderBytesMax));
  }
  for (size_t i = 0; i < sizeof(uint64_t); ++i) text[i] = static_cast<char>(json_bytes >> (8 * i));
  return text;
}

}  // namespace neve::format
