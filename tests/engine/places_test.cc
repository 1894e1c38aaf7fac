// Places as the library sees them: what a path is, and reports where no process but this one is needed.
#include "neve/places.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/error/status.h"
#include "base/os/process.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "engine/places_folder.h"
#include "format/json_text.h"
#include "format/names.h"

namespace neve {
namespace {

constexpr const char* kStep = "step-000000000007.i0002.s000003";

class PlacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = os::JoinPath(::testing::TempDir(), "neve-places-" + os::RandomHex(12));
    ASSERT_TRUE(os::MakeDirs(folder_).ok());
    ::setenv("NEVE_RAM_DIR", os::JoinPath(folder_, "ram").c_str(), 1);
  }
  void TearDown() override { ASSERT_EQ(std::system(("rm -rf '" + folder_ + "'").c_str()), 0); }

  std::string Path(const std::string& name) const { return os::JoinPath(folder_, name); }
  void Put(const std::string& name, const std::string& content) const {
    ASSERT_TRUE(os::MakeDirs(os::DirName(Path(name))).ok());
    ASSERT_TRUE(os::WriteFileAtomic(Path(name), content).ok());
  }
  void PutClaim(uint32_t incarnation, int64_t pid, const std::string& host) const {
    const os::ProcessId process = os::CurrentProcess();
    format::LifeClaim claim{"0123456789abcdef", host, os::BootIdString(process), pid, process.start_time, 1};
    Put("job/" + format::FormatLifeName(incarnation), format::EncodeLifeClaim(claim));
  }
  PlaceKind KindOf(const std::string& place) const {
    const absl::StatusOr<PlaceInfo> info = ResolvePlace(place);
    EXPECT_TRUE(info.ok()) << std::string(info.status().message());
    return info.ok() ? info->kind : PlaceKind::kForeign;
  }

  std::string folder_;
};

// An image of the RAM or file tier, with a valid header around the tree.
std::string ImageWith(const std::string& tree, const std::string& values, const std::string& entries, const std::string& data) {
  std::string json = "{\"__metadata__\":{\"neve.format\":\"1\",\"neve.values\":";
  format::AppendJsonString(values, &json);
  json += ",\"neve.tree\":";
  format::AppendJsonString(tree, &json);
  json += "}" + entries + "}";
  std::string image(8, '\0');
  for (size_t i = 0; i < 8; ++i) image[i] = static_cast<char>(json.size() >> (8 * i));
  return image + json + data;
}

TEST_F(PlacesTest, AFolderIsToldByWhatItHolds) {
  EXPECT_EQ(KindOf(folder_), PlaceKind::kEmptyFolder);
  Put("job/job.json", format::EncodeJobIdentity({"job", format::UidFromName("job")}));
  Put(std::string("job/") + kStep + "/shard-00000-of-00001.safetensors", "x");
  EXPECT_EQ(KindOf(folder_), PlaceKind::kRoot);
  EXPECT_EQ(KindOf(Path("job")), PlaceKind::kJobFolder);
  EXPECT_EQ(KindOf(Path("job///")), PlaceKind::kJobFolder);
  EXPECT_EQ(KindOf(Path("job/") + kStep), PlaceKind::kStepFolder);
  EXPECT_EQ(KindOf(Path("job/") + kStep + "/shard-00000-of-00001.safetensors"), PlaceKind::kImageFile);
  EXPECT_EQ(KindOf("ram:job"), PlaceKind::kRam);
}

TEST_F(PlacesTest, AStepFolderComesBeforeAJobFolder) {
  Put("both/job.json", "{}");
  Put("both/shard-00000-of-00001.safetensors", "x");
  EXPECT_EQ(KindOf(Path("both")), PlaceKind::kStepFolder);
}

