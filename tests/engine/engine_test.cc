#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <set>

#include "base/error/status.h"
#include "engine/engine_fixture.h"

namespace neve {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> FilesUnder(const fs::path& folder, const std::string& suffix) {
  std::vector<fs::path> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().string().ends_with(suffix)) found.push_back(entry.path());
  }
  return found;
}

void FlipByte(const fs::path& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  char byte = 0;
  stream.get(byte);
  byte = static_cast<char>(byte ^ 0x10);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

TEST_F(EngineTest, OpenAndFindCreateNothing) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(absl::IsNotFound(engine_->Find({}).status()));
  EXPECT_FALSE(fs::exists(job()));
  EXPECT_FALSE(fs::exists(ram_));
}

TEST_F(EngineTest, ASY_01_TheStateAtTheCallIsWhatIsRestored) {
  ASSERT_TRUE(Open().ok());
  TestState state(5, 70'000);
  state.Set(1);
  auto ticket = Save(state, 10, "i7;");
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  state.Set(99);   // training goes on at once
  ASSERT_TRUE((*ticket)->Wait("done", 60).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->info().step, 10u);
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(1));
  EXPECT_GT((*image)->Sources().at("ram"), 0u);
  EXPECT_NE(std::string((*image)->header()).find("i7;"), std::string::npos);
}

TEST_F(EngineTest, ASY_06_FindRightAfterSaveGivesTheStagedCopy) {
  ASSERT_TRUE(Open().ok());
  TestState state;
  state.Set(3);
  ASSERT_TRUE(Save(state, 1).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->info().step, 1u);
}

TEST_F(EngineTest, RestoresFromFileWhenRamIsGone) {
  ASSERT_TRUE(Open().ok());
  TestState state(4, 300'000);
  state.Set(7);
  SaveDone(state, 5);
  engine_.reset();
  fs::remove_all(ram_);
  ASSERT_TRUE(Open().ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  state.Clear();
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(7));
  EXPECT_EQ((*image)->Sources().count("ram"), 0u);
}

TEST_F(EngineTest, BadChunkInRamIsTakenFromFileAndHealed) {
  ASSERT_TRUE(Open().ok());
  TestState state(4, 1'000'000);
  state.Set(2);
  SaveDone(state, 5);
  engine_.reset();
  const auto slots = FilesUnder(ram_, ".slot");
  ASSERT_FALSE(slots.empty());
  for (const auto& slot : slots) {
    // Somewhere in the image's data.
    FlipByte(slot, fs::file_size(slot) - 3'000'000);
  }
  ASSERT_TRUE(Open({}).ok());
  {
    auto image = engine_->Find({});
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(absl::IsDataLoss((*image)->VerifyAll()));
    state.Clear();
    ASSERT_TRUE(ReadAll(**image, state).ok());
    EXPECT_TRUE(state.Holds(2));
    EXPECT_GT((*image)->Sources().at("file"), 0u);
  }
  auto again = engine_->Find({});
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE((*again)->VerifyAll().ok()) << (*again)->VerifyAll();
}

TEST_F(EngineTest, PT_21_BadChunkWithoutAnotherCopyIsDataLoss) {
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  TestState state(4, 1'000'000);
  state.Set(2);
  SaveDone(state, 5);
  engine_.reset();
  const auto images = FilesUnder(job(), ".safetensors");
  ASSERT_EQ(images.size(), 1u);
  FlipByte(images[0], fs::file_size(images[0]) - 100);
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  const absl::Status read = ReadAll(**image, state);
  EXPECT_TRUE(absl::IsDataLoss(read)) << read;
  EXPECT_NE(std::string(read.message()).find("chunk"), std::string::npos);
}

TEST_F(EngineTest, RET_04_IncompleteSavesAreSkippedWithAReason) {
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  TestState state;
  for (uint64_t step : {10, 20, 30}) {
    state.Set(static_cast<float>(step));
    SaveDone(state, step);
  }
  engine_.reset();
  for (const auto& image : FilesUnder(job(), ".safetensors")) {
    if (image.string().find("step-000000000020") != std::string::npos) fs::resize_file(image, 5000);
  }
  for (const auto& record : FilesUnder(job(), ".commit.json")) {
    if (record.string().find("step-000000000030") != std::string::npos) fs::remove(record);
  }
  std::ofstream(job() + "/60") << "not a save";
  fs::create_directory(job() + "/step-000000000050.i0001.s000009");
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->info().step, 10u);
  EXPECT_FALSE(engine_->Find({.step = 20}).ok());
  EXPECT_TRUE(absl::IsNotFound(engine_->Find({.step = 44}).status()));
}

