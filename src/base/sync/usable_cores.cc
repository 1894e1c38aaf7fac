#include "base/sync/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/os/process.h"
#include "base/sync/crew.h"

namespace neve::sync {
namespace {

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

// Rounded up: a quota of 1.5 cores is used best by two threads.
int CoresOf(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (!quota.has_value() || !period.has_value() || *quota <= 0 || *period <= 0) return 0;
  const int64_t cores = (*quota - 1) / *period + 1;
  return static_cast<int>(std::min<int64_t>(cores, std::numeric_limits<int>::max()));
}

// "max 100000" or "150000 100000".
int CoresOfVersion2(const std::string& group) {
  const auto text = os::ReadKernelFile(group + "/cpu.max");
  if (!text.has_value()) return 0;
  const size_t space = text->find(' ');
  if (space == std::string::npos) return 0;
  return CoresOf(ParseInteger(*text), ParseInteger(std::string_view(*text).substr(space + 1)));
}

int CoresOfVersion1(const std::string& group) {
  const auto quota = os::ReadKernelFile(group + "/cpu.cfs_quota_us");  // -1: no limit
  const auto period = os::ReadKernelFile(group + "/cpu.cfs_period_us");
  if (!quota.has_value() || !period.has_value()) return 0;
  return CoresOf(ParseInteger(*quota), ParseInteger(*period));
}

int Least(int a, int b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// The least over the group and all above it: a quota holds for what lies below.
template <typename CoresOfGroup>
int LeastUpwards(const std::string& root, std::string_view path, CoresOfGroup cores_of_group) {
  int least = cores_of_group(root);
  for (size_t end = path.size(); end != std::string_view::npos && end > 0; end = path.rfind('/', end - 1)) {
    least = Least(least, cores_of_group(root + std::string(path.substr(0, end))));
  }
  return least;
}

bool HasController(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == wanted) return true;
    if (comma == std::string_view::npos) return false;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

int AffinityCores() {
  // The mask of the kernel may be larger than cpu_set_t; it refuses too small a one.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) return 1;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool read = ::sched_getaffinity(0, bytes, set) == 0;
    const bool too_small = !read && errno == EINVAL;
    const int count = read ? CPU_COUNT_S(bytes, set) : 1;
    CPU_FREE(set);
    if (!too_small) return std::max(count, 1);
  }
  return 1;
}

}  // namespace

int CgroupCores(std::string_view membership, const std::string& mount) {
  int least = 0;
  while (!membership.empty()) {
    const size_t line_end = membership.find('\n');
    const std::string_view line = membership.substr(0, line_end);
    membership.remove_prefix(line_end == std::string_view::npos ? membership.size() : line_end + 1);
    // "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers.
    const size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (line.substr(0, first) == "0" && controllers.empty()) {
      least = Least(least, LeastUpwards(mount, path, &CoresOfVersion2));
    } else if (HasController(controllers, "cpu")) {
      least = Least(least, LeastUpwards(mount + "/" + std::string(controllers), path, &CoresOfVersion1));
      least = Least(least, LeastUpwards(mount + "/cpu", path, &CoresOfVersion1));
    }
  }
  return least;
}

int UsableCores() {
  const int allowed = AffinityCores();
  const int quota = CgroupCores(os::ReadKernelFile("/proc/self/cgroup").value_or(""), "/sys/fs/cgroup");
  return quota == 0 ? allowed : std::min(allowed, quota);
}

}  // namespace neve::sync
