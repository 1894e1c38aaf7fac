// Reading the host's memory and the limits of its control groups, from text that tests can supply.
#ifndef NEVE_SLOT_MEMORY_FACTS_H_
#define NEVE_SLOT_MEMORY_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "slot/slot.h"

namespace neve::slot {

// "MemAvailable:  123 kB" of /proc/meminfo, in bytes.
std::optional<uint64_t> ParseMemAvailable(std::string_view meminfo);
// One number in a file of its own. "max", and v1's huge number for no limit, are 0.
std::optional<uint64_t> ParseCgroupLimit(std::string_view text);
// `key` of memory.stat.
std::optional<uint64_t> ParseCgroupStat(std::string_view stat, std::string_view key);

struct CgroupPaths {
  std::optional<std::string> v1_memory, v2;   // "/a/b", as /proc/self/cgroup says
};
CgroupPaths ParseCgroupPaths(std::string_view proc_self_cgroup);

// The group with the least room among this process's and those above it. In a container the path may name folders that
// only the host sees: those that are not there are passed over, and the mount's own root counts always.
struct CgroupMemory {
  uint64_t limit = 0, usage = 0;   // limit 0: none
};
CgroupMemory ReadCgroupMemory(const std::string& proc_folder, const std::string& cgroup_folder);

absl::StatusOr<MemoryFacts> ReadMemoryFactsFrom(const std::string& ram_folder, const std::string& proc_folder,
                                                const std::string& cgroup_folder);

}  // namespace neve::slot

#endif  // NEVE_SLOT_MEMORY_FACTS_H_