TEST_F(EngineTest, FallbackPassesASaveWhoseHeaderIsLost) {
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  TestState state;
  for (uint64_t step : {1, 2}) {
    state.Set(static_cast<float>(step));
    SaveDone(state, step);
  }
  engine_.reset();
  for (const auto& image : FilesUnder(job(), ".safetensors")) {
    if (image.string().find("step-000000000002") != std::string::npos) FlipByte(image, 20);
  }
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  EXPECT_TRUE(absl::IsDataLoss(engine_->Find({}).status()));
  EXPECT_TRUE(absl::IsDataLoss(engine_->Find({.step = 2}).status()));
  for (const FindRequest& request : {FindRequest{.fallback = true}, FindRequest{.step = 2, .fallback = true}}) {
    auto image = engine_->Find(request);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ((*image)->info().step, 1u);
  }
}

TEST_F(EngineTest, RecordsWithoutACompleteSaveAreDataLossNotAFreshStart) {
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  TestState state;
  SaveDone(state, 10);
  engine_.reset();
  for (const auto& image : FilesUnder(job(), ".safetensors")) fs::remove(image);
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  EXPECT_TRUE(absl::IsDataLoss(engine_->Find({}).status())) << engine_->Find({}).status();
}

TEST_F(EngineTest, RET_02_TheNewestIsByLifeNotByStepAndIsNeverRetired) {
  ASSERT_TRUE(Open({"file:" + folder_ + "?keep=3"}).ok());
  TestState state;
  for (uint64_t step : {500, 600, 700}) SaveDone(state, step);
  ASSERT_TRUE(engine_->Close(true, 60).ok());
  ASSERT_TRUE(Open({"file:" + folder_ + "?keep=3"}).ok());
  state.Set(4);
  SaveDone(state, 100);
  SaveDone(state, 200);
  ASSERT_TRUE(engine_->Drain(60).ok());
  auto saves = engine_->Steps();
  ASSERT_TRUE(saves.ok()) << saves.status();
  std::set<uint64_t> steps;
  for (const SaveInfo& save : *saves) steps.insert(save.step);
  EXPECT_EQ(steps, (std::set<uint64_t>{100, 200, 700}));
  auto newest = engine_->Find({});
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ((*newest)->info().step, 200u);
}

TEST_F(EngineTest, PinnedAndHeldSavesAreKept) {
  ASSERT_TRUE(Open({"file:" + folder_ + "?keep=1"}).ok());
  TestState state;
  SaveDone(state, 1);
  ASSERT_TRUE(engine_->SetPinned(1, true).ok());
  SaveDone(state, 2);
  auto held = engine_->Find({.step = 2});
  ASSERT_TRUE(held.ok()) << held.status();
  for (uint64_t step : {3, 4}) SaveDone(state, step);
  ASSERT_TRUE(engine_->Drain(60).ok());
  std::set<uint64_t> steps;
  const auto saves = engine_->Steps().value();
  for (const SaveInfo& save : saves) steps.insert(save.step);
  EXPECT_EQ(steps, (std::set<uint64_t>{1, 2, 4}));
}

TEST_F(EngineTest, TheBestByATagAreKeptAcrossLives) {
  const std::vector<std::string> tiers = {"file:" + folder_ + "?keep=1&best=loss:min:2"};
  TestState state;
  const auto save = [&](uint64_t step, double loss) {
    SaveRequest request{.step = step, .state = state.state, .addresses = state.addresses, .tags = {{"loss", loss}}};
    auto ticket = engine_->Save(request);
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE((*ticket)->Wait("file", 60).ok());
    ASSERT_TRUE(engine_->Drain(60).ok());
  };
  ASSERT_TRUE(Open(tiers).ok());
  save(1, 0.5);
  save(2, 0.1);
  save(3, 0.9);
  ASSERT_TRUE(Open(tiers).ok());
  save(4, 0.3);
  save(5, 0.8);
  std::set<uint64_t> steps;
  const auto saves = engine_->Steps().value();
  for (const SaveInfo& info : saves) steps.insert(info.step);
  EXPECT_EQ(steps, (std::set<uint64_t>{2, 4, 5}));
}

