// Boxes of tensors, read through Contents. What a tensor's elements are in the image is one of three:
//
//   own bytes       its elements row-major, those of expanded dimensions once
//   alias           elements at strides over the bytes of a base that lies in the image as it lay in memory
//   alias of a permuted base    the base lies row-major, while the alias counts in the base's memory: bytes are looked up
//                               one element at a time, through a cache of blocks
//
// The first two are strided reads of the image: contiguous runs go straight into the target, others are read as a span with
// little waste and gathered from there.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/contents.h"
#include "format/json_text.h"
#include "format/layout.h"
#include "format/read_box.h"

namespace neve::format {
namespace {

constexpr uint64_t kPieceBytes = 8u << 20;
constexpr uint64_t kWasteFactor = 16, kWasteBytes = 64u << 10;   // what a span may hold besides the wanted bytes

// Such a dimension repeats the same elements.
bool IsExpanded(const LogicalTensor& tensor, size_t dim) { return tensor.strides[dim] == 0 && tensor.shape[dim] > 1; }

// A box of elements at byte strides in the image.
class StridedBox {
 public:
  StridedBox(const Contents& contents, std::span<const int64_t> extents, tensor::Dims strides, uint64_t item_bytes)
      : contents_(contents), extents_(extents), strides_(std::move(strides)), item_bytes_(item_bytes) {
    // [dim, rank): bytes wanted, bytes spanned.
    const size_t rank = extents.size();
    wanted_.assign(rank + 1, item_bytes);
    span_.assign(rank + 1, item_bytes);
    for (size_t dim = rank; dim-- > 0;) {
      wanted_[dim] = wanted_[dim + 1] * static_cast<uint64_t>(extents[dim]);
      span_[dim] = span_[dim + 1] + static_cast<uint64_t>(extents[dim] - 1) * Stride(dim);
    }
    contiguous_from_ = rank;
    while (contiguous_from_ > 0) {
      const size_t dim = contiguous_from_ - 1;
      if (extents[dim] != 1 && Stride(dim) != wanted_[dim + 1]) break;
      contiguous_from_ = dim;
    }
  }

  absl::Status Read(size_t dim, uint64_t offset, std::byte* target) {
    if (dim >= contiguous_from_) {
      for (uint64_t done = 0; done < wanted_[dim]; done += kPieceBytes) {
        const uint64_t bytes = std::min(kPieceBytes, wanted_[dim] - done);
        NEVE_RETURN_IF_ERROR(contents_.Read(offset + done, {target + done, bytes}));
      }
      return absl::OkStatus();
    }
    const auto extent = static_cast<uint64_t>(extents_[dim]);
    const uint64_t fit = Fitting(dim, extent);
    if (fit > 0) {
      for (uint64_t i = 0; i < extent; i += fit) {
        NEVE_RETURN_IF_ERROR(ReadSpan(dim, std::min(fit, extent - i), offset + i * Stride(dim), target + i * wanted_[dim + 1]));
      }
      return absl::OkStatus();
    }
    for (uint64_t i = 0; i < extent; ++i) {
      NEVE_RETURN_IF_ERROR(Read(dim + 1, offset + i * Stride(dim), target + i * wanted_[dim + 1]));
    }
    return absl::OkStatus();
  }

 private:
  uint64_t Stride(size_t dim) const { return static_cast<uint64_t>(strides_[dim]); }

  // How many indexes of the dimension are read as one span; 0: none, the waste would be too much.
  uint64_t Fitting(size_t dim, uint64_t extent) const {
    if (span_[dim + 1] > kPieceBytes) return 0;
    const uint64_t most = Stride(dim) == 0 ? extent : std::min(extent, (kPieceBytes - span_[dim + 1]) / Stride(dim) + 1);
    const uint64_t span = span_[dim + 1] + (most - 1) * Stride(dim);
    return span <= most * wanted_[dim + 1] * kWasteFactor + kWasteBytes ? most : 0;
  }

  absl::Status ReadSpan(size_t dim, uint64_t count, uint64_t offset, std::byte* target) {
    const uint64_t span = span_[dim + 1] + (count - 1) * Stride(dim);
    if (scratch_.size() < span) scratch_.resize(span);
    NEVE_RETURN_IF_ERROR(contents_.Read(offset, std::span(scratch_).first(span)));
    tensor::Dims shape(extents_.begin() + static_cast<ptrdiff_t>(dim), extents_.end());
    shape[0] = static_cast<int64_t>(count);
    tensor::Dims strides;
    for (size_t i = dim; i < extents_.size(); ++i) strides.push_back(strides_[i] / static_cast<int64_t>(item_bytes_));
    const tensor::StridedCopy copy(shape, strides, item_bytes_);
    copy.Gather(scratch_.data(), 0, copy.logical_bytes(), target);
    return absl::OkStatus();
  }

