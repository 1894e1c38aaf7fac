// Ranks that meet through functions of the program: a store or an all-gather, by threads of one process and by processes; what they
// answer, and what happens when they fail.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "capi/handles_fixture.h"

namespace neve_test {
namespace {

constexpr int64_t kRows = 12, kColumns = 5;

// A store as a launcher has one.
struct Store {
  std::mutex mutex;
  std::map<std::string, std::string> values;
  std::atomic<int> sets = 0, gets = 0;
};
int SetInStore(void* context, const char* name, const void* value, size_t bytes, neve_reply*) {
  auto& store = *static_cast<Store*>(context);
  std::lock_guard lock(store.mutex);
  ++store.sets;
  store.values[name] = std::string(static_cast<const char*>(value), bytes);
  return NEVE_OK;
}
int GetFromStore(void* context, const char* name, neve_reply* reply) {
  auto& store = *static_cast<Store*>(context);
  std::lock_guard lock(store.mutex);
  ++store.gets;
  const auto found = store.values.find(name);
  if (found == store.values.end()) return NEVE_NOT_FOUND;
  neve_reply_add(reply, found->second.data(), found->second.size());
  return NEVE_OK;
}

// An all-gather as MPI has one: of threads, which meet at a place.
struct Gatherer {
  explicit Gatherer(size_t world) : world(world), messages(world) {}
  const size_t world;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> messages, last;
  size_t arrived = 0, round = 0;
};
struct RankOfGatherer {
  Gatherer* gatherer;
  uint32_t rank;
};
int GatherThreads(void* context, const void* mine, size_t bytes, double, neve_reply* reply) {
  const auto [gatherer, rank] = *static_cast<RankOfGatherer*>(context);
  std::unique_lock lock(gatherer->mutex);
  gatherer->messages[rank] = std::string(static_cast<const char*>(mine), bytes);
  const size_t round = gatherer->round;
  if (++gatherer->arrived == gatherer->world) {
    gatherer->last = gatherer->messages;
    gatherer->arrived = 0;
    ++gatherer->round;
    gatherer->changed.notify_all();
  } else {
    gatherer->changed.wait(lock, [&] { return gatherer->round != round; });
  }
  for (const std::string& message : gatherer->last) neve_reply_add(reply, message.data(), message.size());
  return NEVE_OK;
}

// A store of files, for ranks that are processes.
int SetInFolder(void* context, const char* name, const void* value, size_t bytes, neve_reply* reply) {
  std::string path = *static_cast<std::string*>(context) + "/";
  for (const char* c = name; *c != 0; ++c) path += *c == '/' ? '_' : *c;
  const std::string fresh = path + "." + std::to_string(::getpid());
  std::ofstream file(fresh, std::ios::binary);
  file.write(static_cast<const char*>(value), static_cast<std::streamsize>(bytes));
  file.close();
  if (file.fail() || std::rename(fresh.c_str(), path.c_str()) != 0) {
    neve_reply_add(reply, "the folder took no file", 23);
    return NEVE_UNAVAILABLE;
  }
  return NEVE_OK;
}
int GetFromFolder(void* context, const char* name, neve_reply* reply) {
  std::string path = *static_cast<std::string*>(context) + "/";
  for (const char* c = name; *c != 0; ++c) path += *c == '/' ? '_' : *c;
  std::ifstream file(path, std::ios::binary);
  if (!file) return NEVE_NOT_FOUND;
  const std::string value{std::istreambuf_iterator<char>(file), {}};
  neve_reply_add(reply, value.data(), value.size());
  return NEVE_OK;
}

float ElementOf(int64_t row, int64_t column, uint64_t step) {
  return static_cast<float>(row * 100 + column) + 1000.0f * static_cast<float>(step);
}

// A rank's rows of "w" [kRows, kColumns], and "counter", which all ranks have alike.
struct Share {
  Share(uint32_t rank, uint32_t world) {
    const int64_t first = kRows * rank / world, end = kRows * (rank + 1) / world;
    begin = first;
    rows.assign(static_cast<size_t>((end - first) * kColumns), -1);
    described.Add("w", {end - first, kColumns});
    described.Add("counter", {1});
    described.tensors.pieces = pieces;
    global_extents[0] = kRows;
    global_extents[1] = kColumns;
    offsets[0] = first;
    described.tensors.global_extents = global_extents;
    described.tensors.offsets = offsets;
    state = described.State();
  }
  ~Share() { neve_state_destroy(&state); }
  Share(const Share&) = delete;
  void Fill(uint64_t step) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = ElementOf(begin + static_cast<int64_t>(i) / kColumns, static_cast<int64_t>(i) % kColumns, step);
    }
    counter = static_cast<float>(step);
  }
  bool Holds(uint64_t step) const {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != ElementOf(begin + static_cast<int64_t>(i) / kColumns, static_cast<int64_t>(i) % kColumns, step)) return false;
    }
    return counter == static_cast<float>(step);
  }

  const uint8_t pieces[2] = {1, 0};
  int64_t global_extents[3] = {}, offsets[3] = {};
  int64_t begin = 0;
  std::vector<float> rows;
  float counter = -1;
  Described described;
  neve_state* state = nullptr;
};

