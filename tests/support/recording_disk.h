// A disk that loses power: records every change that neve makes below a folder, in order, and builds what could be found
// there after a crash at any point. Its model is the weakest that POSIX allows: file contents are durable by fsync of the
// file, names by fsync of their folder, and nothing else is.
#ifndef NEVE_TESTS_SUPPORT_RECORDING_DISK_H_
#define NEVE_TESTS_SUPPORT_RECORDING_DISK_H_

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/os/io_hooks.h"

namespace neve::testing {

enum class CrashKind {
  kUnsyncedLost,  // only what was synced is there
  kNamesOnly,     // all names made it, contents that were not synced are zeros of the right size
  kTorn,          // all names made it; of each block that was not synced, old or new by chance
  kEarlierNames,  // names are those of a random earlier operation, or synced since; contents as kTorn
  kAnyNames,      // each name that was not synced is the old or the new one by chance; contents as kTorn
};
inline constexpr CrashKind kCrashKinds[] = {CrashKind::kUnsyncedLost, CrashKind::kNamesOnly, CrashKind::kTorn,
                                            CrashKind::kEarlierNames, CrashKind::kAnyNames};

class RecordingDisk : public os::IoHooks {
 public:
  // Records what happens below `folder`, which must be empty, until it is destroyed.
  explicit RecordingDisk(std::string folder) : folder_(std::move(folder)) { os::SetIoHooks(this); }
  ~RecordingDisk() override { Stop(); }
  void Stop() { os::SetIoHooks(nullptr); }