  const Contents& contents_;
  std::span<const int64_t> extents_;
  tensor::Dims strides_;   // bytes
  uint64_t item_bytes_;
  std::vector<uint64_t> wanted_, span_;
  size_t contiguous_from_ = 0;
  std::vector<std::byte> scratch_;
};

// Bytes of a permuted base by their place in its memory.
class PermutedBase {
 public:
  PermutedBase(const Contents& contents, const HeaderTensor& stored, const LogicalTensor& base)
      : contents_(contents), stored_(stored), item_bytes_(ItemBytes(base.dtype)) {
    const tensor::Dims shape = StoredExtents(base);
    const tensor::Dims row_major = tensor::ContiguousStrides(shape);
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] > 1) dims_.push_back({base.strides[i], shape[i], row_major[i]});
    }
    std::sort(dims_.begin(), dims_.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  }

  // `bytes` at byte `at` of the base's memory.
  absl::Status Copy(uint64_t at, uint64_t bytes, std::byte* target) {
    while (bytes > 0) {
      const uint64_t within = at % item_bytes_, take = std::min(bytes, item_bytes_ - within);
      auto element = static_cast<int64_t>(at / item_bytes_);
      int64_t row_major = 0;
      for (const Dim& dim : dims_) {
        const int64_t index = element / dim.stride;
        if (index >= dim.extent) return Hole(at);
        row_major += index * dim.row_major;
        element -= index * dim.stride;
      }
      const uint64_t offset = static_cast<uint64_t>(row_major) * item_bytes_ + within;
      if (element != 0 || offset + take > stored_.bytes) return Hole(at);
      NEVE_RETURN_IF_ERROR(Fetch(stored_.offset + offset, take, target));
      at += take;
      target += take;
      bytes -= take;
    }
    return absl::OkStatus();
  }

 private:
  struct Dim {
    int64_t stride, extent, row_major;
  };
  static constexpr uint64_t kBlockBytes = 4096, kBlocks = 2048, kNoBlock = ~uint64_t{0};

  absl::Status Hole(uint64_t at) const {
    return Damaged(absl::StrFormat("byte %d of the memory of %s belongs to none of its elements", at, Quoted(stored_.name)));
  }

  absl::Status Fetch(uint64_t offset, uint64_t bytes, std::byte* target) {
    if (cached_.empty()) {
      cached_.assign(kBlocks, kNoBlock);
      blocks_.resize(kBlocks * kBlockBytes);
    }
    while (bytes > 0) {
      const uint64_t block = offset / kBlockBytes, within = offset % kBlockBytes, slot = block % kBlocks;
      const uint64_t take = std::min(bytes, kBlockBytes - within);
      std::byte* const memory = blocks_.data() + slot * kBlockBytes;
      if (cached_[slot] != block) {
        cached_[slot] = kNoBlock;
        const uint64_t begin = block * kBlockBytes;
        const uint64_t end = std::min(begin + kBlockBytes, contents_.image_bytes());
        NEVE_RETURN_IF_ERROR(contents_.Read(begin, {memory, end - begin}));
        cached_[slot] = block;
      }
      std::memcpy(target, memory + within, take);
      offset += take;
      target += take;
      bytes -= take;
    }
    return absl::OkStatus();
  }

  const Contents& contents_;
  const HeaderTensor& stored_;
  uint64_t item_bytes_;
  std::vector<Dim> dims_;              // of the base's memory, outermost first
  std::vector<uint64_t> cached_;       // block number in each slot
  std::vector<std::byte> blocks_;
};

absl::Status ReadThroughBase(PermutedBase base, const LogicalTensor& tensor, std::span<const int64_t> offset,
                             std::span<const int64_t> extents, std::byte* target) {
  const uint64_t item_bytes = ItemBytes(tensor.dtype);
  tensor::Dims index(extents.size(), 0);
  while (true) {
    int64_t element = 0;
    for (size_t i = 0; i < index.size(); ++i) element += (offset[i] + index[i]) * tensor.strides[i];
    NEVE_RETURN_IF_ERROR(base.Copy(tensor.byte_offset + static_cast<uint64_t>(element) * item_bytes, item_bytes, target));
    target += item_bytes;
    size_t dim = index.size();
    while (dim > 0 && ++index[dim - 1] == extents[dim - 1]) index[--dim] = 0;
    if (dim == 0) return absl::OkStatus();
  }
}

