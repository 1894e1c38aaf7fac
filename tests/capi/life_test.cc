// Handles of the C API in forked children, under many threads, in any order, and at exit.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "capi/misuse_fixture.h"

namespace neve_test {
namespace {

using LifeTest = MisuseTest;

// What a forked child does with its parent's handles; 0: every call was refused.
int CallsInChild(const Handles& handles, [[maybe_unused]] const std::string& folder) {
  EveryCallRefuses(handles.engine, handles.state, handles.ticket, handles.image, handles.stream, NEVE_CLOSED);
  Handles copies = handles;
  EXPECT_CODE(NEVE_CLOSED, neve_engine_close, &copies.engine, 1, 1.0);
  EXPECT_EQ(copies.engine, nullptr);
  copies = handles;
  neve_engine_destroy(&copies.engine);
  neve_ticket_destroy(&copies.ticket);
  neve_image_destroy(&copies.image);
  neve_state_destroy(&copies.state);
  neve_torch_stream_destroy(&copies.stream);
#if !defined(__SANITIZE_THREAD__)   // which allows a forked child no threads
  const std::string path = folder + "/of-the-child";
  neve_options options = NEVE_OPTIONS_INIT;
  options.folder = path.c_str();
  neve_engine* own = nullptr;
  EXPECT_CODE(NEVE_OK, neve_engine_open, &options, &own);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &own, 0, 60.0);
#endif
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST_F(LifeTest, AForkedChildHasNoneOfItsParentsHandles) {
  Handles handles{Open("job"), state_, nullptr, nullptr, MakeStream()};
  handles.ticket = Save(handles.engine, 1);
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, handles.ticket, "ram", 60.0);
  ASSERT_CODE(NEVE_OK, neve_engine_find, handles.engine, nullptr, &handles.image);
  // Forks while another thread is in calls: the child finds no lock held.
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) neve_ticket_step(handles.ticket);
  });
  for (int round = 0; round < 5; ++round) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(CallsInChild(handles, folder_));
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    ASSERT_EQ(WEXITSTATUS(status), 0);
  }
  stop = true;
  busy.join();
  EXPECT_CODE(NEVE_OK, neve_ticket_wait, handles.ticket, "done", 60.0);   // the parent's are as they were
  EXPECT_CODE(NEVE_OK, neve_image_verify, handles.image);
  neve_ticket_destroy(&handles.ticket);
  neve_image_destroy(&handles.image);
  neve_torch_stream_destroy(&handles.stream);
  EXPECT_CODE(NEVE_OK, neve_engine_close, &handles.engine, 1, 60.0);
}

TEST_F(LifeTest, ManyThreadsOnOneHandle) {
  neve_engine* const engine = Open("job");
  neve_engine* owner = engine;
  neve_ticket* first = Save(engine, 0);
  ASSERT_CODE(NEVE_OK, neve_ticket_wait, first, "file", 60.0);   // slots of the others are filled again while a find looks at them
  request_.to = "ram";
  std::atomic<int> bad = 0;
  const auto check = [&](const Outcome& outcome) {
    // Good, or the handle was gone by then.
    if (outcome.code == NEVE_OK || outcome.code == NEVE_INVALID || outcome.code == NEVE_CLOSED) return true;
    ++bad;
    ADD_FAILURE() << outcome.code << " " << outcome.text;
    return false;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        neve_ticket* ticket = nullptr;
        neve_string* text = nullptr;
        neve_image* image = nullptr;
        neve_save_request request = request_;
        request.step = static_cast<uint64_t>(t * 1000 + i + 1);
        check(Call(neve_engine_save, engine, static_cast<const neve_save_request*>(&request), &ticket));
        check(Call(neve_engine_health, engine, &text));
        neve_string_destroy(&text);
        if (i % 10 == t) {
          if (check(Call(neve_engine_find, engine, static_cast<const neve_find_request*>(nullptr), &image)) && image != nullptr) {
            check(Call(neve_image_verify, image));
          }
          check(Call(neve_engine_steps, engine, &text));
          neve_string_destroy(&text);
        }
        check(Call(neve_ticket_wait, static_cast<const neve_ticket*>(first), "captured", 60.0));
        if (ticket != nullptr) check(Call(neve_ticket_wait, static_cast<const neve_ticket*>(ticket), "ram", 60.0));
        neve_ticket_destroy(&ticket);
        neve_image_destroy(&image);
      }
    });
  }
  threads.emplace_back([&] {   // and two who end what the others use
    neve_ticket* copy = first;
    neve_ticket_destroy(&copy);
  });
  for (std::thread& thread : threads) thread.join();
  neve_engine* copy = engine;
  std::thread racer([&] { check(Call(neve_engine_close, &copy, 0, 60.0)); });
  check(Call(neve_engine_close, &owner, 0, 60.0));
  racer.join();
  EXPECT_EQ(bad, 0);
}

