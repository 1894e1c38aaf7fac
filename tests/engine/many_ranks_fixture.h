// Several ranks in one process, each an engine of its own, and states whose bytes tell rank and step, whole or in rows.
#ifndef NEVE_TESTS_ENGINE_MANY_RANKS_FIXTURE_H_
#define NEVE_TESTS_ENGINE_MANY_RANKS_FIXTURE_H_

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "engine/engine_fixture.h"

namespace neve {

class ManyRanksTest : public EngineTest {
 protected:
  struct Rank {
    std::unique_ptr<Engine> engine;
    absl::Status opened;
    TestState state{2, 5000};
  };

  // Runs `body` for each rank at once.
  void OnEach(const std::function<void(uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  EngineOptions OptionsOf(uint32_t rank, uint32_t world) {
    EngineOptions options;
    options.folder = job();
    options.rank = rank;
    options.world = world;
    options.group.place = "dir:" + folder_ + "/group";
    options.group.timeout_s = 60;
    for (const std::string& tier : tiers_) options.tiers.push_back(ParseTier(tier).value());
    return options;
  }
  void OpenWorld(uint32_t world, const std::function<void(uint32_t, EngineOptions&)>& change = {}) {
    ranks_.clear();
    ranks_.resize(world);
    OnEach([&](uint32_t rank) {
      EngineOptions options = OptionsOf(rank, world);
      if (change) change(rank, options);
      auto engine = Engine::Open(options);
      ranks_[rank].opened = engine.status();
      if (engine.ok()) ranks_[rank].engine = *std::move(engine);
    });
  }
  void ExpectOpen() {
    for (const Rank& rank : ranks_) ASSERT_TRUE(rank.opened.ok()) << rank.opened;
  }
  static float ValueOf(uint64_t step, uint32_t rank) { return static_cast<float>(step * 100 + rank); }
  std::shared_ptr<Ticket> SaveOn(uint32_t rank, uint64_t step, std::vector<std::string> to = {}, bool done = true) {
    Rank& self = ranks_[rank];
    self.state.Set(ValueOf(step, rank));
    SaveRequest request;
    request.step = step;
    request.state = self.state.state;
    request.addresses = self.state.addresses;
    request.to = std::move(to);
    auto ticket = self.engine->Save(request);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return nullptr;
    if (done) {
      EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    }
    return *ticket;
  }
  void SaveOnAll(uint64_t step) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) SaveOn(rank, step);
  }
  // What each rank restores, its bytes checked: the step, or the error.
  struct Restored {
    uint64_t step = 0;
    absl::Status status;
  };
  std::vector<Restored> RestoreAll(const FindRequest& request = {}) {
    std::vector<Restored> results(ranks_.size());
    OnEach([&](uint32_t rank) {
      auto image = ranks_[rank].engine->Find(request);
      results[rank].status = image.status();
      if (!image.ok()) return;
      results[rank].step = (*image)->info().step;
      TestState state(2, 5000);
      absl::Status read = ReadAll(**image, state);
      if (read.ok() && !state.Holds(ValueOf(results[rank].step, rank))) read = absl::InternalError("bytes of another rank or step");
      results[rank].status = ranks_[rank].engine->Agree(read);
    });
    return results;
  }
  void ExpectRestored(uint64_t step) {
    for (const Restored& result : RestoreAll()) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.step, step);
    }
  }
  void RemoveShard(uint64_t step, uint32_t rank) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job())) {
      const std::string path = entry.path().string();
      if (path.find(absl::StrFormat("step-%012d", step)) != std::string::npos &&
          path.find(absl::StrFormat("shard-%05d-of", rank)) != std::string::npos) {
        std::filesystem::remove(entry.path());
      }
    }
  }
  std::vector<uint64_t> StepsWithRank(uint32_t rank) {
    std::vector<uint64_t> steps;
    for (const auto& entry : std::filesystem::directory_iterator(job())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("step-")) continue;
      for (const auto& file : std::filesystem::directory_iterator(entry.path())) {
        if (file.path().filename().string().starts_with(absl::StrFormat("shard-%05d-of", rank)) &&
            file.path().filename().string().ends_with(".commit.json")) {
          steps.push_back(std::stoull(name.substr(5, 12)));
        }
      }
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  std::vector<std::string> tiers_;
  std::vector<Rank> ranks_;
};

// Row r of a logical [rows, 4] tensor holds step * 1000 + r.
struct RowState {
  RowState(int64_t rows, uint32_t rank, uint32_t world) {
    first = rows * rank / world;
    count = rows * (rank + 1) / world - first;
    data.resize(static_cast<size_t>(count) * 4);
    const std::vector<std::string_view> names = {"rows"};
    const std::vector<DType> dtypes = {DType::kI64};
    const std::vector<uint8_t> dims = {2}, pieces = {1};
    const std::vector<int64_t> extents = {count, 4}, global = {rows, 4}, offsets = {first, 0};
    state = DescribeState({names, dtypes, dims, extents, {}, pieces, global, offsets, {}}, "", 0).value();
    addresses = {data.data()};
  }
  void Set(uint64_t step) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = ValueAt(step, first + static_cast<int64_t>(i / 4));
  }
  static int64_t ValueAt(uint64_t step, int64_t row) { return static_cast<int64_t>(step) * 1000 + row; }
  bool Holds(uint64_t step) const {
    for (size_t i = 0; i < data.size(); ++i) {
      if (data[i] != ValueAt(step, first + static_cast<int64_t>(i / 4))) return false;
    }
    return true;
  }

  int64_t first, count;
  std::vector<int64_t> data;
  std::shared_ptr<State> state;
  std::vector<const void*> addresses;
};

inline constexpr int64_t kRows = 1000;

class ReshardTest : public ManyRanksTest {
 protected:
  void SaveRows(uint64_t step) {
    OnEach([&](uint32_t rank) {
      RowState rows(kRows, rank, static_cast<uint32_t>(ranks_.size()));
      rows.Set(step);
      SaveRequest request;
      request.step = step;
      request.state = rows.state;
      request.addresses = rows.addresses;
      auto ticket = ranks_[rank].engine->Save(request);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      EXPECT_EQ((*ticket)->Wait("done", 60), absl::OkStatus());
    });
  }
  static absl::Status ReadRows(Image* image, RowState* rows) {
    NEVE_ASSIGN_OR_RETURN(const auto table, ImageTensors::Of(image));
    const int64_t offset[] = {rows->first, 0}, extent[] = {rows->count, 4};
    const BoxTarget box{*table->Find("rows"), offset, extent, rows->data.data()};
    return table->ReadBoxes({&box, 1});
  }
  void ExpectRows(uint64_t step, bool global) {
    OnEach([&](uint32_t rank) {
      auto image = ranks_[rank].engine->Find({});
      ASSERT_TRUE(image.ok()) << image.status();
      EXPECT_EQ((*image)->info().step, step);
      EXPECT_EQ((*image)->is_global(), global);
      RowState rows(kRows, rank, static_cast<uint32_t>(ranks_.size()));
      const absl::Status read = ReadRows(image->get(), &rows);
      EXPECT_EQ(read, absl::OkStatus());
      EXPECT_TRUE(rows.Holds(step));
      EXPECT_EQ(ranks_[rank].engine->Agree(read), absl::OkStatus());
    });
  }
};

}  // namespace neve

#endif  // NEVE_TESTS_ENGINE_MANY_RANKS_FIXTURE_H_