TEST_F(EngineTest, ReplaceGivesTheOldestWaitingSaveUp) {
  ASSERT_TRUE(Open({"ram:?slots=3", "file:" + folder_}, OnFull::kReplace).ok());
  WriteGate gate;
  TestState state;
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (uint64_t step = 1; step <= 4; ++step) {
    state.Set(static_cast<float>(step));
    auto ticket = Save(state, step);
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
  }
  gate.Open();
  // The first was being written; the second waited and gave way to the fourth.
  EXPECT_TRUE(tickets[0]->Wait("file", 60).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(tickets[1]->Wait("file", 60)));
  EXPECT_TRUE(tickets[2]->Wait("file", 60).ok());
  EXPECT_TRUE(tickets[3]->Wait("file", 60).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok());
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(4));
}

TEST_F(EngineTest, LeftoversOfADeadLifeAreRemovedByTheNextOthersFilesAreNot) {
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  TestState state;
  SaveDone(state, 1);
  engine_.reset();
  const std::string leftover = job() + "/step-000000000002.i0001.s000001";
  fs::create_directory(leftover);
  std::ofstream(leftover + "/shard-00000-of-00001.safetensors") << "half";
  std::ofstream(job() + "/notes.txt") << "mine";
  // The life that left it is dead.
  std::ofstream(job() + "/life-0001.json")
      << R"({"nonce":"x","host":"h","boot_id":"00000000-0000-0000-0000-000000000000","pid":1,"start_time":1,"world":1})";
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  SaveDone(state, 3);
  ASSERT_TRUE(engine_->Close(true, 60).ok());
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_TRUE(fs::exists(job() + "/notes.txt"));
}

TEST_F(EngineTest, ASY_05_ManySavesEachHoldTheirOwnStep) {
  ASSERT_TRUE(Open({"ram:?slots=3", "file:" + folder_}).ok());
  TestState state(3, 5000);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (uint64_t step = 1; step <= 20; ++step) {
    state.Set(static_cast<float>(step));
    auto ticket = Save(state, step);
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
  }
  for (const auto& ticket : tickets) ASSERT_TRUE(ticket->Wait("file", 60).ok()) << ticket->Error();
  for (uint64_t step = 1; step <= 20; ++step) {
    auto image = engine_->Find({.step = step});
    ASSERT_TRUE(image.ok()) << image.status();
    ASSERT_TRUE(ReadAll(**image, state).ok());
    EXPECT_TRUE(state.Holds(static_cast<float>(step)));
  }
  EXPECT_LE(FilesUnder(ram_, ".slot").size(), 3u);
}

TEST_F(EngineTest, CadenceDecidesWhichTiersAreDue) {
  ASSERT_TRUE(Open({"ram:", "file:" + folder_ + "?every=10"}).ok());
  TestState state;
  auto ticket = SaveDone(state, 5);
  EXPECT_TRUE(absl::IsInvalidArgument(ticket->Wait("file", 0)));
  ticket = SaveDone(state, 20);
  EXPECT_TRUE(ticket->Wait("file", 0).ok());
  EXPECT_EQ(ticket->Stages().front().first, "captured");
  EXPECT_EQ(ticket->Stages().back().first, "complete");
}

TEST_F(EngineTest, CloseWritesTheNewestWhateverTheCadence) {
  ASSERT_TRUE(Open({"ram:", "file:" + folder_ + "?every=10"}).ok());
  TestState state;
  SaveDone(state, 20);
  state.Set(23);
  SaveDone(state, 23);
  ASSERT_TRUE(engine_->Close(true, 60).ok());
  engine_.reset();
  EXPECT_TRUE(FilesUnder(ram_, ".slot").empty());
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->info().step, 23u);
}

