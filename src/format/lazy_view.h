// The values of a lazily conjugated or negated tensor, which its storage does not hold: computed as they are read.
#ifndef NEVE_FORMAT_LAZY_VIEW_H_
#define NEVE_FORMAT_LAZY_VIEW_H_

#include <cstdint>
#include <span>

#include "base/error/status.h"
#include "format/swap_words.h"
#include "neve/dtype.h"
#include "tensor/view.h"

namespace neve::format {

struct LazyView {
  DType dtype;                  // conjugated: complex
  tensor::Dims shape, strides;  // in elements
  uint64_t byte_offset;         // of the first element in the storage
  bool conjugated, negated;
};

// Bytes [offset, offset + target.size()) of its values, row-major. `read` reads the storage, which holds all elements.
absl::Status ReadLazyView(const ReadBytes& read, const LazyView& view, uint64_t offset, std::span<std::byte> target);

}  // namespace neve::format

#endif  // NEVE_FORMAT_LAZY_VIEW_H_