TEST_F(PlacesTest, AMissingPlaceIsUnavailable) {
  EXPECT_EQ(ResolvePlace(Path("nowhere")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PlacesTest, AMalformedTierStringIsInvalid) {
  for (const char* place : {"", "file:", "file:a%2", "file:a%zz", "file:a%00b"}) {
    EXPECT_EQ(ResolvePlace(place).status().code(), absl::StatusCode::kInvalidArgument) << place;
  }
}

TEST_F(PlacesTest, AMissingRamFolderHoldsNothing) {
  const absl::StatusOr<ListReport> report = ListSaves("ram:");
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->saves.empty());
  EXPECT_FALSE(os::Exists(Path("ram")));   // nothing is made by looking
}

TEST_F(PlacesTest, ARamFolderThatOthersMayEnterIsRefused) {
  ASSERT_TRUE(os::MakeDirs(Path("ram")).ok());
  ASSERT_EQ(::chmod(Path("ram").c_str(), 0777), 0);
  EXPECT_EQ(ListSaves("ram:").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PlacesTest, HugeNumbersInNamesCostNothing) {
  Put(std::string("job/") + kStep + "/shard-4294967294-of-4294967295.safetensors", "x");
  Put(std::string("job/") + kStep + "/shard-00000-of-00002.safetensors", "x");
  const absl::StatusOr<ListReport> report = ListSaves(Path("job"));
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->saves.size(), 1u);
  EXPECT_FALSE(report->saves[0].complete);
  EXPECT_EQ(report->saves[0].missing_ranks, (std::vector<uint32_t>{0, 1}));
}

TEST_F(PlacesTest, AnOlderLifeIsDeadAndTheNewestIsAsAliveAsItsProcess) {
  PutClaim(1, ::getpid(), os::HostName());
  PutClaim(2, ::getpid(), os::HostName());
  absl::StatusOr<engine::FoundJob> job = engine::ReadJob(Path("job"));
  ASSERT_TRUE(job.ok());
  std::string why;
  EXPECT_TRUE(engine::LifeIsDead(*job, 1, &why)) << why;
  EXPECT_FALSE(engine::LifeIsDead(*job, 2, &why)) << why;
  EXPECT_FALSE(engine::LifeIsDead(*job, 3, &why)) << why;   // nobody has claimed it
  PutClaim(2, 0x3fffffff, os::HostName());
  job = engine::ReadJob(Path("job"));
  ASSERT_TRUE(job.ok());
  EXPECT_TRUE(engine::LifeIsDead(*job, 2, &why)) << why;
}

TEST_F(PlacesTest, ALifeOfAnotherHostMayRun) {
  PutClaim(1, 0x3fffffff, "some-other-host");
  const absl::StatusOr<engine::FoundJob> job = engine::ReadJob(Path("job"));
  ASSERT_TRUE(job.ok());
  std::string why;
  EXPECT_FALSE(engine::LifeIsDead(*job, 1, &why));
  EXPECT_NE(why.find("some-other-host"), std::string::npos);
}

TEST_F(PlacesTest, CollectingGarbageLeavesALivingLifeAlone) {
  PutClaim(2, ::getpid(), os::HostName());
  const std::string image = std::string("job/") + kStep + "/shard-00000-of-00001.safetensors";
  Put(image, "being written");
  const absl::StatusOr<GcReport> report = CollectGarbage(Path("job"), {});
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->items.size(), 1u);
  EXPECT_EQ(report->items[0].outcome.rfind("kept: ", 0), 0u);
  EXPECT_TRUE(os::Exists(Path(image)));
}

TEST_F(PlacesTest, WhatIsBeingBroughtIntoADeadLifesSaveIsNoLeftover) {
  Put("job/job.json", format::EncodeJobIdentity({"job", format::UidFromName("job")}));
  PutClaim(1, 1, "a-host");
  PutClaim(2, ::getpid(), os::HostName());   // this life persists what life 1 left in RAM
  const std::string save = "job/step-000000000007.i0001.s000003/";
  const std::vector<std::string> names = {save + "shard-00000-of-00001.safetensors", save + ".tmp-0123456789abcdef"};
  std::vector<os::File> writers;
  for (const std::string& name : names) {
    Put(name, "half");
    writers.push_back(os::Open(Path(name), O_RDWR).value());
    ASSERT_TRUE(os::TryLock(writers.back()));
  }
  const auto busy = CollectGarbage(Path("job"), {});
  ASSERT_TRUE(busy.ok() && busy->worst.ok()) << busy->worst;
  for (const auto& item : busy->items) EXPECT_EQ(item.outcome.rfind("kept: ", 0), 0u) << item.path << " " << item.outcome;
  for (const std::string& name : names) EXPECT_TRUE(os::Exists(Path(name)));
  writers.clear();
  ASSERT_TRUE(CollectGarbage(Path("job"), {}).ok());
  for (const std::string& name : names) EXPECT_FALSE(os::Exists(Path(name)));
}

TEST_F(PlacesTest, ADryRunRemovesNothing) {
  PutClaim(2, 0x3fffffff, os::HostName());
  const std::string image = std::string("job/") + kStep + "/shard-00000-of-00001.safetensors";
  Put(image, "left over");
  absl::StatusOr<GcReport> report = CollectGarbage(Path("job"), {.dry_run = true});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->items[0].outcome, "would remove");
  EXPECT_TRUE(os::Exists(Path(image)));
  report = CollectGarbage(Path("job"), {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->items[0].outcome, "removed");
  EXPECT_FALSE(os::Exists(Path(std::string("job/") + kStep)));
}

