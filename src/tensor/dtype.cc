#include "neve/dtype.h"

#include <array>

namespace neve {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  uint64_t item_bytes;
  bool in_safetensors;
};

// Index is the value minus one; the static_assert below holds the order.
constexpr std::array kEntries = {
    Entry{DType::kBool, "BOOL", 1, true},
    Entry{DType::kU8, "U8", 1, true},
    Entry{DType::kI8, "I8", 1, true},
    Entry{DType::kF8E5M2, "F8_E5M2", 1, true},
    Entry{DType::kF8E4M3, "F8_E4M3", 1, true},
    Entry{DType::kF8E8M0, "F8_E8M0", 1, true},
    Entry{DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 1, true},
    Entry{DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 1, true},
    Entry{DType::kI16, "I16", 2, true},
    Entry{DType::kU16, "U16", 2, true},
    Entry{DType::kF16, "F16", 2, true},
    Entry{DType::kBF16, "BF16", 2, true},
    Entry{DType::kI32, "I32", 4, true},
    Entry{DType::kU32, "U32", 4, true},
    Entry{DType::kF32, "F32", 4, true},
    Entry{DType::kI64, "I64", 8, true},
    Entry{DType::kU64, "U64", 8, true},
    Entry{DType::kF64, "F64", 8, true},
    Entry{DType::kC64, "C64", 8, true},
    Entry{DType::kC128, "C128", 16, false},
    Entry{DType::kC32, "C32", 4, false},
    Entry{DType::kF4E2M1x2, "F4", 1, true},
    Entry{DType::kBits8, "BITS8", 1, false},
    Entry{DType::kBits16, "BITS16", 2, false},
    Entry{DType::kQI8, "QI8", 1, false},
    Entry{DType::kQU8, "QU8", 1, false},
    Entry{DType::kQI32, "QI32", 4, false},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i + 1) return false;
  }
  return kEntries.size() == static_cast<size_t>(DType::kQI32);
}
static_assert(InOrder());

// A value from outside the enumeration (a bad C caller) reads as an entry without a name and without bytes.
constexpr Entry kNone = {DType{}, "", 0, false};

const Entry& EntryOf(DType dtype) {
  const size_t index = static_cast<size_t>(dtype) - 1;
  return index < kEntries.size() ? kEntries[index] : kNone;
}

}  // namespace

uint64_t ItemBytes(DType dtype) { return EntryOf(dtype).item_bytes; }
std::string_view Name(DType dtype) { return EntryOf(dtype).name; }
bool HasSafetensorsName(DType dtype) { return EntryOf(dtype).in_safetensors; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace neve
