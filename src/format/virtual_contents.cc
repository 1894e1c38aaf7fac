#include "format/virtual_contents.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "format/swap_words.h"

namespace neve::format {
namespace {

constexpr uint64_t kSmallBytes = 64u << 10;  // pieces below that are read together with their neighbours
constexpr uint64_t kGapBytesMax = 4096;      // what is read between two such, to be thrown away
constexpr uint64_t kTogetherBytesMax = 4u << 20;

}  // namespace

// A part of one read, as it lies in a file.
struct VirtualContents::Piece {
  uint32_t file;
  uint64_t offset;
  std::span<std::byte> target;
};

absl::StatusOr<std::unique_ptr<Contents>> VirtualContents::Make(VirtualParts parts) {
  std::unique_ptr<VirtualContents> contents(new VirtualContents(std::move(parts)));
  const std::string& header_text = contents->parts_.header_text;
  for (PlacedBytes& placed : contents->parts_.placed) placed.image_offset += header_text.size();
  NEVE_ASSIGN_OR_RETURN(contents->header_, ParseImageHeader(header_text, header_text.size() + contents->parts_.data_bytes));
  NEVE_ASSIGN_OR_RETURN(contents->tensors_, LogicalTensors(contents->header_));
  return std::unique_ptr<Contents>(std::move(contents));
}

size_t VirtualContents::FirstPlaced(uint64_t offset) const {
  const auto after = std::upper_bound(parts_.placed.begin(), parts_.placed.end(), offset,
                                      [](uint64_t at, const PlacedBytes& placed) { return at < placed.image_offset; });
  return after == parts_.placed.begin() ? 0 : static_cast<size_t>(after - parts_.placed.begin()) - 1;
}

std::vector<Extent> VirtualContents::Locate(uint64_t offset, uint64_t bytes) const {
  std::vector<Extent> extents;
  if (offset < parts_.header_text.size() || offset > image_bytes() || bytes > image_bytes() - offset) return {};
  const uint64_t end = offset + bytes;
  for (size_t i = FirstPlaced(offset); offset < end; ++i) {
    const PlacedBytes& placed = parts_.placed[i];
    if (!placed.backing.lies_in_file() || placed.backing.swap != 1) return {};
    const uint64_t skip = offset - placed.image_offset, step = std::min(end - offset, placed.bytes - skip);
    const uint64_t file_offset = placed.backing.offset + skip;
    const bool follows = !extents.empty() && extents.back().file == placed.backing.file &&
                         extents.back().file_offset + extents.back().bytes == file_offset;
    if (follows) {
      extents.back().bytes += step;
    } else {
      extents.push_back({offset, step, placed.backing.file, file_offset});
    }
    offset += step;
  }
  return extents;
}

absl::Status VirtualContents::Read(uint64_t offset, std::span<std::byte> target) const {
  if (offset > image_bytes() || target.size() > image_bytes() - offset) {
    return Internal(absl::StrFormat("%s: bytes [%d, %d) of an image of %d", parts_.files.front(), offset, offset + target.size(),
                                    image_bytes()));
  }
  if (offset < parts_.header_text.size()) {
    const size_t bytes = std::min<uint64_t>(target.size(), parts_.header_text.size() - offset);
    std::memcpy(target.data(), parts_.header_text.data() + offset, bytes);
    target = target.subspan(bytes);
    offset += bytes;
  }
  std::vector<Piece> pieces;
  for (size_t i = FirstPlaced(offset); !target.empty(); ++i) {
    const PlacedBytes& placed = parts_.placed[i];
    const uint64_t skip = offset - placed.image_offset;
    const std::span<std::byte> part = target.first(std::min<uint64_t>(target.size(), placed.bytes - skip));
    const Backing& backing = placed.backing;
    if (backing.file == Backing::kMemory) {
      std::memcpy(part.data(), parts_.memory[backing.offset].data() + skip, part.size());
    } else if (backing.file == Backing::kMade) {
      NEVE_RETURN_IF_ERROR(parts_.origin->ReadMade(backing.offset, skip, part));
    } else if (backing.swap != 1) {
      const ByteSource& source = *parts_.sources[backing.file];
      const ReadBytes read = [&](uint64_t at, std::span<std::byte> to) { return source.Read(backing.offset + at, to); };
      NEVE_RETURN_IF_ERROR(ReadSwapped(read, backing.swap, skip, part));
    } else {
      pieces.push_back({backing.file, backing.offset + skip, part});
    }
    target = target.subspan(part.size());
    offset += part.size();
  }
  return ReadFiles(&pieces);
}

// In the order of the files; small pieces that lie side by side, as tiny tensors do, are read together.
absl::Status VirtualContents::ReadFiles(std::vector<Piece>* pieces) const {
  std::sort(pieces->begin(), pieces->end(),
            [](const Piece& a, const Piece& b) { return a.file != b.file ? a.file < b.file : a.offset < b.offset; });
  std::vector<std::byte> together;
  for (size_t i = 0; i < pieces->size();) {
    const Piece& first = (*pieces)[i];
    const ByteSource& source = *parts_.sources[first.file];
    uint64_t end = first.offset + first.target.size();
    size_t next = i + 1;
    while (first.target.size() < kSmallBytes && next < pieces->size()) {
      const Piece& piece = (*pieces)[next];
      if (piece.file != first.file || piece.target.size() >= kSmallBytes || piece.offset > end + kGapBytesMax ||
          piece.offset + piece.target.size() > first.offset + kTogetherBytesMax) {
        break;
      }
      end = std::max(end, piece.offset + piece.target.size());
      ++next;
    }
    if (next == i + 1) {
      NEVE_RETURN_IF_ERROR(source.Read(first.offset, first.target));
    } else {
      together.resize(end - first.offset);
      NEVE_RETURN_IF_ERROR(source.Read(first.offset, together));
      for (size_t p = i; p < next; ++p) {
        const Piece& piece = (*pieces)[p];
        std::memcpy(piece.target.data(), together.data() + (piece.offset - first.offset), piece.target.size());
      }
    }
    i = next;
  }
  return absl::OkStatus();
}

absl::Status VirtualContents::Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const {
  return parts_.origin->Check(progress, problems);
}

}  // namespace neve::format
