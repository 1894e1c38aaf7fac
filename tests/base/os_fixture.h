// A folder of its own for each test, and hooks that a test scripts.
#ifndef NEVE_TESTS_BASE_OS_FIXTURE_H_
#define NEVE_TESTS_BASE_OS_FIXTURE_H_

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/os/io_hooks.h"
#include "base/os/syscalls.h"

namespace neve::os {

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string pattern = ::testing::TempDir() + "/neve-base-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string folder_;
};

// Installed while it lives. `before` decides; every call is recorded.
class ScriptedHooks : public IoHooks {
 public:
  explicit ScriptedHooks(std::function<CallVerdict(const CallInfo&)> before) : before_(std::move(before)) {
    SetIoHooks(this);
  }
  ScriptedHooks() : ScriptedHooks([](const CallInfo&) { return CallVerdict{}; }) {}
  ~ScriptedHooks() override { SetIoHooks(nullptr); }

  CallVerdict Before(const CallInfo& info) override {
    std::lock_guard<std::mutex> lock(mutex_);
    before_calls.push_back(info);
    return before_(info);
  }
  void After(const CallInfo& info, const void* data) override {
    std::lock_guard<std::mutex> lock(mutex_);
    after_calls.push_back(info);
    if (data != nullptr) written.append(static_cast<const char*>(data), info.length);
  }

  std::vector<Call> Kinds() const {
    std::vector<Call> kinds;
    for (const CallInfo& info : after_calls) kinds.push_back(info.call);
    return kinds;
  }

  std::vector<CallInfo> before_calls, after_calls;
  std::string written;  // what After was shown of writes, in order

 private:
  std::mutex mutex_;
  std::function<CallVerdict(const CallInfo&)> before_;
};

// Refuses each call of one kind.
inline std::function<CallVerdict(const CallInfo&)> Refuse(Call call, int error_number) {
  return [=](const CallInfo& info) { return CallVerdict{.error_number = info.call == call ? error_number : 0}; };
}

}  // namespace neve::os

#endif  // NEVE_TESTS_BASE_OS_FIXTURE_H_
