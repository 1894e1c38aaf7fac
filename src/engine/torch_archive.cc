#include "engine/torch_archive.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/codec/crc32.h"
#include "base/codec/digest.h"

namespace neve {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;

uint64_t PieceCount(uint64_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes; }

std::span<std::byte> PieceOf(std::span<std::byte> window, uint64_t index) {
  return window.subspan(index * kPieceBytes, std::min(kPieceBytes, window.size() - index * kPieceBytes));
}

// What of `bytes`, which begin at archive offset `at`, the target from `begin` on has room for.
void PutOverlap(std::string_view bytes, uint64_t at, uint64_t begin, std::span<std::byte> target) {
  const uint64_t first = std::max(at, begin), last = std::min(at + bytes.size(), begin + target.size());
  if (first < last) std::memcpy(target.data() + (first - begin), bytes.data() + (first - at), last - first);
}

}  // namespace

TorchArchive::TorchArchive(format::TorchZipLayout layout, std::vector<const std::byte*> storages)
    : layout_(std::move(layout)), storages_(std::move(storages)), crcs_(storages_.size()) {}

void TorchArchive::Capture(std::span<std::byte> archive, sync::Crew& crew) {
  const uint64_t head = layout_.head().size(), tail = layout_.tail_offset();
  auto copy = [&](uint64_t index, int) {
    const uint64_t begin = std::max(index * kPieceBytes, head), end = std::min((index + 1) * kPieceBytes, tail);
    for (uint64_t at = begin; at < end;) {
      const size_t i = layout_.StorageAt(at);
      const format::TorchZipLayout::Storage storage = layout_.storage(i);
      const uint64_t first = std::max(storage.data, begin), last = std::min(storage.descriptor(), end);
      if (first < last) codec::StreamCopy(archive.data() + first, storages_[i] + (first - storage.data), last - first);
      at = storage.end;
    }
  };
  crew.Run(PieceCount(archive.size()), copy);
  for (size_t i = 0; i < storages_.size(); ++i) storages_[i] = archive.data() + layout_.storage(i).data;
}

void TorchArchive::Next(std::span<std::byte> window, sync::Crew& crew) {
  std::vector<Piece> pieces(PieceCount(window.size()));
  auto make = [&](uint64_t index, int) {
    MakePiece(position_ + index * kPieceBytes, PieceOf(window, index), &pieces[index]);
  };
  crew.Run(pieces.size(), make);
  JoinPieces(pieces);
  MakeSharedDescriptors(window);
  MakeTail(window);
  position_ += window.size();
}

void TorchArchive::MakePiece(uint64_t begin, std::span<std::byte> target, Piece* piece) {
  PutOverlap(layout_.head(), 0, begin, target);
  const uint64_t end = std::min(begin + target.size(), layout_.tail_offset());
  std::string text;
  for (uint64_t at = std::max<uint64_t>(begin, layout_.head().size()); at < end;) {
    const size_t i = layout_.StorageAt(at);
    const format::TorchZipLayout::Storage storage = layout_.storage(i);
    at = storage.end;
    if (begin < storage.data) {
      layout_.LocalHeader(i, &text);
      PutOverlap(text, storage.record, begin, target);
    }
    const uint64_t first = std::max(storage.data, begin), last = std::min(storage.descriptor(), end);
    if (first >= last) continue;
    std::byte* const to = target.data() + (first - begin);
    const std::span bytes(storages_[i] + (first - storage.data), last - first);
    const uint32_t crc = bytes.data() == to ? codec::Crc32(0, bytes) : codec::Crc32Copy(0, to, bytes);
    if (first > storage.data) {
      piece->before = {i, crc, bytes.size()};
    } else if (last < storage.descriptor()) {
      piece->after = {i, crc, bytes.size()};
    } else {
      crcs_[i] = crc;
      layout_.Descriptor(i, crc, &text);
      PutOverlap(text, storage.descriptor(), begin, target);
    }
  }
}

void TorchArchive::JoinPieces(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    for (const Partial& partial : {piece.before, piece.after}) {
      if (partial.bytes == 0) continue;
      uint32_t& crc = crcs_[partial.storage];
      crc = codec::Crc32Combine(crc, partial.crc, partial.bytes);
    }
  }
}

void TorchArchive::MakeSharedDescriptors(std::span<std::byte> window) {
  const uint64_t window_end = position_ + window.size();
  std::string text;
  for (uint64_t index = 0; index <= PieceCount(window.size()); ++index) {
    const uint64_t border = std::min(position_ + index * kPieceBytes, window_end);
    if (border < layout_.head().size() || border >= layout_.tail_offset()) continue;
    const size_t i = layout_.StorageAt(border);
    const format::TorchZipLayout::Storage storage = layout_.storage(i);
    if (storage.descriptor() >= window_end) continue;
    layout_.Descriptor(i, crcs_[i], &text);
    PutOverlap(text, storage.descriptor(), position_, window);
  }
}

void TorchArchive::MakeTail(std::span<std::byte> window) {
  if (position_ + window.size() <= layout_.tail_offset()) return;
  if (tail_.empty()) tail_ = layout_.Tail(crcs_);
  PutOverlap(tail_, layout_.tail_offset(), position_, window);
}

}  // namespace neve