TEST_F(EngineTest, WithoutFinalTheSlotStaysForRecovery) {
  ASSERT_TRUE(Open({"ram:", "file:" + folder_ + "?every=10"}).ok());
  TestState state;
  SaveDone(state, 23);
  ASSERT_TRUE(engine_->Close(false, 60).ok());
  EXPECT_FALSE(FilesUnder(ram_, ".slot").empty());
}

TEST_F(EngineTest, DUR_06_AnOlderLifeCommitsNoMoreOnceANewerHasClaimed) {
  ASSERT_TRUE(Open().ok());
  TestState state;
  SaveDone(state, 1);
  EngineOptions options;
  options.folder = job();
  auto second = Engine::Open(options);
  ASSERT_TRUE(second.ok());
  SaveRequest request{.step = 2, .state = state.state, .addresses = state.addresses};
  auto newer = (*second)->Save(request);
  ASSERT_TRUE(newer.ok());
  ASSERT_TRUE((*newer)->Wait("file", 60).ok()) << (*newer)->Error();
  auto older = Save(state, 3);
  ASSERT_TRUE(older.ok());
  const absl::Status superseded = (*older)->Wait("file", 60);
  EXPECT_TRUE(absl::IsUnavailable(superseded)) << superseded;
  EXPECT_NE(std::string(superseded.message()).find("superseded by life 2"), std::string::npos);
  EXPECT_EQ((*newer)->save_id().incarnation, 2u);
}

TEST_F(EngineTest, JobsOfTheSameNameNeverSeeEachOther) {
  TestState state;
  ASSERT_TRUE(Open().ok());
  SaveDone(state, 1);
  engine_.reset();
  fs::remove_all(job());
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(absl::IsNotFound(engine_->Find({}).status()));   // the slot in RAM belongs to the folder that is gone
  SaveDone(state, 2);
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->info().step, 2u);
}

TEST_F(EngineTest, MissingRootIsUnavailableMissingJobIsNotFound) {
  ASSERT_TRUE(Open({"file:" + folder_ + "/unmounted"}).ok());
  EXPECT_TRUE(absl::IsUnavailable(engine_->Find({}).status())) << engine_->Find({}).status();
  EXPECT_FALSE(fs::exists(folder_ + "/unmounted"));
  ASSERT_TRUE(Open({"file:" + folder_}).ok());
  EXPECT_TRUE(absl::IsNotFound(engine_->Find({}).status()));
}

// Every write of an image fails, as on a disk that is gone.
class BrokenDisk : public os::IoHooks {
 public:
  BrokenDisk() { os::SetIoHooks(this); }
  ~BrokenDisk() override { os::SetIoHooks(nullptr); }
  os::CallVerdict Before(const os::CallInfo& info) override {
    return {.error_number = info.call == os::Call::kPwrite && info.path.ends_with(".safetensors") ? EIO : 0};
  }
};

TEST_F(EngineTest, ABrokenDiskHoldsNoSaveUp) {
  for (const std::vector<std::string>& tiers : {std::vector<std::string>{"ram:?slots=2", "file:" + folder_}, {"file:" + folder_}}) {
    ASSERT_TRUE(Open(tiers).ok());
    std::vector<std::shared_ptr<Ticket>> tickets;
    TestState state;
    {
      BrokenDisk broken;
      for (uint64_t step = 1; step <= 6; ++step) {
        auto ticket = Save(state, step);   // returns, though the tier's timeout is ten minutes
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        tickets.push_back(*ticket);
      }
      EXPECT_EQ(tickets[0]->Wait("file", 60).code(), absl::StatusCode::kUnavailable);
    }
    SaveDone(state, 7);   // the disk is back
  }
}

TEST_F(EngineTest, SkipGivesUpASaveButNeverTwoInARow) {
  ASSERT_TRUE(Open({"ram:?slots=1", "file:" + folder_}, OnFull::kSkip).ok());
  WriteGate gate;
  TestState state;
  ASSERT_TRUE(Save(state, 1).ok());
  auto skipped = Save(state, 2);
  ASSERT_TRUE(skipped.ok());
  EXPECT_TRUE(absl::IsResourceExhausted((*skipped)->Wait("done", 0)));
  for (const auto& [stage, is] : (*skipped)->Stages()) EXPECT_EQ(is, StageState::kSkipped) << stage;
  // The next one waits instead of skipping again.
  SaveRequest request{.step = 3, .state = state.state, .addresses = state.addresses, .slot_timeout_s = 0};
  EXPECT_TRUE(absl::IsDeadlineExceeded(engine_->Save(request).status()));
  gate.Open();
  auto third = Save(state, 3);
  ASSERT_TRUE(third.ok());
  EXPECT_TRUE((*third)->Wait("file", 60).ok());
  EXPECT_EQ((*third)->save_id().sequence, 2u);   // the skipped save has a number too
}

