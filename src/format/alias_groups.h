// Which tensors share memory, found from their addresses.
#ifndef NEVE_FORMAT_ALIAS_GROUPS_H_
#define NEVE_FORMAT_ALIAS_GROUPS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace neve::format {

struct TensorSpec;

struct AliasGroup {
  std::vector<uint32_t> members;   // indexes of tensors, ascending; two or more
  uint64_t begin = 0, end = 0;     // addresses of the union: from the first byte touched to one past the last
};

// Groups in the order of their first members. Tensors are in one group when the intervals of memory from their first to their
// last byte overlap, directly or through others. Interleaved views that provably share no element (columns of one
// matrix) stay apart where one common base would cost more than twice their own bytes. Empty tensors and pieces are in no group.
// O(n log n); in a costly group of up to 2048 members also a test of each pair.
// Requires: specs that Layout has checked, and no interval that wraps around.
std::vector<AliasGroup> FindAliasGroups(std::span<const TensorSpec> tensors, std::span<const void* const> addresses);

// Equal exactly when the groups have the same members at the same distances from each other.
std::string AliasSignature(std::span<const AliasGroup> groups, std::span<const void* const> addresses);

}  // namespace neve::format

#endif  // NEVE_FORMAT_ALIAS_GROUPS_H_
