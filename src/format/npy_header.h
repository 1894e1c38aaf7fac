// The header of a .npy file: a Python dictionary of three known keys, read without Python.
#ifndef NEVE_FORMAT_NPY_HEADER_H_
#define NEVE_FORMAT_NPY_HEADER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "neve/dtype.h"
#include "tensor/view.h"

namespace neve::format {

struct NpyHeader {
  std::string dtype;  // "<f8"; "" for records, which have no form as an image
  uint64_t item_bytes = 0;
  bool has_objects = false;  // pickled Python objects
  bool fortran = false;
  tensor::Dims shape;
  uint64_t header_bytes = 0;  // where the data begins
};

inline constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
inline constexpr uint64_t kNpyFixedBytes = 12;  // enough to know how long the header is
inline constexpr uint64_t kNpyHeaderBytesMax = 1u << 20;

// How many bytes of the file the header takes: reads the first kNpyFixedBytes. Unsupported: a version over 3.
absl::StatusOr<uint64_t> NpyHeaderBytes(std::string_view first_bytes);
// `head` holds at least NpyHeaderBytes. Damaged.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view head);

}  // namespace neve::format

#endif  // NEVE_FORMAT_NPY_HEADER_H_
