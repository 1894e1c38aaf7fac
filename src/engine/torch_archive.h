// The bytes of a torch zip archive, made in order, window by window, by a crew: storages are copied and summed in one pass.
#ifndef NEVE_ENGINE_TORCH_ARCHIVE_H_
#define NEVE_ENGINE_TORCH_ARCHIVE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sync/crew.h"
#include "format/torch_zip_layout.h"

namespace neve {

class TorchArchive {
 public:
  // storages: one address a storage, host memory, borrowed until the last window is made.
  TorchArchive(format::TorchZipLayout layout, std::vector<const std::byte*> storages);

  uint64_t bytes() const { return layout_.archive_bytes(); }
  uint64_t position() const { return position_; }

  // Copies the storages to where they lie in the whole archive, and reads them there from now on: what is borrowed may change
  // afterwards. The rest of `archive` is left alone.
  void Capture(std::span<std::byte> archive, sync::Crew& crew);
  // Makes the next window.size() bytes; at most what is left. A storage whose bytes lie there already is only summed.
  void Next(std::span<std::byte> window, sync::Crew& crew);

 private:
  // The part of a storage that a piece of a window holds, when it does not hold all of it.
  struct Partial {
    size_t storage = 0;
    uint32_t crc = 0;
    uint64_t bytes = 0;
  };
  struct Piece {
    Partial before;   // goes on from an earlier piece
    Partial after;    // goes on in a later one
  };
  void MakePiece(uint64_t begin, std::span<std::byte> target, Piece* piece);
  void JoinPieces(std::span<const Piece> pieces);
  // Descriptors of storages that pieces share, whose sums are known only when all have been made.
  void MakeSharedDescriptors(std::span<std::byte> window);
  void MakeTail(std::span<std::byte> window);

  const format::TorchZipLayout layout_;
  std::vector<const std::byte*> storages_;
  std::vector<uint32_t> crcs_;   // of what has been made of each storage
  std::string tail_;
  uint64_t position_ = 0;
};

}  // namespace neve

#endif  // NEVE_ENGINE_TORCH_ARCHIVE_H_
