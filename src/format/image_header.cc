#include "format/image_header.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "absl/strings/str_format.h"
#include "format/json_reader.h"
#include "format/json_text.h"
#include "format/layout.h"

namespace neve::format {
namespace {

constexpr uint64_t kLengthBytes = sizeof(uint64_t);

uint64_t ReadLength(std::string_view head) {
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
  return length;
}

// A file that is something else says so; the rest is a damaged header.
absl::Status NotSafetensors(std::string_view head, uint64_t file_bytes, const std::string& otherwise) {
  if (const std::string kind = GuessKind(head, file_bytes); !kind.empty()) {
    return Unsupported(absl::StrFormat("not a safetensors file but %s", kind));
  }
  return Damaged(otherwise);
}

class HeaderParser {
 public:
  HeaderParser(std::string_view json, uint64_t data_offset, uint64_t file_bytes, const HeaderOptions& options)
      : options_(options), in_(json, 64, kLengthBytes), data_bytes_(file_bytes - data_offset) {
    header_.header_bytes = data_offset;
    header_.file_bytes = file_bytes;
  }

  absl::StatusOr<ImageHeader> Parse() {
    std::string_view key;
    if (in_.EnterObject()) {
      while (in_.NextKey(&key)) {
        if (key == "__metadata__" ? !ReadMetadata() : !ReadTensor(key)) break;
      }
    }
    if (!in_.ok()) {
      return failed_tensor_.empty() ? in_.status() : Annotate(in_.status(), absl::StrFormat("tensor %s", failed_tensor_));
    }
    NEVE_RETURN_IF_ERROR(CheckPadding());
    NEVE_RETURN_IF_ERROR(CheckPlaces());
    return std::move(header_);
  }

 private:
  // The reader's own Finish allows any white space after the JSON; the format allows spaces only.
  absl::Status CheckPadding() const {
    const std::string_view rest = in_.Rest();
    const size_t bad = rest.find_first_not_of(' ');
    if (bad == std::string_view::npos) return absl::OkStatus();
    const unsigned char byte = static_cast<unsigned char>(rest[bad]);
    const uint64_t at = kLengthBytes + in_.position() + bad;
    if (byte == 0) return Damaged(absl::StrFormat("the header is padded with NUL from byte %d on; only spaces may pad it", at));
    return Damaged(absl::StrFormat("byte 0x%02x follows the header's JSON at byte %d; only spaces may", byte, at));
  }

  void Note(std::string text) {
    if (options_.notes != nullptr) options_.notes->push_back(std::move(text));
  }

  bool ReadMetadata() {
    if (in_.Peek() == JsonReader::Kind::kNull) return in_.Null();   // as the reference: no metadata
    std::string_view key, raw;
    if (!in_.EnterObject()) return false;
    while (in_.NextKey(&key)) {
      std::string value;
      if (in_.Peek() == JsonReader::Kind::kString) {
        if (!in_.String(&value)) return false;
      } else {
        const size_t at = in_.position();
        if (!in_.Raw(&raw)) return false;
        if (!options_.lenient) {
          return in_.FailAt(at, absl::StrFormat("the metadata of key %s is not a string", Quoted(key)));
        }
        Note(absl::StrFormat("the metadata of key %s is not a string; shown as text", Quoted(key)));
        value = raw;
      }
      header_.metadata.emplace_back(key, std::move(value));
    }
    return in_.ok();
  }

  bool ReadTensor(std::string_view name) {
    HeaderTensor tensor;
    tensor.name = name;
    if (!ReadFields(&tensor)) {
      failed_tensor_ = Quoted(name);
      return false;
    }
    header_.tensors.push_back(std::move(tensor));
    return true;
  }