absl::Status CheckBox(const LogicalTensor& tensor, std::span<const int64_t> offset, std::span<const int64_t> extents,
                      uint64_t target_bytes) {
  const auto invalid = [&](const std::string& what) {
    return Invalid(absl::StrFormat("a box of tensor %s: %s", Quoted(tensor.name), what));
  };
  if (offset.size() != tensor.shape.size() || extents.size() != tensor.shape.size()) {
    return invalid(absl::StrFormat("%d dimensions, the tensor has %d", extents.size(), tensor.shape.size()));
  }
  uint64_t bytes = ItemBytes(tensor.dtype);
  for (size_t i = 0; i < extents.size(); ++i) {
    if (offset[i] < 0 || extents[i] < 0 || offset[i] > tensor.shape[i] || extents[i] > tensor.shape[i] - offset[i]) {
      return invalid(absl::StrFormat("[%d, %d + %d) of dimension %d, whose extent is %d", offset[i], offset[i], extents[i], i,
                                     tensor.shape[i]));
    }
    bytes *= static_cast<uint64_t>(extents[i]);   // at most the tensor's, which does not overflow; 0 stays 0
  }
  if (bytes != target_bytes) return invalid(absl::StrFormat("it takes %d bytes, the target has %d", bytes, target_bytes));
  return absl::OkStatus();
}

}  // namespace

// Those that are no aliases stand in the order of their entries.
const LogicalTensor* OwnerOf(const Contents& contents, uint32_t stored_index) {
  const ImageHeader& header = contents.header();
  if (header.FindMetadata(kTreeKey) != nullptr && IsHiddenName(header.tensors[stored_index].name)) return nullptr;
  const std::span<const LogicalTensor> tensors = contents.tensors();
  size_t begin = 0, end = tensors.size();
  while (begin < end) {
    const size_t middle = begin + (end - begin) / 2;
    size_t own = middle;
    while (own < end && tensors[own].alias) ++own;
    if (own == end) {
      end = middle;
    } else if (tensors[own].stored_index == stored_index) {
      return &tensors[own];
    } else if (tensors[own].stored_index < stored_index) {
      begin = own + 1;
    } else {
      end = middle;
    }
  }
  return nullptr;
}

bool LiesAsInMemory(const LogicalTensor& base) {
  const tensor::Dims shape = StoredExtents(base);
  const tensor::Dims row_major = tensor::ContiguousStrides(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && base.strides[i] != row_major[i]) return false;
  }
  return true;
}

absl::Status ReadBox(const Contents& contents, const LogicalTensor& tensor, std::span<const int64_t> offset,
                     std::span<const int64_t> extents, std::span<std::byte> target) {
  NEVE_RETURN_IF_ERROR(CheckBox(tensor, offset, extents, target.size()));
  if (target.empty()) return absl::OkStatus();
  const std::vector<HeaderTensor>& entries = contents.header().tensors;
  if (tensor.stored_index >= entries.size() || entries[tensor.stored_index].name != tensor.stored) {
    return Invalid(absl::StrFormat("tensor %s is not one of %s", Quoted(tensor.name), contents.files().front()));
  }
  const HeaderTensor& stored = entries[tensor.stored_index];
  const uint64_t item_bytes = ItemBytes(tensor.dtype);
  tensor::Dims strides = tensor.strides;   // elements, then bytes
  uint64_t begin = stored.offset;
  if (tensor.alias) {
    const LogicalTensor* const base = OwnerOf(contents, tensor.stored_index);
    if (base != nullptr && !LiesAsInMemory(*base)) {
      return ReadThroughBase(PermutedBase(contents, stored, *base), tensor, offset, extents, target.data());
    }
    begin += tensor.byte_offset;
  } else {
    strides = tensor::ContiguousStrides(StoredExtents(tensor));
    for (size_t i = 0; i < strides.size(); ++i) {
      if (IsExpanded(tensor, i)) strides[i] = 0;
    }
  }
  for (size_t i = 0; i < strides.size(); ++i) {
    strides[i] *= static_cast<int64_t>(item_bytes);
    begin += static_cast<uint64_t>(offset[i] * strides[i]);
  }
  return StridedBox(contents, extents, std::move(strides), item_bytes).Read(0, begin, target.data());
}

namespace {

// A row-major range of elements is at most two boxes a dimension, and one in the middle. box(offset, extents, target)
template <typename Box>
struct RangeReader {
  std::span<const int64_t> shape;
  uint64_t item_bytes;
  Box box;
  tensor::Dims offset = tensor::Dims(shape.size(), 0), extents = tensor::Dims(shape.size(), 1);

