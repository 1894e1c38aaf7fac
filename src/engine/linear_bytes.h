// The bytes of a global image by their offset, told as boxes of its entries.
#ifndef NEVE_ENGINE_LINEAR_BYTES_H_
#define NEVE_ENGINE_LINEAR_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "format/global_image.h"
#include "restore/box_plan.h"

namespace neve::engine {

class LinearBytes {
 public:
  explicit LinearBytes(const format::GlobalImage* global);   // borrowed

  // Adds what fills the target with bytes [offset, offset + target.size()), from wherever to wherever. Bytes of the header are there
  // when it returns, and so are those of elements that a border cuts: these alone are fetched by read_now. Requires: the bytes lie in
  // the image. Thread: any.
  using ReadNow = std::function<absl::Status(std::span<const restore::BoxWant> wants)>;
  absl::Status Add(uint64_t offset, std::span<std::byte> target, const ReadNow& read_now, std::vector<restore::BoxWant>* wants) const;

  // The entry whose bytes hold that byte of the data.
  size_t EntryAt(uint64_t offset) const;
  // The shape of what is stored of an entry: without the expanded dimensions.
  static tensor::Dims StoredShape(const format::GlobalEntry& entry);

 private:
  void AddElements(size_t index, uint64_t first, uint64_t count, std::byte* target, std::vector<restore::BoxWant>* wants) const;

  const format::GlobalImage* const global_;
  std::vector<uint32_t> by_offset_;                          // entries in the order of the data
};

}  // namespace neve::engine

#endif  // NEVE_ENGINE_LINEAR_BYTES_H_
