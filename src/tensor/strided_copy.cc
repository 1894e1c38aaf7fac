// How a range of logical bytes is copied. The range is cut into boxes (at most two a dimension); each box is an n-d copy
// between two sets of strides, the view's and the row-major ones of the logical bytes. Within a box
//
//   - a contiguous innermost run of 1, 2, 4, 8 or 16 bytes becomes the item, so pairs and small vectors move as one;
//   - a longer contiguous run is copied by memcpy, row after row;
//   - otherwise, where some other dimension is contiguous in memory, the two are transposed in tiles of one cache line by
//     one cache line, put together in the first-level cache first: each line of the target is written whole and each line
//     of the source read by a few loads in a row, whatever the strides (with powers of two, lines that wait for their next
//     touch throw each other out of the cache);
//   - what remains (gaps, edges) is copied item by item.
#include <algorithm>
#include <array>
#include <cstring>

#include "tensor/view.h"

// The loops of a block must be unrolled for its rows to stay in registers; at -O2 gcc does so only when told.
#if defined(__clang__)
#define NEVE_UNROLL _Pragma("unroll")
#else
#define NEVE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace neve::tensor {
namespace {

struct Axis {
  int64_t count;
  int64_t memory_stride;   // bytes
  int64_t linear_stride;   // bytes
};

// A view has at most 62 axes of extent > 1 (its elements are counted in 62 bits), and one more is made by a cut.
struct Axes {
  std::array<Axis, 64> axis;
  size_t count = 0;
  void Add(Axis a) { axis[count++] = a; }
  Axis& back() { return axis[count - 1]; }
  const Axis& back() const { return axis[count - 1]; }
};

using Vector = uint8_t __attribute__((vector_size(16)));

// One interleaving of two vectors of 16 / kItem items: low halves, high halves.
template <size_t kItem>
inline void Interleave(Vector a, Vector b, Vector* low, Vector* high) {
  if constexpr (kItem == 1) {
    *low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  } else if constexpr (kItem == 2) {
    *low = __builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
    *high = __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
  } else if constexpr (kItem == 4) {
    *low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    *high = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  } else {
    static_assert(kItem == 8);
    *low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    *high = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}

// Transposes a block of N x N items, N = 16 / kItem, by log2(N) perfect shuffles of its rows.
template <size_t kItem>
[[gnu::always_inline]] inline void TransposeBlock(const std::byte* source, int64_t source_pitch, std::byte* target,
                                                  int64_t target_pitch) {
  constexpr size_t kRows = 16 / kItem;
  std::array<Vector, kRows> rows;
  NEVE_UNROLL
  for (size_t i = 0; i < kRows; ++i) std::memcpy(&rows[i], source + static_cast<int64_t>(i) * source_pitch, 16);
  if constexpr (kRows > 1) {
    NEVE_UNROLL
    for (size_t step = 1; step < kRows; step *= 2) {
      std::array<Vector, kRows> next;
      NEVE_UNROLL
      for (size_t i = 0; i < kRows / 2; ++i) {
        Interleave<kItem>(rows[i], rows[i + kRows / 2], &next[2 * i], &next[2 * i + 1]);
      }
      rows = next;
    }
  }
  NEVE_UNROLL
  for (size_t i = 0; i < kRows; ++i) std::memcpy(target + static_cast<int64_t>(i) * target_pitch, &rows[i], 16);
}

// Transposes a tile of kSpan x kSpan bytes' worth of items: lines of the source are contiguous and `source_stride` apart,
// item j of each goes into line j of the target, `target_stride` apart.
template <size_t kItem, size_t kSpan>
inline void TransposeTile(const std::byte* source, int64_t source_stride, std::byte* target, int64_t target_stride) {
  constexpr size_t kLines = kSpan / kItem;
  alignas(64) std::byte out[kLines * kSpan];
  constexpr size_t kBlockLines = 16 / kItem;
  for (size_t i = 0; i < kLines; i += kBlockLines) {
    for (size_t j = 0; j < kSpan; j += 16) {
      TransposeBlock<kItem>(source + static_cast<int64_t>(i) * source_stride + j, source_stride,
                            out + (j / kItem) * kSpan + i * kItem, kSpan);
    }
  }
  for (size_t i = 0; i < kLines; ++i) std::memcpy(target + static_cast<int64_t>(i) * target_stride, out + i * kSpan, kSpan);
}

template <size_t kItem>
void CopyItems(const std::byte* source, std::byte* target, int64_t rows, int64_t source_row, int64_t target_row,
               int64_t columns, int64_t source_column, int64_t target_column) {
  for (int64_t i = 0; i < rows; ++i) {
    const std::byte* from = source + i * source_row;
    std::byte* to = target + i * target_row;
    for (int64_t j = 0; j < columns; ++j) {
      std::memcpy(to + j * target_column, from + j * source_column, kItem);
    }
  }
}

// Two-dimensional transpose: the source is contiguous along `columns` (kItem apart), the target along `rows`.
template <size_t kItem, size_t kSpan>
void Transpose(const std::byte* source, int64_t source_row, std::byte* target, int64_t target_column, int64_t rows,
               int64_t columns) {
  constexpr int64_t kLines = kSpan / kItem;
  const int64_t whole_rows = rows / kLines * kLines, whole_columns = columns / kLines * kLines;
  const auto tile = [&](int64_t i, int64_t j) {
    TransposeTile<kItem, kSpan>(source + i * source_row + j * static_cast<int64_t>(kItem), source_row,
                                target + j * target_column + i * static_cast<int64_t>(kItem), target_column);
  };
  // The lines of a tile lie in as many pages, which no hardware prefetcher follows.
  const auto fetch = [&](int64_t i, int64_t j) {
    if (i >= whole_rows || j >= whole_columns) return;
    const std::byte* from = source + i * source_row + j * static_cast<int64_t>(kItem);
    const std::byte* to = target + j * target_column + i * static_cast<int64_t>(kItem);
    for (int64_t k = 0; k < kLines; ++k) {
      __builtin_prefetch(from + k * source_row);
      __builtin_prefetch(to + k * target_column, 1);
    }
  };
  // The sweep goes along the shorter side, in bands, so that the pages that it touches are touched again by the next sweep
  // while the TLB still knows them.
  constexpr int64_t kBand = 1024;
  if (whole_columns <= whole_rows) {
    for (int64_t band = 0; band < whole_columns; band += kBand) {
      const int64_t end = std::min(band + kBand, whole_columns);
      for (int64_t i = 0; i < whole_rows; i += kLines) {
        for (int64_t j = band; j < end; j += kLines) {
          j + kLines < end ? fetch(i, j + kLines) : fetch(i + kLines, band);
          tile(i, j);
        }
      }
    }
  } else {
    for (int64_t band = 0; band < whole_rows; band += kBand) {
      const int64_t end = std::min(band + kBand, whole_rows);
      for (int64_t j = 0; j < whole_columns; j += kLines) {
        for (int64_t i = band; i < end; i += kLines) {
          i + kLines < end ? fetch(i + kLines, j) : fetch(band, j + kLines);
          tile(i, j);
        }
      }
    }
  }
  // The edges: first what is right of the whole tiles, then what is below all of it.
  const auto edge = [&](int64_t row, int64_t row_count, int64_t column, int64_t column_count) {
    if (row_count == 0 || column_count == 0) return;
    const std::byte* from = source + row * source_row + column * static_cast<int64_t>(kItem);
    std::byte* to = target + column * target_column + row * static_cast<int64_t>(kItem);
    if constexpr (kSpan > 16) {
      Transpose<kItem, 16>(from, source_row, to, target_column, row_count, column_count);
    } else {
      CopyItems<kItem>(from, to, row_count, source_row, kItem, column_count, kItem, target_column);
    }
  };
  edge(0, whole_rows, whole_columns, columns - whole_columns);
  edge(whole_rows, rows - whole_rows, 0, columns);
}

// A box: axes from the outermost to the innermost of the logical order, all of them whole.
class Box {
 public:
  Box(Axes& axes, uint64_t item_bytes) : axes_(axes), item_bytes_(static_cast<int64_t>(item_bytes)) {
    Fold();
  }

  template <bool kGather>
  void Copy(std::byte* memory, std::byte* linear) {
    switch (item_bytes_) {
      case 1: return CopyAs<kGather, 1>(memory, linear);
      case 2: return CopyAs<kGather, 2>(memory, linear);
      case 4: return CopyAs<kGather, 4>(memory, linear);
      case 8: return CopyAs<kGather, 8>(memory, linear);
      case 16: return CopyAs<kGather, 16>(memory, linear);
      default: return CopyRuns<kGather>(memory, linear);
    }
  }

 private:
  // Takes the innermost axis into the item as long as it continues it on both sides.
  void Fold() {
    while (axes_.count > 0 && axes_.back().memory_stride == item_bytes_ && axes_.back().linear_stride == item_bytes_) {
      item_bytes_ *= axes_.back().count;
      --axes_.count;
    }
  }

  // Calls body(memory, linear) for every position of the axes but the last `inner` ones.
  template <typename Body>
  void ForEach(size_t inner, std::byte* memory, std::byte* linear, Body body) const {
    Walk(0, axes_.count - inner, memory, linear, body);
  }
  template <typename Body>
  void Walk(size_t axis, size_t end, std::byte* memory, std::byte* linear, Body& body) const {
    if (axis == end) return body(memory, linear);
    const Axis& a = axes_.axis[axis];
    for (int64_t i = 0; i < a.count; ++i) {
      Walk(axis + 1, end, memory + i * a.memory_stride, linear + i * a.linear_stride, body);
    }
  }

  template <bool kGather>
  void CopyRuns(std::byte* memory, std::byte* linear) const {
    const size_t run = static_cast<size_t>(item_bytes_);
    const size_t inner = axes_.count == 0 ? 0 : 1;
    const Axis last = axes_.count == 0 ? Axis{1, 0, 0} : axes_.back();
    ForEach(inner, memory, linear, [&](std::byte* m, std::byte* l) {
      for (int64_t i = 0; i < last.count; ++i, m += last.memory_stride, l += last.linear_stride) {
        if constexpr (kGather) {
          std::memcpy(l, m, run);
        } else {
          std::memcpy(m, l, run);
        }
      }
    });
  }

  template <bool kGather, size_t kItem>
  void CopyAs(std::byte* memory, std::byte* linear) {
    if (axes_.count == 0) return CopyRuns<kGather>(memory, linear);
    // The partner of the innermost axis: the one that memory is contiguous along, or comes nearest to.
    size_t partner = axes_.count - 1;
    for (size_t i = 0; i + 1 < axes_.count; ++i) {
      if (axes_.axis[i].memory_stride > 0 && axes_.axis[i].memory_stride < axes_.axis[partner].memory_stride) partner = i;
    }
    if (partner == axes_.count - 1) {
      // Gaps in the innermost axis itself, or it is repeated: nothing to transpose.
      const Axis a = axes_.back();
      ForEach(1, memory, linear, [&](std::byte* m, std::byte* l) {
        if constexpr (kGather) {
          CopyItems<kItem>(m, l, 1, 0, 0, a.count, a.memory_stride, a.linear_stride);
        } else {
          CopyItems<kItem>(l, m, 1, 0, 0, a.count, a.linear_stride, a.memory_stride);
        }
      });
      return;
    }
    Axis* first = axes_.axis.data() + partner;
    std::rotate(first, first + 1, axes_.axis.data() + axes_.count - 1);   // the partner comes to stand before the last axis
    const Axis row = axes_.axis[axes_.count - 2], column = axes_.back();
    constexpr size_t kSpan = 64;
    ForEach(2, memory, linear, [&](std::byte* m, std::byte* l) {
      if (row.memory_stride == static_cast<int64_t>(kItem) && column.linear_stride == static_cast<int64_t>(kItem)) {
        if constexpr (kGather) {
          Transpose<kItem, kSpan>(m, column.memory_stride, l, row.linear_stride, column.count, row.count);
        } else {
          Transpose<kItem, kSpan>(l, row.linear_stride, m, column.memory_stride, row.count, column.count);
        }
        return;
      }
      // Both sides step over gaps: blocks keep the lines of both in the cache.
      constexpr int64_t kBlock = 16;
      for (int64_t i = 0; i < row.count; i += kBlock) {
        const int64_t rows = std::min(kBlock, row.count - i);
        for (int64_t j = 0; j < column.count; j += kBlock) {
          const int64_t columns = std::min(kBlock, column.count - j);
          std::byte* at_memory = m + i * row.memory_stride + j * column.memory_stride;
          std::byte* at_linear = l + i * row.linear_stride + j * column.linear_stride;
          if constexpr (kGather) {
            CopyItems<kItem>(at_memory, at_linear, rows, row.memory_stride, row.linear_stride, columns,
                             column.memory_stride, column.linear_stride);
          } else {
            CopyItems<kItem>(at_linear, at_memory, rows, row.linear_stride, row.memory_stride, columns,
                             column.linear_stride, column.memory_stride);
          }
        }
      }
    });
  }

  Axes& axes_;
  int64_t item_bytes_;
};

}  // namespace

StridedCopy::StridedCopy(std::span<const int64_t> shape, std::span<const int64_t> strides, uint64_t item_bytes)
    : item_bytes_(item_bytes), logical_bytes_(item_bytes) {
  for (size_t i = 0; i < shape.size(); ++i) {
    logical_bytes_ *= static_cast<uint64_t>(shape[i]);
    if (shape[i] == 1) continue;
    const int64_t stride = strides[i] * static_cast<int64_t>(item_bytes);
    if (!shape_.empty() && strides_.back() == stride * shape[i]) {
      shape_.back() *= shape[i];
      strides_.back() = stride;
    } else {
      shape_.push_back(shape[i]);
      strides_.push_back(stride);
    }
  }
}

namespace {

// Cuts the range [begin, end) of items, of the view made of dimensions `dimension` and on, into boxes.
template <bool kGather>
class Cutter {
 public:
  Cutter(std::span<const int64_t> shape, std::span<const int64_t> strides, uint64_t item_bytes)
      : shape_(shape), strides_(strides), item_bytes_(static_cast<int64_t>(item_bytes)) {}

