// Files in torch's format: what windows, pieces and their borders make of an archive, and what failures leave.
#include <cerrno>
#include <fstream>
#include <iterator>
#include <numeric>

#include "base/codec/crc32.h"
#include "base/error/status.h"
#include "engine/torch_archive.h"
#include "tests/base/os_fixture.h"
#include "tests/engine/engine_fixture.h"

namespace neve {
namespace {

using os::Call;
using os::CallInfo;
using os::CallVerdict;
using os::ScriptedHooks;

// Storages of given sizes, each with bytes of its own.
struct Storages {
  explicit Storages(const std::vector<uint64_t>& sizes, uint8_t salt = 1) : bytes(sizes) {
    for (uint64_t size : sizes) {
      std::vector<std::byte> content(size);
      for (uint64_t i = 0; i < size; ++i) content[i] = static_cast<std::byte>((i * 2654435761u >> 7) + salt);
      contents.push_back(std::move(content));
      addresses.push_back(contents.back().data());
      ++salt;
    }
  }
  TorchObject Object() const { return {.pickle = "a pickle", .storages = addresses, .storage_bytes = bytes}; }

  std::vector<uint64_t> bytes;
  std::vector<std::vector<std::byte>> contents;
  std::vector<const void*> addresses;
};

// The archive as its layout says it, made plainly.
std::string Expected(const Storages& storages, std::string_view root) {
  const format::TorchZipLayout layout = format::TorchZipLayout::Build(root, 64, "a pickle", storages.bytes).value();
  std::string text(layout.head()), part;
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < storages.bytes.size(); ++i) {
    crcs.push_back(codec::Crc32(0, storages.contents[i]));
    layout.LocalHeader(i, &part);
    text += part;
    text.append(reinterpret_cast<const char*>(storages.contents[i].data()), storages.bytes[i]);
    layout.Descriptor(i, crcs.back(), &part);
    text += part;
  }
  return text + layout.Tail(crcs);
}

class TorchFileSaveTest : public os::FolderTest {
 protected:
  std::string Content(const std::string& name) {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(TorchFileSaveTest, AFileHoldsTheArchiveOfItsLayout) {
  const Storages storages({100, 0, 5'000'000, 1, 3'000'000, 7});
  ASSERT_TRUE(SaveTorchFile(Path("x.pt"), storages.Object()).ok());
  EXPECT_EQ(Content("x.pt"), Expected(storages, "x"));
  EXPECT_EQ(Names(), std::vector<std::string>{"x.pt"});
}

TEST_F(TorchFileSaveTest, AnAsynchronousSaveHoldsWhatWasThereWhenItReturned) {
  Storages storages({100, 0, 5'000'000, 1, 3'000'000, 7});
  const std::string expected = Expected(storages, "x");
  const auto ticket = SaveTorchFileAsync(Path("x.pt"), storages.Object());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  for (auto& content : storages.contents) std::fill(content.begin(), content.end(), std::byte{0});
  ASSERT_TRUE((*ticket)->Wait("done", 60).ok());
  EXPECT_EQ(Content("x.pt"), expected);
  EXPECT_EQ((*ticket)->Places().at("file"), Path("x.pt"));
}

TEST_F(TorchFileSaveTest, BordersOfPiecesMayFallAnywhere) {
  constexpr uint64_t kPiece = 1 << 20;   // as the archive cuts them
  for (uint64_t size = kPiece - 640; size < kPiece + 192; size += 13) {
    const Storages storages({size, 3, 2 * kPiece + size % 5, 0, 17});
    const auto stream = TorchFileStream::Open(storages.Object());
    ASSERT_TRUE(stream.ok());
    std::string text((*stream)->bytes(), '\0');
    ASSERT_EQ((*stream)->Read(std::as_writable_bytes(std::span(text))), text.size());
    ASSERT_EQ(text, Expected(storages, "archive")) << size;
  }
}

TEST_F(TorchFileSaveTest, AStreamReadInAnyPiecesIsTheArchive) {
  const Storages storages({100, 0, 40'000, 1, 3'000, 7});
  const std::string expected = Expected(storages, "archive");
  for (const uint64_t step : {1, 7, 64, 1000, 1 << 20}) {
    const auto stream = TorchFileStream::Open(storages.Object());
    ASSERT_TRUE(stream.ok());
    EXPECT_EQ((*stream)->bytes(), expected.size());
    std::string text, part(step, '\0');
    for (uint64_t got = step; got == step;) {
      got = (*stream)->Read(std::as_writable_bytes(std::span(part)));
      text.append(part, 0, got);
    }
    EXPECT_EQ(text, expected) << step;
  }
}

TEST_F(TorchFileSaveTest, DUR_02_AFailureAtAnyStepLeavesTheOldFileAlone) {
  const Storages before({1000}), after({2000}, 9);
  ASSERT_TRUE(SaveTorchFile(Path("x.pt"), before.Object()).ok());
  for (const bool async : {false, true}) {
    for (const Call call : {Call::kFallocate, Call::kPwrite, Call::kFtruncate, Call::kFsync, Call::kLink, Call::kRename}) {
      ScriptedHooks hooks([&](const CallInfo& info) {
        return info.call == call ? CallVerdict{.error_number = ENOSPC} : CallVerdict{};
      });
      absl::Status status;
      if (async) {
        const auto ticket = SaveTorchFileAsync(Path("x.pt"), after.Object());
        status = ticket.ok() ? (*ticket)->Wait("done", 60) : ticket.status();
      } else {
        status = SaveTorchFile(Path("x.pt"), after.Object());
      }
      EXPECT_EQ(ErrnoOf(status), ENOSPC) << async << static_cast<int>(call) << " " << status;
      EXPECT_EQ(std::string(status.message()).find("cannot save " + Path("x.pt")), 0u) << status;
      EXPECT_EQ(Names(), std::vector<std::string>{"x.pt"});
      EXPECT_EQ(Content("x.pt"), Expected(before, "x"));
    }
  }
}

TEST_F(TorchFileSaveTest, AFullDiskIsToldByTheTicketAndNotThrownIntoTheCaller) {
  const Storages storages({1000});
  for (const int error : {ENOSPC, EIO, EACCES}) {
    ScriptedHooks hooks([&](const CallInfo& info) {
      return info.call == Call::kFallocate ? CallVerdict{.error_number = error} : CallVerdict{};
    });
    const auto ticket = SaveTorchFileAsync(Path("x.pt"), storages.Object());
    EXPECT_EQ(ticket.ok(), error != EACCES) << ticket.status();
    if (!ticket.ok()) continue;
    for (const char* stage : {"captured", "file", "done"}) EXPECT_EQ(ErrnoOf((*ticket)->Wait(stage, 60)), error) << stage;
  }
  EXPECT_TRUE(Names().empty());
}

TEST_F(TorchFileSaveTest, MisuseIsSaidBeforeAnythingIsTouched) {
  const Storages storages({10});
  TorchObject object = storages.Object();
  object.alignment = 48;
  EXPECT_EQ(SaveTorchFile(Path("x.pt"), object).code(), absl::StatusCode::kInvalidArgument);
  object = storages.Object();
  object.storage_bytes = {};
  EXPECT_EQ(SaveTorchFileAsync(Path("x.pt"), object).status().code(), absl::StatusCode::kInvalidArgument);
  const void* const nowhere = nullptr;
  object = storages.Object();
  object.storages = {&nowhere, 1};
  EXPECT_EQ(TorchFileStream::Open(object).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Names().empty());
}

TEST_F(TorchFileSaveTest, PT_13_AMissingFolderIsNamedAndNotMade) {
  const Storages storages({10});
  const absl::Status status = SaveTorchFile(Path("none/x.pt"), storages.Object());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("none"), status.message().npos);
  EXPECT_EQ(SaveTorchFileAsync(Path("none/x.pt"), storages.Object()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace neve
