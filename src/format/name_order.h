// Sorts many names that share long beginnings, as the paths of a state do.
#ifndef NEVE_FORMAT_NAME_ORDER_H_
#define NEVE_FORMAT_NAME_ORDER_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace neve::format {

// Positions of `names` in the order of the names by their bytes. Equal names stand side by side, in the order of their
// positions.
std::vector<uint32_t> NameOrder(std::span<const std::string_view> names);

}  // namespace neve::format

#endif  // NEVE_FORMAT_NAME_ORDER_H_
