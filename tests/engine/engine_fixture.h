// An engine over temporary RAM and file folders, and a small state with known bytes.
#ifndef NEVE_TESTS_ENGINE_ENGINE_FIXTURE_H_
#define NEVE_TESTS_ENGINE_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/os/io_hooks.h"
#include "base/sync/mutex.h"
#include "neve/engine.h"

namespace neve {

// A state of float tensors, flat, filled from a number.
struct TestState {
  explicit TestState(size_t tensors = 3, size_t floats = 1000) : data(tensors, std::vector<float>(floats)) {
    for (size_t i = 0; i < tensors; ++i) {
      names.push_back("t" + std::to_string(i));
      extents.push_back(static_cast<int64_t>(floats));
    }
    std::vector<std::string_view> views(names.begin(), names.end());
    const std::vector<DType> dtypes(tensors, DType::kF32);
    const std::vector<uint8_t> ranks(tensors, 1);
    state = DescribeState({views, dtypes, ranks, extents, {}}, "", 0).value();
    for (auto& tensor : data) addresses.push_back(tensor.data());
  }
  void Set(float value) {
    for (size_t i = 0; i < data.size(); ++i) {
      for (size_t j = 0; j < data[i].size(); ++j) data[i][j] = value + static_cast<float>(i) * 0.5f + static_cast<float>(j);
    }
  }
  bool Holds(float value) const {
    TestState wanted(data.size(), data[0].size());
    wanted.Set(value);
    return wanted.data == data;
  }
  void Clear() {
    for (auto& tensor : data) std::fill(tensor.begin(), tensor.end(), -1.0f);
  }

  std::vector<std::vector<float>> data;
  std::vector<std::string> names;
  std::vector<int64_t> extents;
  std::shared_ptr<State> state;
  std::vector<const void*> addresses;
};

// Holds every write of an image back until it is opened: a slow tier without a clock.
class WriteGate : public os::IoHooks {
 public:
  WriteGate() { os::SetIoHooks(this); }
  ~WriteGate() override {
    Open();
    os::SetIoHooks(nullptr);
  }
  os::CallVerdict Before(const os::CallInfo& info) override {
    if (info.call == os::Call::kPwrite && info.path.ends_with(".safetensors")) {
      sync::MutexLock lock(mutex_);
      changed_.Wait(mutex_, [this]() NEVE_REQUIRES(mutex_) { return open_; });
    }
    return {};
  }
  void Open() {
    sync::MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  sync::Mutex mutex_;
  sync::Condition changed_;
  bool open_ NEVE_GUARDED_BY(mutex_) = false;
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/neve-engine-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ram_ = folder_ + "/ram";
    ::setenv("NEVE_RAM_DIR", ram_.c_str(), 1);
  }
  void TearDown() override {
    engine_.reset();
    std::error_code ignored;
    std::filesystem::permissions(job(), std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string job() const { return folder_ + "/job"; }

  // With no tiers: ram, and file in job().
  absl::Status Open(std::vector<std::string> tiers = {}, OnFull on_full = OnFull::kWait) {
    EngineOptions options;
    options.folder = job();
    options.on_full = on_full;
    for (const std::string& tier : tiers) {
      auto parsed = ParseTier(tier);
      if (!parsed.ok()) return parsed.status();
      options.tiers.push_back(*parsed);
    }
    engine_.reset();
    auto engine = Engine::Open(options);
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Ticket>> Save(TestState& state, uint64_t step, const std::string& values = "") {
    SaveRequest request;
    request.step = step;
    request.state = state.state;
    request.addresses = state.addresses;
    request.values = values;
    return engine_->Save(request);
  }
  std::shared_ptr<Ticket> SaveDone(TestState& state, uint64_t step) {
    auto ticket = Save(state, step);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return nullptr;
    const absl::Status done = (*ticket)->Wait("done", 60);
    EXPECT_TRUE(done.ok()) << done;
    return *ticket;
  }

  // Restores every tensor by name from the image's header: entries stand in tree order.
  static absl::Status ReadAll(Image& image, TestState& state) {
    std::vector<ReadRange> ranges;
    const std::string header(image.header());
    for (size_t i = 0; i < state.names.size(); ++i) {
      const size_t entry = header.find("\"" + state.names[i] + "\":{");
      if (entry == std::string::npos) return absl::NotFoundError(state.names[i]);
      const size_t offsets = header.find("\"data_offsets\":[", entry) + 16;
      const uint64_t begin = std::stoull(header.substr(offsets));
      ranges.push_back({.offset = header.size() + begin, .bytes = state.data[i].size() * 4, .target = state.data[i].data()});
    }
    return image.Read(ranges);
  }

  std::string folder_, ram_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace neve

#endif  // NEVE_TESTS_ENGINE_ENGINE_FIXTURE_H_
