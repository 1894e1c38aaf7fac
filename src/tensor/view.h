// Strided views of memory and the copies between them and logical row-major bytes.
//
// Shapes and strides are in elements, row-major order of dimensions [d0, d1, ...]; strides may be 0 or negative only where
// said. "Logical bytes" of a view are its elements in row-major order of its shape.
#ifndef NEVE_TENSOR_VIEW_H_
#define NEVE_TENSOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "neve/dtype.h"

namespace neve::tensor {

using Dims = std::vector<int64_t>;

// Product of the extents (1 for a scalar), or Invalid when it overflows or an extent is negative.
absl::StatusOr<uint64_t> ElementCount(std::span<const int64_t> shape);
Dims ContiguousStrides(std::span<const int64_t> shape);

enum class Density : uint8_t {
  kContiguous,   // logical bytes are the memory bytes, in order
  kPermuted,     // dense memory without holes or overlap, dimensions in another order
  kExpanded,     // some stride is 0 with extent > 1; without those dimensions it is one of the others but kOverlapping
  kGapped,       // no two elements share memory, but there are holes
  kOverlapping,  // elements share memory in another way
};

// Extents of 1 and empty views never matter. Strides must be >= 0 (torch has no others); negative is Invalid.
absl::StatusOr<Density> Classify(std::span<const int64_t> shape, std::span<const int64_t> strides);

// Bytes from the first to one past the last element touched; 0 for empty views.
uint64_t SpanBytes(std::span<const int64_t> shape, std::span<const int64_t> strides, uint64_t item_bytes);

// A copy plan between a strided view and its logical bytes, prepared once per tensor and reused at every save: dimensions
// merged and ordered so that inner loops are long, transposes done in cache-sized tiles.
class StridedCopy {
 public:
  StridedCopy(std::span<const int64_t> shape, std::span<const int64_t> strides, uint64_t item_bytes);
  uint64_t logical_bytes() const { return logical_bytes_; }
  // Gathers logical bytes [begin, end) of the view at `base` into target[0, end - begin). begin and end are multiples of
  // the item size. Allocates nothing. Thread safe.
  void Gather(const std::byte* base, uint64_t begin, uint64_t end, std::byte* target) const;
  // The inverse: source[0, end - begin) are logical bytes [begin, end); writes the view at `base`.
  void Scatter(std::byte* base, uint64_t begin, uint64_t end, const std::byte* source) const;

 private:
  template <bool kGather>
  void Run(std::byte* base, uint64_t begin, uint64_t end, std::byte* linear) const;
  Dims shape_, strides_;   // merged; strides in bytes
  uint64_t item_bytes_;
  uint64_t logical_bytes_;
};

}  // namespace neve::tensor

#endif  // NEVE_TENSOR_VIEW_H_
