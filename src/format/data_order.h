// The order of an image's data (docs/format.md): whole pages first, then by descending alignment, then by name.
#ifndef NEVE_FORMAT_DATA_ORDER_H_
#define NEVE_FORMAT_DATA_ORDER_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace neve::format {

struct DataEntry {
  std::string_view name;
  uint64_t bytes = 0;
  uint64_t alignment = 1;   // a power of two, at most 16
};
// Positions of the entries in the order of the data.
std::vector<uint32_t> DataOrder(std::span<const DataEntry> entries);

}  // namespace neve::format

#endif  // NEVE_FORMAT_DATA_ORDER_H_