Outcome SaveShare(neve_engine* engine, Share& share, uint64_t step) {
  share.Fill(step);
  const void* addresses[] = {share.rows.data(), &share.counter};
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  request.step = step;
  request.state = share.state;
  request.addresses = addresses;
  neve_ticket* ticket = nullptr;
  Outcome outcome = Call(neve_engine_save, engine, static_cast<const neve_save_request*>(&request), &ticket);
  if (outcome.code == NEVE_OK) outcome = Call(neve_ticket_wait, static_cast<const neve_ticket*>(ticket), "complete:file", 60.0);
  neve_ticket_destroy(&ticket);
  return outcome;
}

Outcome RestoreShare(neve_engine* engine, Share& share, uint64_t* step = nullptr, bool atomic = false) {
  void* targets[] = {share.rows.data(), &share.counter};
  neve_restore_request request = NEVE_RESTORE_REQUEST_INIT;
  request.state = share.state;
  request.targets = targets;
  request.atomic = atomic ? 1 : 0;
  neve_image* image = nullptr;
  const Outcome outcome = Call(neve_engine_restore, engine, static_cast<const neve_restore_request*>(&request), &image);
  if (step != nullptr) *step = neve_image_step(image);
  neve_image_destroy(&image);
  return outcome;
}

class GroupTest : public CApiTest {
 protected:
  // Runs a function of each rank on a thread of its own.
  template <typename Rank>
  static void Together(uint32_t world, Rank rank) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < world; ++r) threads.emplace_back([&, r] { rank(r); });
    for (std::thread& thread : threads) thread.join();
  }
  neve_options OptionsOf(uint32_t rank, uint32_t world) const {
    neve_options options = NEVE_OPTIONS_INIT;
    options.folder = job_.c_str();
    options.rank = rank;
    options.world = world;
    options.group_timeout_s = 60;
    return options;
  }
  const std::string job_ = Path("job");
};

TEST_F(GroupTest, ThreadsThroughAStoreAndBackOnAnotherNumberOfThem) {
  Store first, second;
  Together(3, [&](uint32_t rank) {
    neve_options options = OptionsOf(rank, 3);
    options.group_set = SetInStore;
    options.group_get = GetFromStore;
    options.group_context = &first;
    neve_engine* engine = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_open, &options, &engine);
    Share share(rank, 3);
    EXPECT_EQ(RestoreShare(engine, share).code, NEVE_NOT_FOUND);   // nothing yet, and all say so
    for (uint64_t step = 1; step <= 3; ++step) EXPECT_EQ(SaveShare(engine, share, step).code, NEVE_OK);
    share.Fill(77);
    uint64_t step = 0;
    const Outcome outcome = RestoreShare(engine, share, &step, true);
    EXPECT_EQ(outcome.code, NEVE_OK) << outcome.text;
    EXPECT_EQ(step, 3u);
    EXPECT_TRUE(share.Holds(3));
    EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 1, 60.0);
  });
  EXPECT_GT(first.sets, 0);
  EXPECT_GT(first.gets, 0);
  Together(2, [&](uint32_t rank) {
    neve_options options = OptionsOf(rank, 2);
    options.group_set = SetInStore;
    options.group_get = GetFromStore;
    options.group_context = &second;
    neve_engine* engine = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_open, &options, &engine);
    Share share(rank, 2);
    const Outcome outcome = RestoreShare(engine, share);
    EXPECT_EQ(outcome.code, NEVE_OK) << outcome.text;
    EXPECT_TRUE(share.Holds(3));
    EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
  });
}