TEST_F(EngineTest, OneSlotAndNothingBesideIsWarnedOf) {
  const auto said_at_open = [this](const std::vector<std::string>& tiers) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(Open(tiers).ok());
    return ::testing::internal::GetCapturedStderr().find("event=one_slot") != std::string::npos;
  };
  EXPECT_TRUE(said_at_open({"ram:?slots=1"}));
  EXPECT_FALSE(said_at_open({"ram:?slots=2"}));
  EXPECT_FALSE(said_at_open({"ram:?slots=1", "file:" + folder_}));
}

TEST_F(EngineTest, ASlotTimeoutCountsNothing) {
  ASSERT_TRUE(Open({"ram:?slots=1", "file:" + folder_}).ok());
  WriteGate gate;
  TestState state;
  ASSERT_TRUE(Save(state, 1).ok());
  SaveRequest request{.step = 2, .state = state.state, .addresses = state.addresses, .slot_timeout_s = 0.01};
  EXPECT_TRUE(absl::IsDeadlineExceeded(engine_->Save(request).status()));
  gate.Open();
  auto next = Save(state, 2);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ((*next)->save_id().sequence, 1u);
}

TEST_F(EngineTest, MisuseIsInvalidAndChangesNothing) {
  ASSERT_TRUE(Open().ok());
  TestState state;
  SaveRequest request{.step = kStepLimit, .state = state.state, .addresses = state.addresses};
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Save(request).status()));
  request.step = 1;
  request.addresses = request.addresses.first(1);
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Save(request).status()));
  request.addresses = state.addresses;
  request.to = {"tape"};
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Save(request).status()));
  request.to = {};
  request.values = "\"";
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Save(request).status()));
  EXPECT_FALSE(fs::exists(job()));
  ASSERT_TRUE(engine_->Close(true, 1).ok());
  request.values = "";
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Save(request).status()));
}

TEST_F(EngineTest, AReadOnlyFolderFailsTheTicketNotTheCall) {
  if (::geteuid() == 0) {
    // root may write anywhere: a file where the folder should be refuses it too.
    std::ofstream(job()) << "in the way";
  } else {
    fs::create_directory(job());
    fs::permissions(job(), fs::perms::owner_read | fs::perms::owner_exec);
  }
  ASSERT_TRUE(Open({"ram:", "file:" + folder_ + "?timeout=0.2"}).ok());
  TestState state;
  auto ticket = Save(state, 1);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE((*ticket)->Wait("ram", 10).ok() || !(*ticket)->Error().ok());
  EXPECT_FALSE((*ticket)->Wait("file", 60).ok());
  EXPECT_NE(engine_->HealthJson().find("\"ok\":false"), std::string::npos) << engine_->HealthJson();
  EXPECT_FALSE(engine_->Close(false, 10).ok());
}

// A limit of the size of files refuses an image as a full disk does, and can be lifted.
TEST_F(EngineTest, ATierThatFailsNowIsToldByHealthAndByTheWait) {
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(Open({"file:" + folder_ + "?timeout=600"}).ok());
  TestState state(4, 1'000'000);
  state.Set(2);
  struct rlimit small = before;
  small.rlim_cur = 1'000'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  auto ticket = Save(state, 1);
  absl::Status waited = absl::OkStatus();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    if (ticket.ok()) waited = (*ticket)->Wait("file", 0.01);
  } while (absl::IsDeadlineExceeded(waited) && waited.message().find("fails") == waited.message().npos &&
           std::chrono::steady_clock::now() < end);
  const std::string health = engine_->HealthJson();
  const absl::Status done = ticket.ok() ? (*ticket)->Wait("done", 0) : ticket.status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
  for (const std::string& message : {std::string(waited.message()), std::string(done.message())}) {
    EXPECT_NE(message.find("tier file fails (file:"), message.npos) << message;
    EXPECT_NE(message.find("step=1 "), message.npos) << message;
    EXPECT_NE(message.find("File too large"), message.npos) << message;
  }
  EXPECT_NE(health.find("\"ok\":false"), health.npos) << health;
  EXPECT_NE(health.find("File too large"), health.npos) << health;
  ASSERT_TRUE((*ticket)->Wait("file", 60).ok()) << (*ticket)->Error();
  EXPECT_EQ(engine_->HealthJson().find("\"ok\":false"), std::string::npos) << engine_->HealthJson();
}