  absl::Status Read(size_t dim, uint64_t first, uint64_t count, std::byte* target) {
    if (dim == shape.size()) return ReadOne(target);
    uint64_t row = 1;   // elements of one index of this dimension
    for (size_t i = dim + 1; i < shape.size(); ++i) row *= static_cast<uint64_t>(shape[i]);
    while (count > 0) {
      const uint64_t index = first / row, within = first % row;
      const uint64_t rows = within == 0 ? count / row : 0;
      const uint64_t take = rows > 0 ? rows * row : std::min(count, row - within);
      offset[dim] = static_cast<int64_t>(index);
      extents[dim] = static_cast<int64_t>(std::max<uint64_t>(rows, 1));
      if (rows > 0) {
        for (size_t i = dim + 1; i < shape.size(); ++i) {
          offset[i] = 0;
          extents[i] = shape[i];
        }
        NEVE_RETURN_IF_ERROR(ReadOne(target));
      } else {
        NEVE_RETURN_IF_ERROR(Read(dim + 1, within, take, target));
      }
      first += take;
      count -= take;
      target += take * item_bytes;
    }
    return absl::OkStatus();
  }

  absl::Status ReadOne(std::byte* target) {
    uint64_t bytes = item_bytes;
    for (const int64_t extent : extents) bytes *= static_cast<uint64_t>(extent);
    return box(offset, extents, std::span(target, bytes));
  }
};

absl::Status CheckRange(const LogicalTensor& tensor, uint64_t elements, uint64_t first, uint64_t count, uint64_t target_bytes) {
  if (first <= elements && count <= elements - first && target_bytes == count * ItemBytes(tensor.dtype)) return absl::OkStatus();
  return Invalid(absl::StrFormat("elements [%d, %d) of tensor %s, which has %d, into %d bytes", first, first + count,
                                 Quoted(tensor.name), elements, target_bytes));
}

}  // namespace

absl::Status ReadElements(const Contents& contents, const LogicalTensor& tensor, uint64_t first, uint64_t count,
                          std::span<std::byte> target) {
  NEVE_ASSIGN_OR_RETURN(const uint64_t elements, tensor::ElementCount(tensor.shape));
  NEVE_RETURN_IF_ERROR(CheckRange(tensor, elements, first, count, target.size()));
  if (count == 0) return absl::OkStatus();
  const auto box = [&](const tensor::Dims& offset, const tensor::Dims& extents, std::span<std::byte> to) {
    return ReadBox(contents, tensor, offset, extents, to);
  };
  return RangeReader<decltype(box)>{tensor.shape, ItemBytes(tensor.dtype), box}.Read(0, first, count, target.data());
}

absl::Status ReadMemoryOrder(const Contents& contents, const LogicalTensor& tensor, uint64_t first, uint64_t count,
                             std::span<std::byte> target) {
  const tensor::Dims stored = StoredExtents(tensor), row_major = tensor::ContiguousStrides(stored);
  NEVE_ASSIGN_OR_RETURN(const uint64_t elements, tensor::ElementCount(stored));
  NEVE_RETURN_IF_ERROR(CheckRange(tensor, elements, first, count, target.size()));
  if (count == 0) return absl::OkStatus();
  std::vector<size_t> order;   // dimensions, outermost in memory first
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i] > 1) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensor.strides[a] > tensor.strides[b]; });
  tensor::Dims shape, strides;
  for (const size_t dim : order) {
    shape.push_back(stored[dim]);
    strides.push_back(row_major[dim]);
  }
  const uint64_t item_bytes = ItemBytes(tensor.dtype), begin = contents.header().tensors[tensor.stored_index].offset;
  const auto box = [&](const tensor::Dims& offset, const tensor::Dims& extents, std::span<std::byte> to) {
    uint64_t at = 0;
    for (size_t i = 0; i < offset.size(); ++i) at += static_cast<uint64_t>(offset[i] * strides[i]);
    return ReadStrided(contents, begin + at * item_bytes, extents, strides, item_bytes, to);
  };
  return RangeReader<decltype(box)>{shape, item_bytes, box}.Read(0, first, count, target.data());
}

absl::Status ReadStrided(const Contents& contents, uint64_t image_offset, std::span<const int64_t> extents,
                         std::span<const int64_t> strides, uint64_t item_bytes, std::span<std::byte> target) {
  if (target.empty()) return absl::OkStatus();
  tensor::Dims bytes(strides.begin(), strides.end());
  for (int64_t& stride : bytes) stride *= static_cast<int64_t>(item_bytes);
  return StridedBox(contents, extents, std::move(bytes), item_bytes).Read(0, image_offset, target.data());
}

tensor::Dims StoredExtents(const LogicalTensor& tensor) {
  tensor::Dims extents = tensor.shape;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (IsExpanded(tensor, i)) extents[i] = 1;
  }
  return extents;
}

}  // namespace neve::format
