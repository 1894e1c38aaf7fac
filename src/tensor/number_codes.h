// From the items of a tensor to numbers, a block at a time.
#ifndef NEVE_TENSOR_NUMBER_CODES_H_
#define NEVE_TENSOR_NUMBER_CODES_H_

#include <cstddef>
#include <cstdint>

#include "neve/dtype.h"

namespace neve::tensor {

// Types whose values and sums a double may not hold exactly or at all.
bool NeedsLongDouble(DType dtype);
bool IsComplex(DType dtype);

// The values of `items` items at `from`, which may lie at any address: two an item for complex types (real, imaginary) and for F4.
void DecodeNumbers(DType dtype, const std::byte* from, size_t items, double* to);
void DecodeNumbers(DType dtype, const std::byte* from, size_t items, long double* to);

}  // namespace neve::tensor

#endif  // NEVE_TENSOR_NUMBER_CODES_H_