TEST_F(EngineTest, NothingFitsTheBudgetSoTheSaveStreams) {
  ASSERT_TRUE(Open({"ram:?bytes=1M", "file:" + folder_}).ok());
  TestState state(4, 1'000'000);
  state.Set(6);
  auto ticket = Save(state, 3);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  ASSERT_TRUE((*ticket)->Wait("file", 60).ok()) << (*ticket)->Error();
  EXPECT_TRUE(absl::IsResourceExhausted((*ticket)->Wait("ram", 0)));
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  state.Clear();
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(6));
}

TEST_F(EngineTest, ARamFolderThatCannotBeUsedCostsTheRamCopyAlone) {
  std::filesystem::create_directory(ram_);
  std::filesystem::permissions(ram_, std::filesystem::perms::all);   // others may enter: not used
  ASSERT_TRUE(Open({"ram:", "file:" + folder_}).ok());
  TestState state;
  for (uint64_t step = 1; step <= 3; ++step) {
    state.Set(static_cast<float>(step));
    auto ticket = Save(state, step);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE((*ticket)->Wait("file", 60).ok()) << (*ticket)->Error();
    const absl::Status ram = (*ticket)->Wait("ram", 60);
    EXPECT_NE(ram.message().find("chmod 700"), std::string::npos) << ram;
    EXPECT_EQ((*ticket)->Wait("done", 60), ram);
  }
  int lives = 0;
  for (const auto& entry : fs::directory_iterator(job())) lives += entry.path().filename().string().starts_with("life-") ? 1 : 0;
  EXPECT_EQ(lives, 1);
  EXPECT_NE(engine_->HealthJson().find("chmod 700"), std::string::npos) << engine_->HealthJson();
  // A newer save might lie there: taken from files only when told to.
  const absl::Status refused = engine_->Find({}).status();
  EXPECT_TRUE(absl::IsUnavailable(refused) && refused.message().find("chmod 700") != std::string::npos) << refused;
  auto image = engine_->Find({.allow_missing = {"ram"}});
  ASSERT_TRUE(image.ok()) << image.status();
  state.Clear();
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(3));
  image->reset();
  // Mended beneath the running job: the next save lies in it.
  std::filesystem::permissions(ram_, std::filesystem::perms::owner_all);
  auto mended = Save(state, 4);
  ASSERT_TRUE(mended.ok()) << mended.status();
  EXPECT_TRUE((*mended)->Wait("done", 60).ok()) << (*mended)->Error();
}

// No life can be claimed in files.
class NoClaims : public os::IoHooks {
 public:
  NoClaims() { os::SetIoHooks(this); }
  ~NoClaims() override { os::SetIoHooks(nullptr); }
  os::CallVerdict Before(const os::CallInfo& info) override {
    return {.error_number = (info.path + info.target).find("/life-") != std::string::npos ? EIO : 0};
  }
};

