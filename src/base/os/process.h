// Who a process is, in a way that survives pid reuse and reboots: (boot id, pid, start time). Used for owners of slots and
// for claims of a life; never a lock held open, which a forked child would inherit.
#ifndef NEVE_BASE_OS_PROCESS_H_
#define NEVE_BASE_OS_PROCESS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace neve::os {

struct ProcessId {
  std::array<uint8_t, 16> boot_id{};
  int64_t pid = 0;
  uint64_t start_time = 0;   // clock ticks since boot, field 22 of /proc/<pid>/stat
  bool operator==(const ProcessId&) const = default;
};

// This process; correct in a forked child too (not cached across a fork).
ProcessId CurrentProcess();
// Whether it still runs: same boot, and a live process (not a zombie) of that pid and start time.
bool IsAlive(const ProcessId& process);
std::string BootIdString(const ProcessId& process);   // as in /proc/sys/kernel/random/boot_id
std::string HostName();

// The whole of a small file of /proc or /sys; nothing when it cannot be read. The hooks are not asked: what the kernel
// says about itself is no storage.
std::optional<std::string> ReadKernelFile(const std::string& path);

}  // namespace neve::os

#endif  // NEVE_BASE_OS_PROCESS_H_
