#include "slot/memory_facts.h"

#include <errno.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"

namespace neve::slot {
namespace {

constexpr uint64_t kFileLimit = 1u << 20;
// v1 says "no limit" as the greatest multiple of a page; any host has less than this.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;
// Part of the memory that slots may take; the rest stays for training itself and the page cache.
constexpr double kShare = 0.8;

std::string_view NextLine(std::string_view* text) {
  const size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  *text = end == std::string_view::npos ? std::string_view() : text->substr(end + 1);
  return line;
}

std::optional<uint64_t> ParseNumber(std::string_view text, std::string_view* rest) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

// One version of control groups has these names for the same facts.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* droppable;   // key of memory.stat
};
constexpr CgroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr CgroupFiles kV2 = {"memory.max", "memory.current", "inactive_file"};

uint64_t Headroom(const CgroupMemory& memory) { return memory.limit > memory.usage ? memory.limit - memory.usage : 0; }

std::optional<CgroupMemory> ReadGroup(const std::string& folder, const CgroupFiles& files) {
  const absl::StatusOr<std::string> limit = os::ReadFile(os::JoinPath(folder, files.limit), kFileLimit);
  const absl::StatusOr<std::string> usage = os::ReadFile(os::JoinPath(folder, files.usage), kFileLimit);
  if (!limit.ok() || !usage.ok()) return std::nullopt;
  CgroupMemory memory;
  memory.limit = ParseCgroupLimit(*limit).value_or(0);
  std::string_view rest;
  memory.usage = ParseNumber(*usage, &rest).value_or(0);
  if (const absl::StatusOr<std::string> stat = os::ReadFile(os::JoinPath(folder, "memory.stat"), kFileLimit); stat.ok()) {
    memory.usage -= std::min(memory.usage, ParseCgroupStat(*stat, files.droppable).value_or(0));
  }
  return memory;
}

void ReadHierarchy(const std::string& mount, std::string path, const CgroupFiles& files, CgroupMemory* least) {
  while (true) {
    if (path == "/") path.clear();
    const std::optional<CgroupMemory> memory = ReadGroup(mount + path, files);
    if (memory && memory->limit != 0 && (least->limit == 0 || Headroom(*memory) < Headroom(*least))) *least = *memory;
    if (path.empty()) return;
    const size_t slash = path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : slash);
  }
}

// The folder, or the nearest one above it that exists: where the folder will be made.
absl::StatusOr<uint64_t> FreeBytes(std::string folder) {
  while (true) {
    struct ::statvfs facts {};
    if (::statvfs(folder.c_str(), &facts) == 0) {
      if (facts.f_blocks == 0) return UINT64_MAX;   // a tmpfs mounted without a limit
      return static_cast<uint64_t>(facts.f_bavail) * facts.f_frsize;
    }
    if (errno != ENOENT || folder.empty() || folder == "/") return ErrnoStatus(errno, folder + ": statvfs");
    folder = os::DirName(folder);
  }
}

std::string Gibibytes(uint64_t bytes) { return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1u << 30)); }

}  // namespace

std::optional<uint64_t> ParseMemAvailable(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable:";
  while (!meminfo.empty()) {
    std::string_view line = NextLine(&meminfo), unit;
    if (!line.starts_with(kKey)) continue;
    const std::optional<uint64_t> kibibytes = ParseNumber(line.substr(kKey.size()), &unit);
    if (!kibibytes || !unit.starts_with(" kB") || *kibibytes > (UINT64_MAX >> 10)) return std::nullopt;
    return *kibibytes << 10;
  }
  return std::nullopt;
}

std::optional<uint64_t> ParseCgroupLimit(std::string_view text) {
  std::string_view line = NextLine(&text), rest;
  if (line == "max") return 0;
  const std::optional<uint64_t> limit = ParseNumber(line, &rest);
  if (!limit || !rest.empty()) return std::nullopt;
  return *limit >= kNoLimit ? 0 : *limit;
}

