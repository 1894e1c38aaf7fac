// The digests that a single .safetensors file of ours carries in its own header: `neve.digests` of docs/format.md. An image of a
// step has a commit record instead.
//
//   "neve.digests":"<bytes of a chunk>:<bytes of the header>:<bytes of the file>:<32 hex digits a chunk><spaces>"
//
// The numbers have 10, 9 and 20 decimal digits, so that the place of all of it is known before the data is. Chunks are those of the
// file from its first byte on, and count as if every byte of the value were '0': so the header is covered too. Where header or
// file have other sizes than it says, another program has written the file and copied what it did not know: it has no digests then.
#ifndef NEVE_FORMAT_OWN_DIGESTS_H_
#define NEVE_FORMAT_OWN_DIGESTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec/digest.h"
#include "base/error/status.h"
#include "format/commit_record.h"

namespace neve::format {

inline constexpr std::string_view kDigestsKey = "neve.digests";

struct OwnDigests {
  uint64_t offset = 0, bytes = 0;   // of the value in the file
  CommitRecord record;              // sizes and digests of the file; of nothing else
  // Puts what the digests were made of in place of the value, where target, which begins at a byte of the file, holds it.
  void Mask(uint64_t begin, std::span<std::byte> target) const;
};

// What the value takes for a file of so many bytes, and the value before the digests are known: nothing but '0'.
uint64_t OwnDigestsBytes(uint64_t file_bytes);
std::string OwnDigestsPlaceholder(uint64_t value_bytes);
// Where in a header that was made with a placeholder it stands. header: 8 bytes of length and the JSON.
std::optional<uint64_t> FindOwnDigests(std::string_view header, uint64_t* value_bytes);
// The value: value_bytes long, which are enough for it.
std::string OwnDigestsText(uint64_t header_bytes, uint64_t file_bytes, std::span<const codec::Digest> digests, uint64_t value_bytes);

// Those of a file by its header; none where it has none that are its own. Damaged: they are malformed.
absl::StatusOr<std::optional<OwnDigests>> ReadOwnDigests(std::string_view header, uint64_t file_bytes);

}  // namespace neve::format

#endif  // NEVE_FORMAT_OWN_DIGESTS_H_
