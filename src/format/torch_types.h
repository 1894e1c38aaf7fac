// Torch's names of element types, and how its pickles name storages.
#ifndef NEVE_FORMAT_TORCH_TYPES_H_
#define NEVE_FORMAT_TORCH_TYPES_H_

#include <optional>
#include <string_view>

#include "neve/dtype.h"

namespace neve::format {

// "float32", "long", "float8_e4m3fn": the name that torch.<name> has in messages; nullopt: no dtype of torch.
std::optional<std::string_view> TorchDTypeNamed(std::string_view name);
// The element type of that name; nullopt also for those that are less than a byte.
std::optional<DType> TorchDType(std::string_view name);
std::string_view TorchName(DType dtype);

// "FloatStorage" of module "torch", "torch.cuda" or "torch.storage".
struct TorchStorageType {
  DType dtype;
  bool untyped;  // its count is of bytes, and tensors name their dtype themselves
};
std::optional<TorchStorageType> TorchStorage(std::string_view module, std::string_view name);

// The element type of a NumPy dtype such as "<f8"; nullopt: neve has no name for it (another byte order, dates, texts).
std::optional<DType> NumpyDType(std::string_view text);

// Bytes of the words in which a byte order shows: a half of a complex number.
uint32_t WordBytes(DType dtype);

}  // namespace neve::format

#endif  // NEVE_FORMAT_TORCH_TYPES_H_
