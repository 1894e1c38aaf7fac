#include "tensor/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/number_codes.h"

namespace neve::tensor {
namespace {

constexpr size_t kBlockItems = 1024;   // decoded, it stays in the first cache

// Magnitudes of complex numbers, in place: a NaN in one part outweighs an infinity in the other.
template <typename Real>
void ToMagnitudes(Real* parts, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Real real = parts[2 * i], imaginary = parts[2 * i + 1];
    parts[i] = std::isnan(real) || std::isnan(imaginary) ? std::numeric_limits<Real>::quiet_NaN() : std::hypot(real, imaginary);
  }
}

template <typename Real>
Real MagnitudeOfDifference(const Real* a, const Real* b, bool complex) {
  return complex ? std::hypot(a[0] - b[0], a[1] - b[1]) : std::fabs(a[0] - b[0]);
}

}  // namespace

uint64_t ValuesPerItem(DType dtype) { return dtype == DType::kF4E2M1x2 ? 2 : 1; }

template <typename Real>
void NumberSummary::AddBlock(Real* values, size_t count) {
  size_t finite = 0, zeros = 0;
  for (size_t i = 0; i < count; ++i) {
    zeros += values[i] == 0;
    finite += values[i] - values[i] == 0;   // neither NaN nor infinite
  }
  if (finite < count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      nan_ += std::isnan(values[i]);
      inf_ += std::isinf(values[i]);
      if (std::isfinite(values[i])) values[kept++] = values[i];
    }
  }
  zeros_ += zeros;
  if (finite == 0) return;
  // Several sums at once, since each addition waits for the one before it.
  constexpr size_t kLanes = 4;
  Real sum[kLanes] = {}, least[kLanes], greatest[kLanes], squares[kLanes] = {};
  std::fill_n(least, kLanes, values[0]);
  std::fill_n(greatest, kLanes, values[0]);
  const size_t whole = finite / kLanes * kLanes;
  const auto take = [&](size_t lane, Real value) {
    sum[lane] += value;
    least[lane] = value < least[lane] ? value : least[lane];
    greatest[lane] = value > greatest[lane] ? value : greatest[lane];
  };
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) take(lane, values[i + lane]);
  }
  for (size_t i = whole; i < finite; ++i) take(i - whole, values[i]);
  const Real mean = (sum[0] + sum[1] + sum[2] + sum[3]) / static_cast<Real>(finite);
  const auto take_square = [&](size_t lane, Real value) { squares[lane] += (value - mean) * (value - mean); };
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) take_square(lane, values[i + lane]);
  }
  for (size_t i = whole; i < finite; ++i) take_square(i - whole, values[i]);
  const long double block_min = *std::min_element(least, least + kLanes);
  const long double block_max = *std::max_element(greatest, greatest + kLanes);
  min_ = finite_ == 0 ? block_min : std::min(min_, block_min);
  max_ = finite_ == 0 ? block_max : std::max(max_, block_max);
  MergeMoments(finite, mean, squares[0] + squares[1] + squares[2] + squares[3]);
}

void NumberSummary::MergeMoments(uint64_t count, long double mean, long double squares) {
  const auto here = static_cast<long double>(finite_), there = static_cast<long double>(count), all = here + there;
  const long double distance = mean - mean_;
  mean_ += distance * (there / all);
  squares_ += squares + distance * distance * (here * there / all);
  finite_ += count;
}

void NumberSummary::Add(DType dtype, std::span<const std::byte> items) {
  const uint64_t item_bytes = ItemBytes(dtype);
  const auto run = [&](auto* values) {
    for (size_t done = 0; done < items.size(); done += kBlockItems * item_bytes) {
      const size_t count = std::min<size_t>(kBlockItems, (items.size() - done) / item_bytes);
      DecodeNumbers(dtype, items.data() + done, count, values);
      if (IsComplex(dtype)) ToMagnitudes(values, count);
      AddBlock(values, count * ValuesPerItem(dtype));
    }
  };
  if (NeedsLongDouble(dtype)) {
    long double values[2 * kBlockItems];
    run(values);
  } else {
    double values[2 * kBlockItems];
    run(values);
  }
}

void NumberSummary::Merge(const NumberSummary& other) {
  zeros_ += other.zeros_;
  nan_ += other.nan_;
  inf_ += other.inf_;
  if (other.finite_ == 0) return;
  min_ = finite_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = finite_ == 0 ? other.max_ : std::max(max_, other.max_);
  MergeMoments(other.finite_, other.mean_, other.squares_);
}

long double NumberSummary::Deviation() const {
  return finite_ == 0 ? 0 : std::sqrt(squares_ / static_cast<long double>(finite_));
}

void NumberDifference::Add(DType dtype, uint64_t first, std::span<const std::byte> a, std::span<const std::byte> b) {
  const uint64_t item_bytes = ItemBytes(dtype), values_per_item = ValuesPerItem(dtype);
  const bool complex = IsComplex(dtype), nibbles = values_per_item == 2;
  const auto run = [&](auto* values_a, auto* values_b) {
    for (size_t done = 0; done < a.size(); done += kBlockItems * item_bytes) {
      const size_t count = std::min<size_t>(kBlockItems, (a.size() - done) / item_bytes);
      const std::byte *from_a = a.data() + done, *from_b = b.data() + done;
      if (std::memcmp(from_a, from_b, count * item_bytes) == 0) continue;
      DecodeNumbers(dtype, from_a, count, values_a);
      DecodeNumbers(dtype, from_b, count, values_b);
      for (size_t i = 0; i < count * values_per_item; ++i) {
        const size_t item = i / values_per_item;
        if (nibbles ? values_a[i] == values_b[i] && std::signbit(values_a[i]) == std::signbit(values_b[i])
                    : std::memcmp(from_a + item * item_bytes, from_b + item * item_bytes, item_bytes) == 0) {
          continue;
        }
        ++count_;
        first_ = std::min(first_, first + (done / item_bytes) * values_per_item + i);
        const size_t at = complex ? 2 * i : i;
        const long double difference = MagnitudeOfDifference(values_a + at, values_b + at, complex);
        if (!std::isfinite(difference)) continue;
        ++comparable_;
        max_abs_ = std::max(max_abs_, difference);
      }
    }
  };
  if (NeedsLongDouble(dtype)) {
    long double values_a[2 * kBlockItems], values_b[2 * kBlockItems];
    run(values_a, values_b);
  } else {
    double values_a[2 * kBlockItems], values_b[2 * kBlockItems];
    run(values_a, values_b);
  }
}

void NumberDifference::Merge(const NumberDifference& other) {
  count_ += other.count_;
  first_ = std::min(first_, other.first_);
  comparable_ += other.comparable_;
  max_abs_ = std::max(max_abs_, other.max_abs_);
}

}  // namespace neve::tensor
