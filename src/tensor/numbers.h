// What the elements of a tensor are as numbers: summaries of many of them, and where two tensors of one type differ.
//
// Rules
//   - Bool counts as 0 and 1, bits and quantized types as the whole numbers that they hold, F4 two values an item (the low four
//     bits first), complex numbers by their magnitude.
//   - NaN and infinities are counted; least, greatest, mean and deviation are those of the finite numbers.
//   - A complex number is NaN or infinite when one of its parts is, NaN first; it is zero when both are.
//   - Two elements are equal when their bits are: -0.0 differs from 0.0, and a NaN equals the same NaN.
#ifndef NEVE_TENSOR_NUMBERS_H_
#define NEVE_TENSOR_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "neve/dtype.h"

namespace neve::tensor {

// long double holds every 64-bit integer and the sum of any doubles.
class NumberSummary {
 public:
  // `items`: whole items of that type, which must be the same in every call.
  void Add(DType dtype, std::span<const std::byte> items);
  void Merge(const NumberSummary& other);

  uint64_t count() const { return finite_ + nan_ + inf_; }
  uint64_t finite() const { return finite_; }
  uint64_t zeros() const { return zeros_; }
  uint64_t nan() const { return nan_; }
  uint64_t inf() const { return inf_; }
  // Where finite() > 0. The deviation is the population's: divided by the number of elements.
  long double min() const { return min_; }
  long double max() const { return max_; }
  long double mean() const { return mean_; }
  long double Deviation() const;

 private:
  template <typename Real>
  void AddBlock(Real* values, size_t count);
  void MergeMoments(uint64_t count, long double mean, long double squares);

  uint64_t finite_ = 0, zeros_ = 0, nan_ = 0, inf_ = 0;
  long double min_ = 0, max_ = 0, mean_ = 0, squares_ = 0;   // squares_: of the distances from the mean, summed
};

class NumberDifference {
 public:
  // Items of the same number at the same place of both; `first` is the number of the first one's first value in its tensor.
  void Add(DType dtype, uint64_t first, std::span<const std::byte> a, std::span<const std::byte> b);
  void Merge(const NumberDifference& other);

  uint64_t count() const { return count_; }        // values that differ
  uint64_t first() const { return first_; }        // the least number of one, where count() > 0
  bool has_max_abs() const { return comparable_ > 0; }
  long double max_abs() const { return max_abs_; }  // greatest finite |a - b|
  uint64_t not_finite() const { return count_ - comparable_; }   // values whose difference is no finite number

 private:
  uint64_t count_ = 0, first_ = ~uint64_t{0}, comparable_ = 0;
  long double max_abs_ = 0;
};

// How many values an item of the type holds: 2 for F4, else 1.
uint64_t ValuesPerItem(DType dtype);

}  // namespace neve::tensor

#endif  // NEVE_TENSOR_NUMBERS_H_