TEST_F(PlacesTest, RecoverIntoAFolderRefusesAnotherTarget) {
  Put("job/job.json", format::EncodeJobIdentity({"job", format::UidFromName("job")}));
  EXPECT_EQ(RecoverPlace(Path("job"), {.to = Path("other")}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PlacesTest, TheDoctorAdvisesWhereSomethingIsMissing) {
#if defined(__SANITIZE_ADDRESS__)
  // Libraries of NICs leave memory of their own behind when the doctor has tried whether they can be loaded.
  const __lsan::ScopedDisabler of_others;
#endif
  for (const DoctorCheck& check : Doctor()) {
    EXPECT_FALSE(check.name.empty());
    EXPECT_FALSE(check.found.empty()) << check.name;
    EXPECT_TRUE(check.ok || !check.advice.empty()) << check.name;
  }
}

TEST_F(PlacesTest, VerifyKnowsTheRulesOfTheTreeTheValuesAndTheBlobs) {
  const std::string a = R"(,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string blob = R"(,"neve.blob.0":{"dtype":"U8","shape":[16],"data_offsets":[0,16]})";
  const auto payload = [](char length, const std::string& text) {
    std::string bytes = std::string(1, length) + std::string(7, '\0') + text;
    bytes.resize(16);
    return bytes;
  };
  const std::string eight(8, '\0');
  const struct {
    std::string image, code;   // "": nothing is wrong
  } cases[] = {
      {ImageWith(R"({"v":1,"root":{"d":[1]}})", "", a, eight), ""},
      {ImageWith(R"({"v":1,"root":{"d":[1,["b",{"T":1}]]},"tensors":{"alias":[[1,"b","a",4,"F32",[2],[1]]]}})", "", a, eight),
       "tree"},
      {ImageWith(R"({"v":1,"root":{"d":[2]}})", "", a, eight), "tree"},
      {ImageWith(R"({"v":1,"root":{"d":[]}})", "", a, eight), "tree"},
      {ImageWith("{", "", a, eight), "tree"},
      {ImageWith(R"({"v":1,"root":{"d":[1,["x","v"]]}})", "[", a, eight), "tree"},
      {ImageWith(R"({"v":1,"root":{"d":[1]}})", "i1;", a, eight), "tree"},
      {ImageWith(R"({"v":1,"root":{"d":[1]},"tensors":{"strided":{"a":[[2],[35184372088832]]}}})", "", a, eight), "tree"},
      {ImageWith(R"({"v":1,"root":{"b":0}})", "", blob, payload(3, "vi1;")), "blob"},
      {ImageWith(R"({"v":1,"root":{"b":0}})", "", blob, payload(4, "vi1;")), ""},
      {ImageWith(R"({"v":1,"root":{"b":0}})", "", blob, payload(9, "vi1;")), "blob"},
      {ImageWith(R"({"v":1,"root":{"b":0}})", "", blob, payload(0, "vi1;")), "blob"},
      {ImageWith(R"({"v":1,"root":{"b":0}})", "", blob, payload(4, "?i1;")), "blob"},
      {ImageWith(R"({"v":1,"root":{"z":0}})", "", "", ""), "kind"},
      {ImageWith(R"({"v":2,"root":{"d":[]}})", "", "", ""), "kind"},
  };
  for (const auto& [image, code] : cases) {
    SCOPED_TRACE(image);
    Put("file.safetensors", image);
    const absl::StatusOr<VerifyReport> report = VerifyPlace(Path("file.safetensors"), -1, {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->ok, code.empty());
    EXPECT_EQ(report->structural, code == "tree" || code == "blob");
    EXPECT_EQ(ExitCodeOf(report->worst), code == "kind" ? 3 : 0);
    if (code.empty()) continue;
    ASSERT_EQ(report->problems.size(), 1u);
    EXPECT_EQ(report->problems[0].code, code) << report->problems[0].message;
  }
}

TEST_F(PlacesTest, AJobThatRamDoesNotHoldIsNotFound) {
  for (const char* place : {"ram:nojob", "ram:no%20job"}) {
    EXPECT_TRUE(absl::IsNotFound(VerifyPlace(place, -1, {}).status())) << place;
    EXPECT_TRUE(absl::IsNotFound(RecoverPlace(place, {}, {}).status())) << place;
    EXPECT_TRUE(absl::IsNotFound(CollectGarbage(place, {}).status())) << place;
    EXPECT_TRUE(ListSaves(place).ok()) << place;
  }
  EXPECT_TRUE(VerifyPlace("ram:", -1, {}).ok());
}

TEST_F(PlacesTest, OptionsOfAPlaceMustBeOptions) {
  EXPECT_TRUE(ResolvePlace("file:" + folder_ + "?every=10&keep=3").ok());
  EXPECT_TRUE(ResolvePlace("ram:job?slots=3").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ResolvePlace("file:" + folder_ + "?bogus=1").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ResolvePlace("ram:job?copies=3").status()));
}

}  // namespace
}  // namespace neve