TEST_F(LifeTest, CloseWhileOthersCall) {
  for (int round = 0; round < 4; ++round) {
    neve_engine* engine = Open("job");
    std::atomic<int> calls = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t, handle = engine] {
        Outcome outcome;
        for (uint64_t step = 0; outcome.code == NEVE_OK && step < 100000; ++step) {
          neve_save_request request = request_;
          request.step = step;
          request.slot_timeout_s = 10;
          neve_string* text = nullptr;
          neve_image* image = nullptr;
          if (t < 2) {
            outcome = Call(neve_engine_save, handle, static_cast<const neve_save_request*>(&request), static_cast<neve_ticket**>(nullptr));
          }
          if (t == 2) outcome = Call(neve_engine_steps, handle, &text);
          if (t == 3) outcome = Call(neve_engine_find, handle, static_cast<const neve_find_request*>(nullptr), &image);
          if (t == 3 && outcome.code == NEVE_NOT_FOUND) outcome.code = NEVE_OK;   // before the first save
          neve_string_destroy(&text);
          neve_image_destroy(&image);
          ++calls;
        }
        EXPECT_TRUE(outcome.code == NEVE_INVALID || outcome.code == NEVE_CLOSED) << outcome.code << " " << outcome.text;
      });
    }
    while (calls < 20) std::this_thread::yield();
    if (round % 2 == 0) {
      EXPECT_CODE(NEVE_OK, neve_engine_close, &engine, 1, 60.0);
    } else {
      neve_engine_destroy(&engine);
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(LifeTest, AnyCallsInAnyOrderFromASeed) {
  const char* given = ::getenv("NEVE_SEED");
  const auto seed = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::printf("NEVE_SEED=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<neve_engine*> engines = {nullptr};
  std::vector<neve_ticket*> tickets = {nullptr};
  std::vector<neve_image*> images = {nullptr};
  std::vector<neve_state*> states = {nullptr, state_};
  const auto any = [&](auto& list) -> auto& { return list[random() % list.size()]; };
  std::vector<float> target(1000);
  void* targets[] = {target.data()};
  for (int i = 0; i < 400; ++i) {
    neve_string* text = nullptr;
    neve_error* error = nullptr;
    switch (random() % 14) {
      case 0:
        if (engines.size() < 6) engines.push_back(Open("job" + std::to_string(random() % 2)));
        break;
      case 1: {   // a copy stays in the list
        neve_engine* engine = any(engines);
        neve_engine_close(&engine, static_cast<int>(random() % 2), 60, &error);
        break;
      }
      case 2: {
        neve_engine* engine = any(engines);
        neve_engine_destroy(&engine);
        break;
      }
      case 3:
      case 4: {
        neve_save_request request = request_;
        request.state = any(states);
        request.step = random() % 50;
        neve_ticket* ticket = nullptr;
        if (neve_engine_save(any(engines), &request, &ticket, &error) == NEVE_OK) tickets.push_back(ticket);
        break;
      }
      case 5: neve_ticket_wait(any(tickets), random() % 2 == 0 ? "done" : "complete", 20, &error); break;
      case 6: {
        neve_ticket* ticket = any(tickets);
        neve_ticket_destroy(&ticket);
        break;
      }
      case 7: {
        neve_image* image = nullptr;
        if (neve_engine_find(any(engines), nullptr, &image, &error) == NEVE_OK) images.push_back(image);
        break;
      }
      case 8: {
        neve_image* image = any(images);
        neve_image_destroy(&image);
        break;
      }
      case 9: {
        neve_restore_request request = NEVE_RESTORE_REQUEST_INIT;
        request.state = any(states);
        request.targets = targets;
        request.atomic = static_cast<int>(random() % 2);
        request.fallback = static_cast<int>(random() % 2);
        neve_engine_restore(any(engines), &request, nullptr, &error);
        break;
      }
      case 10: neve_image_verify(any(images), &error); break;
      case 11: neve_image_describe(any(images), &text, &error); break;
      case 12: neve_engine_pin(any(engines), random() % 50, static_cast<int>(random() % 2), &error); break;
      default: neve_engine_drain(any(engines), 20, &error); break;
    }
    neve_string_destroy(&text);
    neve_error_destroy(&error);
  }
  for (neve_image*& image : images) neve_image_destroy(&image);
  for (neve_ticket*& ticket : tickets) neve_ticket_destroy(&ticket);
  for (neve_engine*& engine : engines) neve_engine_destroy(&engine);
}

using LifeDeathTest = LifeTest;

void* at_exit_engine;
const neve_save_request* at_exit_request;

TEST_F(LifeDeathTest, AProcessEndsWithOpenHandles) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        neve_engine* engine = Open("job");
        for (uint64_t step = 0; step < 3; ++step) Save(engine, step);
        neve_image* image = nullptr;
        Call(neve_engine_find, engine, static_cast<const neve_find_request*>(nullptr), &image);
        std::exit(HasFailure() ? 1 : 0);   // destructors of the library's and the program's objects run; threads do too
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        at_exit_engine = Open("job");
        at_exit_request = &request_;
        std::atexit([] {   // after main, calls do what they always do
          auto* engine = static_cast<neve_engine*>(at_exit_engine);
          Call(neve_engine_save, engine, at_exit_request, static_cast<neve_ticket**>(nullptr));
          if (Call(neve_engine_close, &engine, 1, 60.0).code != NEVE_OK) ::_exit(3);
          if (Call(neve_engine_drain, static_cast<neve_engine*>(at_exit_engine), 0.0).code != NEVE_INVALID) ::_exit(4);
        });
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace neve_test