  os::CallVerdict Before(const os::CallInfo&) override { return {}; }
  void After(const os::CallInfo& info, const void* data) override {
    if (!info.path.starts_with(folder_)) return;
    Operation operation{info, {}};
    switch (info.call) {
      case os::Call::kOpen:
        if ((info.flags & (O_CREAT | O_TRUNC)) == 0) return;
        break;
      case os::Call::kPwrite:
        operation.bytes.assign(static_cast<const char*>(data), info.length);
        break;
      case os::Call::kFsync:
      case os::Call::kFdatasync:
      case os::Call::kFtruncate:
      case os::Call::kFallocate:
      case os::Call::kRename:
      case os::Call::kLink:
      case os::Call::kUnlink:
      case os::Call::kMkdir:
      case os::Call::kRmdir:
        break;
      default:
        return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    operations_.push_back(std::move(operation));
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return operations_.size();
  }
  std::string Describe(size_t index) const {
    static constexpr const char* kNames[] = {"open",      "pread",  "pwrite", "fsync",  "fdatasync", "ftruncate",
                                             "fallocate", "rename", "link",   "unlink", "mkdir",     "rmdir"};
    const os::CallInfo& info = operations_[index].info;
    std::string text = kNames[static_cast<int>(info.call)];
    text += " " + info.path.substr(folder_.size());
    if (!info.target.empty()) text += " -> " + info.target.substr(folder_.size());
    return text + " [" + std::to_string(info.offset) + ", +" + std::to_string(info.length) + ")";
  }

  // Makes, in the empty folder `target`, what a crash after the first `count` operations leaves.
  void Crash(size_t count, CrashKind kind, uint64_t seed, const std::string& target) const {
    std::mt19937_64 random(seed);
    const size_t names_until = kind == CrashKind::kEarlierNames ? random() % (count + 1) : 0;
    Names live, durable;
    for (size_t i = 0; i < count; ++i) {
      Apply(operations_[i], &live, &durable);
      if (i + 1 == names_until) durable = live;
    }
    Names names = kind == CrashKind::kNamesOnly || kind == CrashKind::kTorn ? live : durable;
    if (kind == CrashKind::kAnyNames) {
      Names all = live;
      all.insert(durable.begin(), durable.end());
      for (const auto& [path, node] : all) {
        if (random() % 2 == 0) continue;  // as it was
        if (const auto found = live.find(path); found == live.end())
          names.erase(path);
        else
          names[path] = found->second;
      }
    }
    for (const auto& [path, node] : names) {  // parents sort before what is in them
      const std::string to = target + path;
      if (!std::filesystem::is_directory(std::filesystem::path(to).parent_path())) continue;  // lost with its folder
      if (node->is_directory) {
        std::filesystem::create_directory(to);
      } else {
        std::ofstream(to, std::ios::binary) << Content(*node, kind, random);
      }
    }
  }

 private:
  static constexpr size_t kBlock = 4096;
  struct Operation {
    os::CallInfo info;
    std::string bytes;
  };
  struct Node {
    bool is_directory = false;
    std::string live, durable;
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;  // by the path below the folder

  static std::string Content(const Node& node, CrashKind kind, std::mt19937_64& random) {
    if (kind == CrashKind::kUnsyncedLost || node.live == node.durable) return node.durable;
    std::string content = node.durable;
    content.resize(node.live.size(), '\0');
    if (kind == CrashKind::kNamesOnly) return content;
    for (size_t begin = 0; begin < content.size(); begin += kBlock) {
      const size_t bytes = std::min(kBlock, content.size() - begin);
      if (random() % 2 == 0) content.replace(begin, bytes, node.live, begin, bytes);
    }
    if (random() % 4 == 0) content.resize(random() % (content.size() + 1));
    return content;
  }

  static std::string Parent(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

  void Apply(const Operation& operation, Names* live, Names* durable) const {
    const os::CallInfo& info = operation.info;
    const std::string path = info.path.substr(folder_.size());
    const std::string target = info.target.empty() ? "" : info.target.substr(folder_.size());
    const auto found = live->find(path);
    const std::shared_ptr<Node> node = found == live->end() ? nullptr : found->second;
    switch (info.call) {
      case os::Call::kOpen:
        if (node == nullptr)
          (*live)[path] = std::make_shared<Node>();
        else if ((info.flags & O_TRUNC) != 0)
          node->live.clear();
        break;
      case os::Call::kPwrite:
        if (node == nullptr) break;  // of a file that has lost its name
        if (node->live.size() < info.offset + operation.bytes.size()) node->live.resize(info.offset + operation.bytes.size());
        node->live.replace(info.offset, operation.bytes.size(), operation.bytes);
        break;
      case os::Call::kFtruncate:
        if (node != nullptr) node->live.resize(info.length);
        break;
      case os::Call::kFallocate:
        if (node != nullptr) node->live.resize(std::max<size_t>(node->live.size(), info.length));
        break;
      case os::Call::kFsync:
      case os::Call::kFdatasync:
        if (node != nullptr && !node->is_directory)
          node->durable = node->live;
        else
          SyncNames(path, *live, durable);
        break;
      case os::Call::kRename:
        if (node == nullptr) break;
        (*live)[target] = node;
        live->erase(path);
        break;
      case os::Call::kLink:
        if (node != nullptr) (*live)[target] = node;
        break;
      case os::Call::kUnlink:
      case os::Call::kRmdir:
        live->erase(path);
        break;
      case os::Call::kMkdir: {
        auto made = std::make_shared<Node>();
        made->is_directory = true;
        live->emplace(path, std::move(made));
        break;
      }
      default:
        break;
    }
  }

  // The names directly in a folder become what they are now.
  static void SyncNames(const std::string& folder, const Names& live, Names* durable) {
    std::erase_if(*durable, [&](const auto& entry) { return Parent(entry.first) == folder; });
    for (const auto& [path, node] : live) {
      if (Parent(path) == folder) durable->emplace(path, node);
    }
  }

  const std::string folder_;
  mutable std::mutex mutex_;
  std::vector<Operation> operations_;
};

}  // namespace neve::testing

#endif  // NEVE_TESTS_SUPPORT_RECORDING_DISK_H_