  bool ReadFields(HeaderTensor* tensor) {
    bool has_dtype = false, has_shape = false, has_offsets = false;
    uint64_t begin = 0, end = 0;
    std::string_view field, text;
    if (!in_.EnterObject()) return false;
    while (in_.NextKey(&field)) {
      if (field == "dtype") {
        if (!in_.StringView(&text)) return false;
        const std::optional<DType> dtype = DTypeFromName(text);
        if (!dtype || !HasSafetensorsName(*dtype)) return in_.Fail(absl::StrFormat("unknown dtype %s", Quoted(text)));
        tensor->dtype = *dtype;
        has_dtype = true;
      } else if (field == "shape") {
        if (!ReadShape(tensor)) return false;
        has_shape = true;
      } else if (field == "data_offsets") {
        if (!ReadOffsets(&begin, &end)) return false;
        has_offsets = true;
      } else if (!in_.Skip()) {
        return false;
      }
    }
    if (!in_.ok()) return false;
    if (!has_dtype || !has_shape || !has_offsets) {
      return in_.Fail(absl::StrFormat("no %s", !has_dtype ? "dtype" : !has_shape ? "shape" : "data_offsets"));
    }
    if (begin > end) return in_.Fail(absl::StrFormat("it begins at %d, after its end at %d", begin, end));
    tensor->offset = begin;   // within the data until all is checked
    tensor->bytes = end - begin;
    return CheckSize(*tensor);
  }

  bool ReadShape(HeaderTensor* tensor) {
    if (!in_.EnterArray()) return false;
    while (in_.NextElement()) {
      uint64_t extent = 0;
      if (!in_.Unsigned(&extent)) return false;
      if (extent > static_cast<uint64_t>(INT64_MAX)) return in_.Fail(absl::StrFormat("the extent %d overflows", extent));
      tensor->shape.push_back(static_cast<int64_t>(extent));
    }
    return in_.ok();
  }

  bool ReadOffsets(uint64_t* begin, uint64_t* end) {
    if (!in_.EnterArray()) return false;
    int count = 0;
    for (; in_.NextElement(); ++count) {
      if (count == 2) return in_.Fail("more than two data_offsets");
      if (!in_.Unsigned(count == 0 ? begin : end)) return false;
    }
    return in_.ok() && (count == 2 || in_.Fail("fewer than two data_offsets"));
  }

  bool CheckSize(const HeaderTensor& tensor) {
    const absl::StatusOr<uint64_t> count = tensor::ElementCount(tensor.shape);
    if (!count.ok()) return in_.Fail(std::string(count.status().message()));
    uint64_t bytes = *count;
    if (tensor.dtype == DType::kF4E2M1x2) {
      // Two values a byte, and no byte shared by two rows.
      if (tensor.shape.empty() || tensor.shape.back() % 2 != 0) {
        return in_.Fail(absl::StrFormat("F4 packs two values a byte, so its last extent must be even; it is %d",
                                                  tensor.shape.empty() ? 1 : tensor.shape.back()));
      }
      bytes /= 2;
    } else if (__builtin_mul_overflow(bytes, ItemBytes(tensor.dtype), &bytes)) {
      return in_.Fail("its size overflows");
    }
    if (bytes != tensor.bytes) {
      return in_.Fail(absl::StrFormat("its dtype and shape take %d bytes, its data_offsets span %d", bytes, tensor.bytes));
    }
    return true;
  }

  absl::Status CheckPlaces() {
    std::vector<HeaderTensor>& tensors = header_.tensors;
    std::vector<uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      if (tensors[a].offset != tensors[b].offset) return tensors[a].offset < tensors[b].offset;
      return tensors[a].bytes != tensors[b].bytes ? tensors[a].bytes < tensors[b].bytes : a < b;
    });
    uint64_t end = 0;
    const HeaderTensor* before = nullptr;
    const HeaderTensor* cut = nullptr;   // the first that reaches past the data
    for (const uint32_t index : order) {
      const HeaderTensor& tensor = tensors[index];
      if (tensor.offset != end) return Misplaced(tensor, before, end);
      end += tensor.bytes;   // ends are numbers of the header, so this does not overflow
      if (end > data_bytes_ && cut == nullptr) cut = &tensor;
      before = &tensor;
    }
    if (cut != nullptr) {
      return Damaged(absl::StrFormat("the file is cut short: %d bytes expected, %d found; the first tensor affected is %s, whose "
                                     "bytes are [%d, %d)",
                                     header_.header_bytes + end, header_.file_bytes, Quoted(cut->name),
                                     header_.header_bytes + cut->offset, header_.header_bytes + cut->offset + cut->bytes));
    }
    if (end < data_bytes_) {
      const std::string text = absl::StrFormat("%d bytes follow the last tensor: %d bytes expected, %d found", data_bytes_ - end,
                                               header_.header_bytes + end, header_.file_bytes);
      if (!options_.lenient) return Damaged(text);
      Note(text);
    }
    for (HeaderTensor& tensor : tensors) tensor.offset += header_.header_bytes;
    return absl::OkStatus();
  }