TEST_F(GroupTest, ThreadsThroughAnAllGather) {
  Gatherer gatherer(4);
  Together(4, [&](uint32_t rank) {
    RankOfGatherer context{&gatherer, rank};
    neve_options options = OptionsOf(rank, 4);
    options.group_gather = GatherThreads;
    options.group_context = &context;
    neve_engine* engine = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_open, &options, &engine);
    Share share(rank, 4);
    EXPECT_EQ(SaveShare(engine, share, 5).code, NEVE_OK);
    share.Fill(0);
    EXPECT_EQ(RestoreShare(engine, share).code, NEVE_OK);
    EXPECT_TRUE(share.Holds(5));

    // By hand: find, read, agree. One rank fails, and all hear the same of it.
    neve_image* image = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_find, engine, nullptr, &image);
    const Outcome all = Call(neve_engine_agree, engine, rank == 2 ? NEVE_DATA_LOSS : NEVE_OK, rank == 2 ? "rank two's disk" : nullptr);
    EXPECT_EQ(all.code, NEVE_DATA_LOSS);
    EXPECT_NE(all.text.find("rank two's disk"), std::string::npos) << all.text;
    neve_image_destroy(&image);

    // What does not fit on one rank is an error on all, and nothing hangs.
    Described other;
    other.Add("counter", {rank == 1 ? 2 : 1});
    neve_state* state = other.State();
    float target[2] = {-1, -1};
    void* targets[] = {target};
    neve_restore_request request = NEVE_RESTORE_REQUEST_INIT;
    request.state = state;
    request.targets = targets;
    const Outcome misfit =
        Call(neve_engine_restore, engine, static_cast<const neve_restore_request*>(&request), static_cast<neve_image**>(nullptr));
    EXPECT_EQ(misfit.code, NEVE_INVALID) << misfit.text;
    EXPECT_NE(misfit.text.find("counter"), std::string::npos) << misfit.text;
    neve_state_destroy(&state);
    EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
  });
}

