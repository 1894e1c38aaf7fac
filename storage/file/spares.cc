#include "storage/file/spares.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"
#include "storage/file/kernel_file.h"

namespace neve::storage {
namespace {

struct SpareName {
  uint32_t rank = 0, number = 0;
};

std::optional<SpareName> ParseSpareName(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == name.npos) return std::nullopt;
  const auto parse = [](std::string_view text, uint32_t* value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
  };
  SpareName spare;
  if (!parse(name.substr(0, dash), &spare.rank) || !parse(name.substr(dash + 1), &spare.number)) return std::nullopt;
  return spare;
}

// A file that nobody else had open, mapped or linked when the lease was granted.
struct LoneFile {
  os::File file;
  WriteLease lease;  // released before the file is closed
  struct stat status;
};

absl::StatusOr<LoneFile> OpenAlone(const std::string& path) {
  // Without O_NONBLOCK this open would wait where somebody else has a lease.
  NEVE_ASSIGN_OR_RETURN(os::File file, os::Open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW));
  NEVE_ASSIGN_OR_RETURN(WriteLease lease, WriteLease::Take(file));
  NEVE_ASSIGN_OR_RETURN(const struct stat status, os::StatOpen(file));
  if (!S_ISREG(status.st_mode) || status.st_nlink != 1) return Unavailable(absl::StrFormat("%s has other names", path));
  return LoneFile{std::move(file), std::move(lease), status};
}

// Renames a file that nobody else holds; false, and nothing done, when somebody may.
bool RenameAlone(const std::string& from, const std::string& to) {
  const absl::StatusOr<LoneFile> lone = OpenAlone(from);
  if (!lone.ok() || !os::RenameNoReplace(from, to).ok()) return false;
  // The name may have been given to another file after the open; that one was not looked at.
  const absl::StatusOr<struct stat> moved = os::Stat(to);
  if (moved.ok() && moved->st_ino == lone->status.st_ino && moved->st_dev == lone->status.st_dev) return true;
  os::Unlink(to).IgnoreError();
  return false;
}

}  // namespace

bool Spares::Keep(const std::string& path, uint32_t rank) {
  if (max_ <= 0) return false;
  if (!os::Mkdir(folder_.SpareFolder()).ok()) return false;
  const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder_.SpareFolder());
  if (!entries.ok()) return false;
  std::set<uint32_t> taken;
  for (const os::DirectoryEntry& entry : *entries) {
    const std::optional<SpareName> name = ParseSpareName(entry.name);
    if (name.has_value() && name->rank == rank) taken.insert(name->number);
  }
  if (taken.size() >= static_cast<size_t>(max_)) return false;
  uint32_t number = 0;
  while (taken.contains(number)) ++number;
  const std::string spare = os::JoinPath(folder_.SpareFolder(), absl::StrFormat("%u-%u", rank, number));
  if (!os::RenameNoReplace(path, spare).ok()) return false;
  if (!OpenAlone(spare).ok()) os::Unlink(spare).IgnoreError();
  return true;
}

bool Spares::Take(const ImageKey& key, uint64_t bytes, const std::string& path) {
  std::vector<Spare> spares = Usable(key);
  // Smallest of those that are large enough, then largest of the others, which will be extended.
  std::sort(spares.begin(), spares.end(), [bytes](const Spare& a, const Spare& b) {
    const bool a_fits = a.bytes >= bytes, b_fits = b.bytes >= bytes;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? a.bytes < b.bytes : a.bytes > b.bytes;
  });
  for (const Spare& spare : spares) {
    if (RenameAlone(spare.path, path)) return true;
    os::Unlink(spare.path).IgnoreError();
  }
  return false;
}

bool Spares::Drop(const ImageKey& key) {
  bool dropped = false;
  for (const Spare& spare : Usable(key)) dropped |= os::Unlink(spare.path).ok();
  return dropped;
}

std::vector<Spares::Spare> Spares::Usable(const ImageKey& key) const {
  std::vector<Spare> spares;
  const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder_.SpareFolder());
  if (!entries.ok()) return spares;
  for (const os::DirectoryEntry& entry : *entries) {
    const std::optional<SpareName> name = ParseSpareName(entry.name);
    if (!name.has_value() || (name->rank != key.rank && name->rank < key.world)) continue;
    std::string path = os::JoinPath(folder_.SpareFolder(), entry.name);
    const absl::StatusOr<struct stat> status = os::Stat(path);
    if (status.ok()) spares.push_back({std::move(path), static_cast<uint64_t>(status->st_size)});
  }
  return spares;
}

}  // namespace neve::storage