  static absl::Status Misplaced(const HeaderTensor& tensor, const HeaderTensor* before, uint64_t end) {
    if (before == nullptr) {
      return Damaged(
          absl::StrFormat("the first tensor, %s, begins at %d of the data, not at 0", Quoted(tensor.name), tensor.offset));
    }
    if (tensor.offset < end) {
      return Damaged(absl::StrFormat("tensor %s begins at %d, within tensor %s, which ends at %d", Quoted(tensor.name),
                                     tensor.offset, Quoted(before->name), end));
    }
    return Damaged(absl::StrFormat("a hole of %d bytes lies between tensor %s, which ends at %d, and tensor %s",
                                   tensor.offset - end, Quoted(before->name), end, Quoted(tensor.name)));
  }

  const HeaderOptions& options_;
  JsonReader in_;
  uint64_t data_bytes_;
  ImageHeader header_;
  std::string failed_tensor_;   // quoted; empty: the failure was outside of a tensor's entry
};

}  // namespace

const std::string* ImageHeader::FindMetadata(std::string_view key) const {
  for (const auto& [name, value] : metadata) {
    if (name == key) return &value;
  }
  return nullptr;
}

const HeaderTensor* ImageHeader::Find(std::string_view name) const {
  for (const HeaderTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::StatusOr<uint64_t> HeaderBytesNeeded(std::string_view first_bytes, uint64_t file_bytes) {
  if (file_bytes < kLengthBytes || first_bytes.size() < kLengthBytes) {
    const std::string kind = GuessKind(first_bytes, file_bytes);
    return Unsupported(absl::StrFormat(
        "not a safetensors file but %s",
        kind.empty() ? absl::StrFormat("%d bytes; such a file begins with the 8 bytes of its header's length", file_bytes) : kind));
  }
  const uint64_t length = ReadLength(first_bytes);
  if (length > kHeaderBytesMax) {
    return NotSafetensors(first_bytes, file_bytes,
                          absl::StrFormat("the header's length reads %d, over the limit of %d", length, kHeaderBytesMax));
  }
  if (length > file_bytes - kLengthBytes) {
    return NotSafetensors(first_bytes, file_bytes,
                          absl::StrFormat("the file is cut short: its header should end at byte %d, the file has %d",
                                          kLengthBytes + length, file_bytes));
  }
  return kLengthBytes + length;
}

absl::StatusOr<ImageHeader> ParseImageHeader(std::string_view head, uint64_t file_bytes, const HeaderOptions& options) {
  NEVE_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytesNeeded(head, file_bytes));
  if (head.size() < header_bytes) {
    return Internal(absl::StrFormat("%d bytes of a header given, %d needed", head.size(), header_bytes));
  }
  const std::string_view json = head.substr(kLengthBytes, header_bytes - kLengthBytes);
  if (json.empty() || json.front() != '{') {
    return NotSafetensors(head, file_bytes,
                          json.empty() ? "the header is empty"
                                       : absl::StrFormat("the header does not begin with a brace but with 0x%02x",
                                                         static_cast<unsigned char>(json.front())));
  }
  return HeaderParser(json, header_bytes, file_bytes, options).Parse();
}

}  // namespace neve::format