TEST_F(GroupTest, ProcessesThroughAStore) {
  std::string store = Path("store");
  std::filesystem::create_directory(store);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto run = [&] {
        neve_options options = OptionsOf(rank, 3);
        options.group_set = SetInFolder;
        options.group_get = GetFromFolder;
        options.group_context = &store;
        neve_engine* engine = nullptr;
        ASSERT_CODE(NEVE_OK, neve_engine_open, &options, &engine);
        Share share(rank, 3);
        EXPECT_EQ(SaveShare(engine, share, 8).code, NEVE_OK);
        EXPECT_EQ(SaveShare(engine, share, 9).code, NEVE_OK);
        share.Fill(1);
        EXPECT_EQ(RestoreShare(engine, share).code, NEVE_OK);
        EXPECT_TRUE(share.Holds(9));
        EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 1, 60.0);
      };
      run();
      std::fflush(nullptr);
      ::_exit(HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

TEST_F(GroupTest, WhatTheProgramsFunctionsMayDoWrong) {
  neve_options options = OptionsOf(0, 2);
  neve_engine* engine = nullptr;
  EXPECT_CODE(NEVE_INVALID, neve_engine_open, &options, &engine);   // no way to meet
  options.group_set = SetInStore;
  EXPECT_CODE(NEVE_INVALID, neve_engine_open, &options, &engine);   // half a store
  options.group_set = nullptr;
  options.group_timeout_s = 0;
  options.group = "dir:/tmp";
  EXPECT_CODE(NEVE_INVALID, neve_engine_open, &options, &engine);
  options.group = nullptr;
  options.group_timeout_s = 0.2;

  using Gather = int (*)(void*, const void*, size_t, double, neve_reply*);
  const auto opened_with = [&](Gather gather) {
    options.group_gather = gather;
    const Outcome outcome = Call(neve_engine_open, static_cast<const neve_options*>(&options), &engine);
    EXPECT_EQ(engine, nullptr);
    return outcome;
  };
  const Outcome refused = opened_with([](void*, const void*, size_t, double, neve_reply* reply) -> int {
    neve_reply_add(reply, "the network is down", 19);
    return NEVE_UNAVAILABLE;
  });
  EXPECT_EQ(refused.code, NEVE_UNAVAILABLE);
  EXPECT_NE(refused.text.find("the network is down"), std::string::npos) << refused.text;
  EXPECT_EQ(opened_with([](void*, const void*, size_t, double, neve_reply*) -> int { return -12345; }).code, NEVE_UNAVAILABLE);
  EXPECT_NE(opened_with([](void*, const void*, size_t, double, neve_reply*) -> int { return NEVE_OK; }).code, NEVE_OK);   // of nobody
  EXPECT_NE(opened_with([](void*, const void* mine, size_t bytes, double, neve_reply* reply) -> int {
              for (int i = 0; i < 5; ++i) neve_reply_add(reply, mine, bytes);   // of too many
              return NEVE_OK;
            }).code, NEVE_OK);
  EXPECT_NE(opened_with([](void*, const void*, size_t, double, neve_reply* reply) -> int {
              for (int i = 0; i < 2; ++i) neve_reply_add(reply, "\xff\x00garbage", 9);
              return NEVE_OK;
            }).code, NEVE_OK);
  EXPECT_NE(opened_with([](void*, const void*, size_t, double, neve_reply* reply) -> int {
              for (int i = 0; i < 2; ++i) neve_reply_add(reply, nullptr, 9);
              return NEVE_OK;
            }).code, NEVE_OK);

  // A rank that never comes: who it is stands in the error.
  Store store;
  options.group_gather = nullptr;
  options.group_set = SetInStore;
  options.group_get = GetFromStore;
  options.group_context = &store;
  const Outcome alone = Call(neve_engine_open, static_cast<const neve_options*>(&options), &engine);
  EXPECT_EQ(alone.code, NEVE_TIMEOUT);
  EXPECT_NE(alone.text.find("rank 1"), std::string::npos) << alone.text;
}

TEST_F(GroupTest, ARankThatLeavesIsHeardOf) {
  Store store;
  Together(2, [&](uint32_t rank) {
    neve_options options = OptionsOf(rank, 2);
    options.group_set = SetInStore;
    options.group_get = GetFromStore;
    options.group_context = &store;
    neve_engine* engine = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_open, &options, &engine);
    Share share(rank, 2);
    EXPECT_EQ(SaveShare(engine, share, 1).code, NEVE_OK);
    neve_image* image = nullptr;
    ASSERT_CODE(NEVE_OK, neve_engine_find, engine, nullptr, &image);
    if (rank == 1) {
      EXPECT_CODE(NEVE_OK, neve_engine_leave, engine, "the model is another one");
    } else {
      const Outcome outcome = Call(neve_engine_agree, engine, NEVE_OK, static_cast<const char*>(nullptr));
      EXPECT_EQ(outcome.code, NEVE_UNAVAILABLE);
      EXPECT_NE(outcome.text.find("the model is another one"), std::string::npos) << outcome.text;
    }
    neve_image_destroy(&image);
    EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 0, 60.0);
  });
}

}  // namespace
}  // namespace neve_test