TEST_F(EngineTest, ALifeThatCannotSeeTheRamFolderIsNumberedAboveTheLivesThatMayBeThere) {
  const std::vector<std::string> tiers = {"ram:", "file:" + folder_};
  TestState state;
  ASSERT_TRUE(Open(tiers).ok());
  SaveDone(state, 1);
  ASSERT_TRUE(Open(tiers).ok());
  SaveId in_ram_alone;
  {
    const NoClaims hooks;
    auto ticket = Save(state, 7);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE((*ticket)->Wait("ram", 60).ok()) << (*ticket)->Error();
    EXPECT_FALSE((*ticket)->Wait("file", 60).ok());
    in_ram_alone = (*ticket)->save_id();
    engine_.reset();
  }
  std::filesystem::permissions(ram_, std::filesystem::perms::all);
  ASSERT_TRUE(Open(tiers).ok());
  state.Set(3);
  auto later = Save(state, 3);
  ASSERT_TRUE(later.ok()) << later.status();
  ASSERT_TRUE((*later)->Wait("file", 60).ok()) << (*later)->Error();
  EXPECT_GT((*later)->save_id().incarnation, in_ram_alone.incarnation);
  std::filesystem::permissions(ram_, std::filesystem::perms::owner_all);
  ASSERT_TRUE(Open(tiers).ok());
  auto image = engine_->Find({});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->info().step, 3u);
  image->reset();
}

TEST_F(EngineTest, ASaveThatNothingCanBeDoneForIsCounted) {
  std::filesystem::create_directory(ram_);
  std::filesystem::permissions(ram_, std::filesystem::perms::all);
  ASSERT_TRUE(Open({"ram:"}).ok());
  TestState state;
  auto ticket = Save(state, 1);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_FALSE((*ticket)->Wait("done", 60).ok());
  EXPECT_NE(engine_->HealthJson().find("\"saves_failed_count\":1"), std::string::npos) << engine_->HealthJson();
}

TEST_F(EngineTest, ASY_02_ReplacedTensorsAreSavedAsTheyAreNow) {
  ASSERT_TRUE(Open().ok());
  TestState first;
  first.Set(1);
  SaveDone(first, 1);
  TestState second;
  second.Set(2);
  SaveRequest request{.step = 2, .state = first.state, .addresses = second.addresses};   // same structure, other memory
  auto ticket = engine_->Save(request);
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE((*ticket)->Wait("done", 60).ok());
  auto image = engine_->Find({.step = 2});
  ASSERT_TRUE(image.ok());
  ASSERT_TRUE(ReadAll(**image, first).ok());
  EXPECT_TRUE(first.Holds(2));
}

TEST_F(EngineTest, SingleFilesAreReplacedWholeOrNotAtAll) {
  TestState state;
  state.Set(1);
  const std::string path = folder_ + "/w.safetensors";
  ASSERT_TRUE(SaveFile(path, state.state, state.addresses, "", {}).ok());
  state.Set(2);
  auto ticket = SaveFileAsync(path, state.state, state.addresses, "", {});
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  state.Clear();
  ASSERT_TRUE((*ticket)->Wait("done", 60).ok());
  auto image = OpenImageFile(path);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_TRUE((*image)->has_digests());
  EXPECT_TRUE((*image)->VerifyAll().ok());
  ASSERT_TRUE(ReadAll(**image, state).ok());
  EXPECT_TRUE(state.Holds(2));
  EXPECT_TRUE(absl::IsNotFound(SaveFile(folder_ + "/no/w.safetensors", state.state, state.addresses, "", {})));
  EXPECT_FALSE(fs::exists(folder_ + "/no"));
}

TEST_F(EngineTest, ParseTierNamesWhatIsWrong) {
  EXPECT_EQ(ParseTier("file:/a%20b?every=10&keep=3&rate=500M")->place, "/a b");
  EXPECT_EQ(ParseTier("file:/x?rate=2G/s")->rate_bytes_per_s, 2ull << 30);
  EXPECT_EQ(ParseTier("file:/x?best=loss:min:2")->best_count, 2u);
  for (const char* wrong : {"tape:", "file:", "file:/x?every=0", "file:/x?colour=red", "file:/x?keep=", "ram:/x",
                            "file:/x?rate=fast", "file:/x%2", "file:/x?best=loss", "nothing", "file:/x?timeout=-1",
                            "file:/x?every=2&every=3", "ram:?slots=2&slots=2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTier(wrong).status())) << wrong << ": " << ParseTier(wrong).status();
  }
  for (const char* later : {"peer:?copies=1", "s3://bucket/prefix"}) {
    EXPECT_TRUE(absl::IsUnimplemented(ParseTier(later).status())) << later;
  }
}

}  // namespace
}  // namespace neve
