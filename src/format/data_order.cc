#include "format/data_order.h"

#include <algorithm>
#include <array>

#include "format/name_order.h"
#include "neve/types.h"

namespace neve::format {

std::vector<uint32_t> DataOrder(std::span<const DataEntry> entries) {
  static constexpr std::array<uint64_t, 5> kAlignments = {16, 8, 4, 2, 1};
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const DataEntry& entry : entries) names.push_back(entry.name);
  std::array<std::vector<uint32_t>, 2 * kAlignments.size()> classes;
  for (const uint32_t e : NameOrder(names)) {
    const DataEntry& entry = entries[e];
    const auto by_alignment = static_cast<size_t>(std::ranges::find(kAlignments, entry.alignment) - kAlignments.begin());
    classes[entry.bytes % kPageBytes == 0 ? by_alignment : kAlignments.size() + by_alignment].push_back(e);
  }
  std::vector<uint32_t> order;
  order.reserve(entries.size());
  for (const std::vector<uint32_t>& members : classes) order.insert(order.end(), members.begin(), members.end());
  return order;
}

}  // namespace neve::format
