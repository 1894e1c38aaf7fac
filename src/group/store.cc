#include "group/store.h"

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/os/syscalls.h"

namespace neve::group {
namespace {

class DirectoryStore : public Store {
 public:
  explicit DirectoryStore(std::string folder) : folder_(std::move(folder)) {}

  std::string place() const override { return "dir:" + folder_; }

  absl::Status Set(const std::string& name, std::string_view value) override {
    const std::string path = os::JoinPath(folder_, name);
    NEVE_RETURN_IF_ERROR(os::MakeDirs(os::DirName(path)));
    // The folder may be taken away in between, where the first rank cleans up after an earlier life: then it is made again.
    absl::Status written = os::WriteFileAtomic(path, value);
    return absl::IsNotFound(written) ? Unavailable(std::string(written.message()), ENOENT) : written;
  }

  absl::StatusOr<std::optional<std::string>> Get(const std::string& name) override {
    absl::StatusOr<std::string> text = os::ReadFile(os::JoinPath(folder_, name), kValueBytesMax);
    if (absl::IsNotFound(text.status())) return std::optional<std::string>();
    if (!text.ok()) return text.status();
    return std::optional<std::string>(*std::move(text));
  }

  void Forget(const std::string& prefix) override { Remove(os::JoinPath(folder_, prefix), 0); }

 private:
  // Whatever cannot be removed stays: others may be writing there.
  static void Remove(const std::string& path, int depth) {
    constexpr int kDepthMax = 3;
    const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(path);
    if (!entries.ok()) return;
    for (const os::DirectoryEntry& entry : *entries) {
      const std::string inner = os::JoinPath(path, entry.name);
      if (!entry.is_directory) {
        os::Unlink(inner).IgnoreError();
      } else if (depth < kDepthMax) {
        Remove(inner, depth + 1);
      }
    }
    os::Rmdir(path).IgnoreError();
  }

  const std::string folder_;
};

class ProgramStore : public Store {
 public:
  ProgramStore(StoreFunctions functions, std::string place) : functions_(std::move(functions)), place_(std::move(place)) {}
  std::string place() const override { return place_; }
  absl::Status Set(const std::string& name, std::string_view value) override { return functions_.set(name, value); }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& name) override { return functions_.get(name); }

 private:
  const StoreFunctions functions_;
  const std::string place_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> DirStore(const std::string& folder) {
  if (folder.empty()) return Invalid("group=\"dir:\" names no folder; give one that all ranks see, such as dir:/shared/run7.group");
  return std::unique_ptr<Store>(std::make_unique<DirectoryStore>(folder));
}

std::unique_ptr<Store> FunctionStore(StoreFunctions functions, std::string place) {
  return std::make_unique<ProgramStore>(std::move(functions), std::move(place));
}

}  // namespace neve::group
