#include "format/own_digests.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"

namespace neve::format {
namespace {

constexpr size_t kChunkDigits = 10, kHeaderDigits = 9, kFileDigits = 20, kHexDigits = 32;
constexpr size_t kNumbersBytes = kChunkDigits + kHeaderDigits + kFileDigits + 3;   // with a colon behind each

uint64_t ChunkCount(uint64_t file_bytes) { return (file_bytes + kDefaultChunkBytes - 1) / kDefaultChunkBytes; }

// A decimal number of all those digits, and the colon behind it, both of which are taken from the text.
std::optional<uint64_t> TakeNumber(size_t digits, std::string_view* text) {
  if (text->size() <= digits || (*text)[digits] != ':') return std::nullopt;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + digits, number);
  if (error != std::errc() || end != text->data() + digits) return std::nullopt;
  text->remove_prefix(digits + 1);
  return number;
}

}  // namespace

void OwnDigests::Mask(uint64_t begin, std::span<std::byte> target) const {
  const uint64_t first = std::max(begin, offset), last = std::min(begin + target.size(), offset + bytes);
  if (first < last) std::fill_n(target.begin() + static_cast<ptrdiff_t>(first - begin), last - first, std::byte{'0'});
}

uint64_t OwnDigestsBytes(uint64_t file_bytes) { return kNumbersBytes + kHexDigits * ChunkCount(file_bytes); }

std::string OwnDigestsPlaceholder(uint64_t value_bytes) { return std::string(value_bytes, '0'); }

std::optional<uint64_t> FindOwnDigests(std::string_view header, uint64_t* value_bytes) {
  // No string of JSON holds a quote that is not escaped, so this stands nowhere but where the key is.
  static constexpr std::string_view kBefore = "\"neve.digests\":\"";
  const size_t at = header.find(kBefore);
  if (at == std::string_view::npos) return std::nullopt;
  const size_t begin = at + kBefore.size(), end = header.find('"', begin);
  if (end == std::string_view::npos) return std::nullopt;
  *value_bytes = end - begin;
  return begin;
}

std::string OwnDigestsText(uint64_t header_bytes, uint64_t file_bytes, std::span<const codec::Digest> digests, uint64_t value_bytes) {
  std::string text = absl::StrFormat("%010d:%09d:%020d:", kDefaultChunkBytes, header_bytes, file_bytes);
  for (const codec::Digest& digest : digests) text += digest.ToHex();
  text.resize(value_bytes, ' ');
  return text;
}

absl::StatusOr<std::optional<OwnDigests>> ReadOwnDigests(std::string_view header, uint64_t file_bytes) {
  OwnDigests own;
  const std::optional<uint64_t> offset = FindOwnDigests(header, &own.bytes);
  if (!offset) return std::nullopt;
  own.offset = *offset;
  std::string_view text = header.substr(own.offset, own.bytes);
  const auto malformed = [&](const char* what) { return Damaged(absl::StrFormat("its %s are malformed: %s", kDigestsKey, what)); };
  const std::optional<uint64_t> chunk = TakeNumber(kChunkDigits, &text);
  const std::optional<uint64_t> header_bytes = chunk ? TakeNumber(kHeaderDigits, &text) : std::nullopt;
  const std::optional<uint64_t> bytes = header_bytes ? TakeNumber(kFileDigits, &text) : std::nullopt;
  if (!bytes) return malformed("they do not begin with three numbers");
  if (*header_bytes != header.size() || *bytes != file_bytes) return std::nullopt;   // another program's file by now
  if (*chunk < kChunkBytesMin || *chunk > kChunkBytesMax) return malformed("chunks of a size that is not allowed");
  own.record.image_bytes = file_bytes;
  own.record.header_bytes = header.size();
  own.record.chunk_bytes = *chunk;
  own.record.key.world = 1;
  const uint64_t count = own.record.chunk_count();
  if (text.size() / kHexDigits < count) return malformed("there are fewer than the file has chunks");
  if (text.find_first_not_of(' ', count * kHexDigits) != std::string_view::npos) return malformed("something follows them");
  own.record.digests.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (codec::Digest::FromHex(text.substr(i * kHexDigits, kHexDigits), &own.record.digests[i])) continue;
    return malformed("one is no hexadecimal number");
  }
  return own;
}

}  // namespace neve::format
