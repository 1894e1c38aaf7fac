// What the C++ tests of the C API share: a job in a folder of its own, handles that close themselves, and calls that say what went wrong.
#ifndef NEVE_TESTS_CAPI_HANDLES_FIXTURE_H_
#define NEVE_TESTS_CAPI_HANDLES_FIXTURE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "neve/neve.h"

namespace neve_test {

// A code with its text, as a gtest message shows it.
struct Outcome {
  neve_code code = NEVE_OK;
  std::string text;
};
inline void PrintTo(const Outcome& outcome, std::ostream* out) { *out << outcome.code << " \"" << outcome.text << '"'; }

// Calls a function whose last argument is the error.
template <typename Function, typename... Arguments>
Outcome Call(Function function, Arguments... arguments) {
  neve_error* error = nullptr;
  Outcome outcome{function(arguments..., &error), ""};
  EXPECT_EQ(outcome.code, neve_error_code(error)) << "the error's code is not the call's";
  outcome.text = neve_error_message(error);
  EXPECT_EQ(outcome.code == NEVE_OK, error == nullptr);
  EXPECT_TRUE(outcome.code == NEVE_OK || outcome.text.size() >= 5) << "a text that says nothing: " << outcome.text;
  neve_error_destroy(&error);
  EXPECT_EQ(error, nullptr);
  return outcome;
}

#define EXPECT_CODE(wanted, ...)                                    \
  do {                                                              \
    const ::neve_test::Outcome outcome_ = ::neve_test::Call(__VA_ARGS__); \
    EXPECT_EQ(outcome_.code, wanted) << outcome_.text;              \
  } while (0)
#define ASSERT_CODE(wanted, ...)                                    \
  do {                                                              \
    const ::neve_test::Outcome outcome_ = ::neve_test::Call(__VA_ARGS__); \
    ASSERT_EQ(outcome_.code, wanted) << outcome_.text;              \
  } while (0)

// Tensors of one dtype, described by name and shape.
struct Described {
  std::string names;
  std::vector<uint32_t> name_bytes;
  std::vector<uint8_t> dtypes, ranks;
  std::vector<int64_t> extents;
  neve_tensors tensors = NEVE_TENSORS_INIT;

  void Add(const std::string& name, const std::vector<int64_t>& shape, uint8_t dtype = NEVE_F32) {
    names += name;
    name_bytes.push_back(static_cast<uint32_t>(name.size()));
    dtypes.push_back(dtype);
    ranks.push_back(static_cast<uint8_t>(shape.size()));
    extents.insert(extents.end(), shape.begin(), shape.end());
  }
  const neve_tensors* Get() {
    tensors.count = name_bytes.size();
    tensors.names = names.data();
    tensors.name_bytes = name_bytes.data();
    tensors.dtypes = dtypes.data();
    tensors.ranks = ranks.data();
    tensors.extents = extents.data();
    return &tensors;
  }
  neve_state* State() {
    neve_state* state = nullptr;
    EXPECT_CODE(NEVE_OK, neve_state_create, Get(), nullptr, 0, 0, &state);
    return state;
  }
};

class CApiTest : public ::testing::Test {
 protected:
  CApiTest() {
    std::string path = ::testing::TempDir() + "/neve-capi-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    ::setenv("NEVE_RAM_DIR", (folder_ + "/ram").c_str(), 1);
    ::setenv("NEVE_LOG", "error", 1);
  }
  ~CApiTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  neve_engine* Open(const std::string& job) {
    const std::string path = Path(job);
    neve_options options = NEVE_OPTIONS_INIT;
    options.folder = path.c_str();
    neve_engine* engine = nullptr;
    EXPECT_CODE(NEVE_OK, neve_engine_open, &options, &engine);
    return engine;
  }

  std::string folder_;
};

}  // namespace neve_test

#endif  // NEVE_TESTS_CAPI_HANDLES_FIXTURE_H_