  void Cut(size_t dimension, std::byte* memory, int64_t begin, int64_t end, std::byte* linear) const {
    if (dimension == shape_.size()) return CopyBox(dimension, memory, 1, linear);
    int64_t inner = 1;
    for (size_t i = dimension + 1; i < shape_.size(); ++i) inner *= shape_[i];
    int64_t index = begin / inner;
    if (const int64_t head = begin % inner; head != 0) {
      const int64_t head_end = std::min(inner, head + (end - begin));
      Cut(dimension + 1, memory + index * strides_[dimension], head, head_end, linear);
      linear += (head_end - head) * item_bytes_;
      begin += head_end - head;
      ++index;
    }
    const int64_t whole = (end - begin) / inner;
    if (whole > 0) {
      CopyBox(dimension, memory + index * strides_[dimension], whole, linear);
      linear += whole * inner * item_bytes_;
      begin += whole * inner;
      index += whole;
    }
    if (begin < end) Cut(dimension + 1, memory + index * strides_[dimension], 0, end - begin, linear);
  }

 private:
  // `count` entries of `dimension`, whole in the dimensions after it.
  void CopyBox(size_t dimension, std::byte* memory, int64_t count, std::byte* linear) const {
    Axes axes;
    int64_t inner = item_bytes_;
    for (size_t i = dimension + 1; i < shape_.size(); ++i) inner *= shape_[i];
    for (size_t i = dimension; i < shape_.size(); ++i) {
      const int64_t extent = i == dimension ? count : shape_[i];
      if (i > dimension) inner /= shape_[i];
      if (extent > 1) axes.Add({extent, strides_[i], inner});
    }
    Box(axes, static_cast<uint64_t>(item_bytes_)).template Copy<kGather>(memory, linear);
  }

  std::span<const int64_t> shape_, strides_;
  int64_t item_bytes_;
};

}  // namespace

template <bool kGather>
void StridedCopy::Run(std::byte* base, uint64_t begin, uint64_t end, std::byte* linear) const {
  if (begin >= end) return;
  Cutter<kGather>(shape_, strides_, item_bytes_)
      .Cut(0, base, static_cast<int64_t>(begin / item_bytes_), static_cast<int64_t>(end / item_bytes_), linear);
}

void StridedCopy::Gather(const std::byte* base, uint64_t begin, uint64_t end, std::byte* target) const {
  Run<true>(const_cast<std::byte*>(base), begin, end, target);   // only read through
}

void StridedCopy::Scatter(std::byte* base, uint64_t begin, uint64_t end, const std::byte* source) const {
  Run<false>(base, begin, end, const_cast<std::byte*>(source));   // only read through
}

}  // namespace neve::tensor
