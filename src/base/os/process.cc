#include "base/os/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string_view>

#include "base/os/unique_handle.h"

namespace neve::os {
namespace {

struct StatLine {
  char state = '?';
  uint64_t start_time = 0;
};

// "pid (name) state ppid ...". The name may hold spaces and parentheses, so fields are counted from its last ")".
std::optional<StatLine> ParseStat(std::string_view text) {
  const size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  text.remove_prefix(name_end + 1);
  StatLine line;
  for (int field = 3; field <= 22; ++field) {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    text.remove_prefix(begin);
    const std::string_view value = text.substr(0, text.find(' '));
    if (field == 3) line.state = value[0];
    if (field == 22) {
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(), line.start_time);
      if (parsed.ec != std::errc()) return std::nullopt;
    }
    text.remove_prefix(value.size());
  }
  return line;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// All zero where the kernel does not tell: then every boot looks the same, and pid and start time have to do.
std::array<uint8_t, 16> BootId() {
  std::array<uint8_t, 16> id{};
  const auto text = ReadKernelFile("/proc/sys/kernel/random/boot_id");
  if (!text.has_value()) return id;
  size_t digits = 0;
  for (const char c : *text) {
    const int value = HexValue(c);
    if (value < 0) continue;  // dashes and the newline
    if (digits == 32) break;
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | value);
    ++digits;
  }
  return id;
}

}  // namespace

std::optional<std::string> ReadKernelFile(const std::string& path) {
  int opened;
  do {
    opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (opened < 0 && errno == EINTR);
  const UniqueFd fd(opened);
  if (!fd) return std::nullopt;
  std::string text;
  char block[4096];
  while (true) {
    const ssize_t got = ::read(fd.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(block, static_cast<size_t>(got));
  }
}

ProcessId CurrentProcess() {
  ProcessId process;
  process.boot_id = BootId();
  process.pid = ::getpid();
  if (const auto text = ReadKernelFile("/proc/self/stat"); text.has_value()) {
    if (const auto line = ParseStat(*text); line.has_value()) process.start_time = line->start_time;
  }
  return process;
}

bool IsAlive(const ProcessId& process) {
  if (process.pid <= 0 || process.boot_id != BootId()) return false;
  const auto text = ReadKernelFile("/proc/" + std::to_string(process.pid) + "/stat");
  if (!text.has_value()) {
    // Gone, or hidden from us (hidepid, no /proc). What cannot be looked at counts as alive: taking away the slot of a
    // living owner would be worse than keeping one of a dead owner.
    return ::kill(static_cast<pid_t>(process.pid), 0) == 0 || errno == EPERM;
  }
  const auto line = ParseStat(*text);
  if (!line.has_value()) return false;
  if (line->state == 'Z' || line->state == 'X' || line->state == 'x') return false;
  return line->start_time == process.start_time;
}

std::string BootIdString(const ProcessId& process) {
  std::string text;
  for (size_t i = 0; i < process.boot_id.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += "0123456789abcdef"[process.boot_id[i] >> 4];
    text += "0123456789abcdef"[process.boot_id[i] & 15];
  }
  return text;
}

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

}  // namespace neve::os
