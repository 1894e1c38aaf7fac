#include "format/torch_types.h"

#include <algorithm>
#include <utility>

namespace neve::format {
namespace {

struct Named {
  std::string_view name, other;  // its name, and another that torch has for it
  std::optional<DType> dtype;    // none: neve has no such type
};
constexpr Named kDTypes[] = {
    {"float32", "float", DType::kF32},
    {"float64", "double", DType::kF64},
    {"float16", "half", DType::kF16},
    {"bfloat16", "", DType::kBF16},
    {"uint8", "", DType::kU8},
    {"int8", "", DType::kI8},
    {"int16", "short", DType::kI16},
    {"int32", "int", DType::kI32},
    {"int64", "long", DType::kI64},
    {"uint16", "", DType::kU16},
    {"uint32", "", DType::kU32},
    {"uint64", "", DType::kU64},
    {"bool", "", DType::kBool},
    {"complex32", "chalf", DType::kC32},
    {"complex64", "cfloat", DType::kC64},
    {"complex128", "cdouble", DType::kC128},
    {"float8_e4m3fn", "", DType::kF8E4M3},
    {"float8_e5m2", "", DType::kF8E5M2},
    {"float8_e4m3fnuz", "", DType::kF8E4M3Fnuz},
    {"float8_e5m2fnuz", "", DType::kF8E5M2Fnuz},
    {"float8_e8m0fnu", "", DType::kF8E8M0},
    {"float4_e2m1fn_x2", "", DType::kF4E2M1x2},
    {"bits8", "", DType::kBits8},
    {"bits16", "", DType::kBits16},
    {"qint8", "", DType::kQI8},
    {"quint8", "", DType::kQU8},
    {"qint32", "", DType::kQI32},
    {"bits1x8", "", std::nullopt},
    {"bits2x4", "", std::nullopt},
    {"bits4x2", "", std::nullopt},
    {"quint4x2", "", std::nullopt},
    {"quint2x4", "", std::nullopt},
};

struct NamedStorage {
  std::string_view name;
  DType dtype;
};
constexpr NamedStorage kStorages[] = {
    {"FloatStorage", DType::kF32},     {"DoubleStorage", DType::kF64},       {"HalfStorage", DType::kF16},
    {"BFloat16Storage", DType::kBF16}, {"LongStorage", DType::kI64},         {"IntStorage", DType::kI32},
    {"ShortStorage", DType::kI16},     {"CharStorage", DType::kI8},          {"ByteStorage", DType::kU8},
    {"BoolStorage", DType::kBool},     {"ComplexFloatStorage", DType::kC64}, {"ComplexDoubleStorage", DType::kC128},
    {"QInt8Storage", DType::kQI8},     {"QUInt8Storage", DType::kQU8},       {"QInt32Storage", DType::kQI32},
};

const Named* FindNamed(std::string_view name) {
  const auto found = std::ranges::find_if(kDTypes, [&](const Named& named) { return named.name == name || named.other == name; });
  return name.empty() || found == std::end(kDTypes) ? nullptr : found;
}

}  // namespace

std::optional<std::string_view> TorchDTypeNamed(std::string_view name) {
  const Named* const named = FindNamed(name);
  return named == nullptr ? std::nullopt : std::optional(named->name);
}

std::optional<DType> TorchDType(std::string_view name) {
  const Named* const named = FindNamed(name);
  return named == nullptr ? std::nullopt : named->dtype;
}

std::string_view TorchName(DType dtype) {
  const auto found = std::ranges::find_if(kDTypes, [&](const Named& named) { return named.dtype == dtype; });
  return found == std::end(kDTypes) ? "" : found->name;
}

std::optional<TorchStorageType> TorchStorage(std::string_view module, std::string_view name) {
  if (module != "torch" && !module.starts_with("torch.")) return std::nullopt;
  if (name == "UntypedStorage" || name == "_UntypedStorage") return TorchStorageType{DType::kU8, true};
  const auto found = std::ranges::find_if(kStorages, [&](const NamedStorage& storage) { return storage.name == name; });
  if (found == std::end(kStorages)) return std::nullopt;
  return TorchStorageType{found->dtype, false};
}

std::optional<DType> NumpyDType(std::string_view text) {
  static constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"|b1", DType::kBool}, {"|u1", DType::kU8},  {"|i1", DType::kI8},  {"<i2", DType::kI16},   {"<u2", DType::kU16},
      {"<f2", DType::kF16},  {"<i4", DType::kI32}, {"<u4", DType::kU32}, {"<f4", DType::kF32},   {"<i8", DType::kI64},
      {"<u8", DType::kU64},  {"<f8", DType::kF64}, {"<c8", DType::kC64}, {"<c16", DType::kC128},
  };
  const auto found = std::ranges::find_if(kTypes, [&](const auto& type) { return type.first == text; });
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->second);
}

uint32_t WordBytes(DType dtype) {
  switch (dtype) {
    case DType::kC64:
      return 4;
    case DType::kC128:
      return 8;
    case DType::kC32:
      return 2;
    default:
      return static_cast<uint32_t>(ItemBytes(dtype));
  }
}

}  // namespace neve::format