std::optional<uint64_t> ParseCgroupStat(std::string_view stat, std::string_view key) {
  while (!stat.empty()) {
    std::string_view line = NextLine(&stat), rest;
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ') {
      return ParseNumber(line.substr(key.size()), &rest);
    }
  }
  return std::nullopt;
}

CgroupPaths ParseCgroupPaths(std::string_view text) {
  CgroupPaths paths;
  while (!text.empty()) {
    // <hierarchy>:<controllers, comma separated; empty for v2>:<path>
    const std::string_view line = NextLine(&text);
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const std::string path(line.substr(second + 1));
    if (controllers == ",,") paths.v2 = path;
    if (controllers.find(",memory,") != std::string::npos) paths.v1_memory = path;
  }
  return paths;
}

CgroupMemory ReadCgroupMemory(const std::string& proc_folder, const std::string& cgroup_folder) {
  CgroupMemory least;
  const absl::StatusOr<std::string> text = os::ReadFile(os::JoinPath(proc_folder, "self/cgroup"), kFileLimit);
  if (!text.ok()) return least;   // no control groups in this kernel
  const CgroupPaths paths = ParseCgroupPaths(*text);
  if (paths.v1_memory) ReadHierarchy(os::JoinPath(cgroup_folder, "memory"), *paths.v1_memory, kV1, &least);
  // With both versions mounted, v1 has the memory controller and these files do not exist.
  if (paths.v2 && !paths.v1_memory) ReadHierarchy(cgroup_folder, *paths.v2, kV2, &least);
  return least;
}

absl::StatusOr<MemoryFacts> ReadMemoryFactsFrom(const std::string& ram_folder, const std::string& proc_folder,
                                                const std::string& cgroup_folder) {
  MemoryFacts facts;
  NEVE_ASSIGN_OR_RETURN(facts.ram_folder_free, FreeBytes(ram_folder));
  const std::string meminfo_path = os::JoinPath(proc_folder, "meminfo");
  NEVE_ASSIGN_OR_RETURN(const std::string meminfo, os::ReadFile(meminfo_path, kFileLimit));
  const std::optional<uint64_t> available = ParseMemAvailable(meminfo);
  if (!available) return Unavailable(meminfo_path + ": has no MemAvailable");
  facts.available = *available;
  const CgroupMemory group = ReadCgroupMemory(proc_folder, cgroup_folder);
  facts.cgroup_limit = group.limit;
  facts.cgroup_usage = group.usage;
  return facts;
}

absl::StatusOr<MemoryFacts> ReadMemoryFacts(const std::string& ram_folder) {
  return ReadMemoryFactsFrom(ram_folder, "/proc", "/sys/fs/cgroup");
}

uint64_t Budget(const MemoryFacts& facts, uint64_t configured, std::string* reason) {
  std::string unused;
  if (reason == nullptr) reason = &unused;
  if (configured != 0) {
    *reason = absl::StrFormat("%s set by ram:?bytes=", Gibibytes(configured));
    return configured;
  }
  uint64_t least = facts.ram_folder_free;
  *reason = absl::StrFormat("%s free in the RAM folder; set NEVE_RAM_DIR to a folder with more room, or make /dev/shm "
                            "larger (containers: --shm-size)", Gibibytes(facts.ram_folder_free));
  const auto available = static_cast<uint64_t>(kShare * static_cast<double>(facts.available));
  if (available < least) {
    least = available;
    *reason = absl::StrFormat("0.8 of the %s that this host has available (MemAvailable); set ram:?bytes= to allow more",
                              Gibibytes(facts.available));
  }
  if (facts.cgroup_limit != 0) {
    const uint64_t room = Headroom({facts.cgroup_limit, facts.cgroup_usage});
    const auto group = static_cast<uint64_t>(kShare * static_cast<double>(room));
    if (group < least) {
      least = group;
      *reason = absl::StrFormat("0.8 of the %s left of the control group's memory limit of %s; raise the limit, or set "
                                "ram:?bytes= to allow more", Gibibytes(room), Gibibytes(facts.cgroup_limit));
    }
  }
  return least;
}

}  // namespace neve::slot
